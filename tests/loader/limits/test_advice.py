"""Advice is sorted by its gain, and what promises nothing is left out."""

from __future__ import annotations

from feedline.loader.limits.machine_advice import Advice, sorted_advice


def advice(change: str, ratio: float = 1.0, saved: float = 0.0) -> Advice:
    return Advice(kind="workers", change=change, reason="", rows_ratio=ratio, cpu_s_saved=saved)


def test_the_largest_gain_comes_first():
    given = [
        advice("cpu", saved=3.0),
        advice("none"),
        advice("most", 2.0),
        advice("some", 1.3, 1.0),
        advice("noise", 1.01),
    ]
    assert [each.change for each in sorted_advice(given)] == ["most", "some", "cpu"]


def test_equal_gains_are_ordered_by_saved_cpu():
    assert [each.change for each in sorted_advice([advice("a", 1.2), advice("b", 1.2, 2.0)])] == ["b", "a"]
