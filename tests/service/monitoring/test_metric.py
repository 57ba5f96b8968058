"""A metric: its type by its name, and its samples."""

from __future__ import annotations

from feedline.service.monitoring.metric import information, single


def test_a_name_says_the_type():
    assert single("feedline_rows_total", "Rows.", float, {}).type == "counter"
    assert single("feedline_step_seconds", "Seconds.", float, {}).type == "gauge"


def test_a_metric_without_a_value_has_no_sample():
    metric = single("feedline_a", "A.", lambda state: state or None, {"name": lambda state: f"n{state}"})
    assert list(metric.samples(3)) == [(("n3",), 3)]
    assert list(metric.samples(0)) == []
    assert metric.labels == ("name",)


def test_facts_are_labels_of_the_number_one():
    assert list(information("feedline_a_info", "A.", {"name": str}).samples(7)) == [(("7",), 1.0)]
