"""What one metric is: its name by Prometheus' conventions, its labels, and how it is read from a process's state.

Runs in: feeders, workers and schedulers. Pure; without prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from feedline.dataclass import dataclass

State = TypeVar("State")
Part = TypeVar("Part")

# A sample: the values of the labels, and the number.
Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Generic[State]):
    """A metric. A name that ends with `_total` is a counter, any other a gauge. samples: read from the state; none
    where it has no value."""

    name: str
    meaning: str
    labels: tuple[str, ...] = ()
    samples: Callable[[State], Iterable[Sample]]

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def single(
    name: str, meaning: str, value: Callable[[State], float | None], labels: Mapping[str, Callable[[State], str]]
) -> Metric[State]:
    """A metric of one sample; None: there is none now."""

    def samples(state: State) -> Iterator[Sample]:
        if (number := value(state)) is not None:
            yield tuple(text(state) for text in labels.values()), number

    return Metric(name=name, meaning=meaning, labels=tuple(labels), samples=samples)


def information(name: str, meaning: str, labels: Mapping[str, Callable[[State], str]]) -> Metric[State]:
    """The number 1, with facts as labels."""
    return single(name, meaning, lambda state: 1.0, labels)
