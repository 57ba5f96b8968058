"""Add metrics to `/metrics` of Dask's own HTTP server, which has Dask's metrics, too.

Runs in: schedulers and workers whose HTTP server of Dask's is asked for: nothing else imports this module, as it loads
prometheus_client, with which Dask writes that page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from feedline.service.monitoring.metric import Metric

State = TypeVar("State")

_COLLECTORS: dict[str, StateCollector[Any]] = {}


def add_to_dask(name: str, metrics: Sequence[Metric[State]], source: Callable[[], State]) -> None:
    """Add metrics; of one name, the last ones remain: a process may have had a scheduler or worker before."""
    if (former := _COLLECTORS.get(name)) is not None:
        former.source = source
        return
    _COLLECTORS[name] = collector = StateCollector(metrics, source)
    REGISTRY.register(collector)


class StateCollector(Collector, Generic[State]):
    """Reads the metrics from the state of the moment, at each scrape."""

    def __init__(self, metrics: Sequence[Metric[State]], source: Callable[[], State]) -> None:
        self._metrics, self.source = metrics, source

    def describe(self) -> Iterator[Family]:
        """The metrics without samples."""
        return (_family(metric) for metric in self._metrics)

    def collect(self) -> Iterator[Family]:
        """The metrics that have samples now."""
        state = self.source()
        for metric in self._metrics:
            family = _family(metric)
            for labels, value in metric.samples(state):
                family.add_metric(labels, value)
            if family.samples:
                yield family


def _family(metric: Metric[Any]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)
