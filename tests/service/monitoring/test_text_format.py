"""Metrics as text: equal to what prometheus_client writes of the same, by its parsers; the format for a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.exposition import generate_latest as text_of_client
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_of_client
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from watched_status import watched_status

from feedline.service.monitoring.dask_pages import StateCollector
from feedline.service.monitoring.feeder_metrics import FEEDER_METRICS
from feedline.service.monitoring.metric import Metric
from feedline.service.monitoring.text_format import END, TextFormat, choose_format, write_metrics

Parse = Callable[[str], Iterable[Family]]
FORMATS: Mapping[TextFormat, tuple[Callable[[Any], bytes], Parse]] = {
    TextFormat.PROMETHEUS: (text_of_client, parse_text),
    TextFormat.OPENMETRICS: (openmetrics_of_client, parse_openmetrics),
}
each_format = pytest.mark.parametrize("form", TextFormat)
NUMBERS = st.one_of(
    st.integers(-(2**60), 2**60), st.floats(), st.booleans(), st.floats(width=32).map(np.float32), st.just(np.int64(7))
)


def families(text: str, parse: Parse) -> dict[tuple[str, str, str], dict[tuple[str, ...], str]]:
    """Samples by family. Numbers as strings, as NaN is not equal to itself."""
    return {
        (family.name, family.type, family.documentation): {
            (sample.name, *map(str, sorted(sample.labels.items()))): repr(float(sample.value))
            for sample in family.samples
        }
        for family in parse(text)
    }


def assert_equal(metrics: tuple[Metric[Any], ...], state: object, form: TextFormat) -> None:
    write, parse = FORMATS[form]
    registry = CollectorRegistry()
    registry.register(StateCollector(metrics, lambda: state))
    ours = families(write_metrics(metrics, state, form) + END[form], parse)
    assert ours == families(write(registry).decode(), parse)


@each_format
def test_a_feeder_is_shown_as_prometheus_client_shows_it(form: TextFormat):
    assert_equal(FEEDER_METRICS, watched_status(3), form)
    assert_equal(FEEDER_METRICS, watched_status(2, cached=False), form)


@each_format
@examples(30)
@given(
    name=st.text(), meaning=st.text(min_size=1).map(lambda text: f"{text}."), number=NUMBERS, count=NUMBERS.filter(bool)
)
def test_names_and_numbers_are_written_as_prometheus_client_writes_them(
    form: TextFormat, name: str, meaning: str, number: float, count: float
):
    meaning = meaning.replace("\r", " ")  # its parser of Prometheus' format strips lines
    metrics: tuple[Metric[None], ...] = (
        Metric(name="a", meaning="A.", labels=("job", "rank"), samples=lambda _: [((name, "0"), number)]),
        Metric(name="b_total", meaning=meaning, labels=("job",), samples=lambda _: [((name,), abs(count))]),
        Metric(name="c", meaning="None.", samples=lambda _: []),
        Metric(name="d", meaning="D.", samples=lambda _: [((), number)]),
    )
    assert_equal(metrics, None, form)


def test_the_lines_of_both_formats():
    job, nan, inf = 'a "job" \\ of\n2', math.nan, math.inf
    metrics: tuple[Metric[None], ...] = (
        Metric(name="n_total", meaning='A "\\".\n', labels=("job",), samples=lambda _: [((job,), 7), (("b",), 0.5)]),
        Metric(name="g", meaning="G.", samples=lambda _: [((), each) for each in (nan, inf, -inf, 1e300, True)]),
    )
    samples = 'n_total{job="a \\"job\\" \\\\ of\\n2"} 7\nn_total{job="b"} 0.5\n'
    gauge = "# HELP g G.\n# TYPE g gauge\ng NaN\ng +Inf\ng -Inf\ng 1e+300\ng 1.0\n"
    assert write_metrics(metrics, None, TextFormat.PROMETHEUS) == (
        '# HELP n_total A "\\\\".\\n\n# TYPE n_total counter\n' + samples + gauge
    )
    assert write_metrics(metrics, None, TextFormat.OPENMETRICS) == (
        '# HELP n A \\"\\\\\\".\\n\n# TYPE n counter\n' + samples + gauge
    )


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TextFormat.PROMETHEUS),
        ("*/*", TextFormat.PROMETHEUS),
        ("text/html, application/xhtml+xml;q=0.9, */*;q=0.8", TextFormat.PROMETHEUS),
        (PROMETHEUS_2, TextFormat.OPENMETRICS),
        (PROMETHEUS_3, TextFormat.OPENMETRICS),
        ("Application/OpenMetrics-Text", TextFormat.OPENMETRICS),
        ('application/openmetrics-text; version="1.0.0"', TextFormat.OPENMETRICS),
        ("application/openmetrics-text; version=2.0.0", TextFormat.PROMETHEUS),
        ("text/plain, application/openmetrics-text;q=0.5", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=0", TextFormat.PROMETHEUS),
        ("application/openmetrics-text;q=often, ;;=,", TextFormat.PROMETHEUS),
    ],
)
def test_a_client_gets_the_format_that_it_prefers(accept: str, form: TextFormat):
    assert choose_format(accept) is form
