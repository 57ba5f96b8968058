"""Combinations of a test's parameters: in `make test` so few of them that each two values meet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def combinations(*choices: Sequence[Any]) -> list[Any]:
    """All combinations of values of three or more parameters; those in which no two values meet anew are nightly."""
    assert len(choices) > 2, "two values of two parameters would not meet"
    chosen = _pairwise([len(values) for values in choices])
    return [
        pytest.param(
            *(value for _, value in each), marks=() if tuple(at for at, _ in each) in chosen else pytest.mark.nightly
        )
        for each in itertools.product(*map(enumerate, choices))
    ]


def _pairwise(sizes: Sequence[int]) -> set[tuple[int, ...]]:
    """Combinations of indices in which each two meet: again and again the one with most pairs that have not met.

    Of sizes 2, 2, 2: (0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0).
    """

    def pairs(each: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
        return set(itertools.combinations(enumerate(each), 2))

    every = {each: pairs(each) for each in itertools.product(*map(range, sizes))}
    apart = set().union(*every.values())
    chosen: set[tuple[int, ...]] = set()
    while apart:
        most = max(every, key=lambda each: len(every[each] & apart))
        chosen.add(most)
        apart -= every[most]
    return chosen
