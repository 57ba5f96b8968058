"""Write metrics in the text formats that Prometheus reads: its own (0.0.4) and OpenMetrics (1.0.0).

Runs in: feeders, workers and schedulers, in the thread that answers a scrape. Pure. What does not change between
scrapes (the lines on a metric, the labels of a series) is written once: 64 ranks have 3,000 series.

The formats: https://prometheus.io/docs/instrumenting/exposition_formats,
https://prometheus.io/docs/specs/om/open_metrics_spec
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache, lru_cache
from typing import Any, TypeVar

from feedline.service.monitoring.metric import Metric

State = TypeVar("State")

# 64 ranks have 1,000 sets of labels; a scheduler with many jobs has one per job.
_LABEL_SETS = 16_384
_LINE = str.maketrans({"\\": r"\\", "\n": r"\n"})
_QUOTED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
_OPENMETRICS, _OPENMETRICS_VERSIONS = "application/openmetrics-text", ("0.0.1", "1.0.0")


class TextFormat(Enum):
    """A format; its value is the content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"


def choose_format(accept: str) -> TextFormat:
    """The format for a client, by its header `Accept`: OpenMetrics if it prefers no other, else Prometheus' own."""
    openmetrics = other = 0.0
    for media_range in accept.lower().split(","):
        kind, *parts = (part.strip() for part in media_range.split(";"))
        parameters = {name: value.strip('"') for name, _, value in (part.partition("=") for part in parts)}
        weight = _weight(parameters.get("q", "1"))
        if kind == _OPENMETRICS and parameters.get("version", "1.0.0") in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, weight)
        elif kind == "text/plain":
            other = max(other, weight)
    return TextFormat.OPENMETRICS if openmetrics and openmetrics >= other else TextFormat.PROMETHEUS


def write_metrics(metrics: Sequence[Metric[State]], state: State, form: TextFormat) -> str:
    """The metrics that have samples in a state. OpenMetrics also needs `END` after the last of an answer's."""
    lines: list[str] = []
    for metric in metrics:
        if samples := _samples(metric.name, metric.labels, metric.samples(state)):
            lines.append(_head(metric, form))
            lines += samples
    return "".join(lines)


END = {TextFormat.PROMETHEUS: "", TextFormat.OPENMETRICS: "# EOF\n"}


def _samples(name: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]) -> list[str]:
    lines = []
    for values, value in samples:
        if type(value) is int:  # most are, and are written in a fifth of the time
            lines.append(f"{name}{_labels(labels, values)} {value}\n")
        else:
            number = repr(float(value))
            lines.append(f"{name}{_labels(labels, values)} {_NOT_FINITE.get(number, number)}\n")
    return lines


@cache  # metrics are constants of their modules
def _head(metric: Metric[Any], form: TextFormat) -> str:
    """The lines before a metric's samples. A counter of OpenMetrics is named without `_total`, unlike its samples."""
    if form is TextFormat.OPENMETRICS:
        name, meaning = metric.name.removesuffix("_total"), metric.meaning.translate(_QUOTED)
    else:
        name, meaning = metric.name, metric.meaning.translate(_LINE)
    return f"# HELP {name} {meaning}\n# TYPE {name} {metric.type}\n"


@lru_cache(_LABEL_SETS)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    pairs = [f'{name}="{value.translate(_QUOTED)}"' for name, value in zip(names, values, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
