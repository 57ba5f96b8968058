"""Metrics on Dask's own pages, which prometheus_client writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import REGISTRY

from feedline.service.monitoring.dask_pages import _COLLECTORS, add_to_dask
from feedline.service.monitoring.metric import single

METRICS = (
    single("feedline_first", "The first.", lambda numbers: numbers[0], {}),
    single("feedline_sum_total", "The sum.", sum, {"pipeline": lambda numbers: "a"}),
)


@pytest.fixture
def on_dask() -> Iterator[str]:
    name = "of a test"
    yield name
    REGISTRY.unregister(_COLLECTORS.pop(name))


def test_the_page_shows_those_that_were_added_last(on_dask: str):
    for number in (1.0, 2.0):
        add_to_dask(on_dask, METRICS, lambda number=number: [number, 0.5])
    assert REGISTRY.get_sample_value("feedline_first") == 2.0
    assert REGISTRY.get_sample_value("feedline_sum_total", {"pipeline": "a"}) == 2.5
