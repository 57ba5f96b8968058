"""What `feedline init` has decided: features with their reasons, the label, the held-out rows, what is left out.

Pure values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from feedline.config.features import Group
from feedline.dataclass import dataclass

# What the model predicts, and so its loss: one of two, a number, or one of several classes.
Task: TypeAlias = Literal["binary", "regression", "classes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFeature:
    """A feature of the pipeline: its column or expression, its ops as YAML has them, and why.

    check: a question that only a person can answer, such as whether it is known before the label.
    rank: the smaller, the sooner it is kept where there are too many. strict: NaN and infinities end the run.
    """

    name: str
    group: Group
    column: str
    expr: str | None = None
    ops: tuple[object, ...] = ()
    reason: str = ""
    check: str | None = None
    rank: float = 0.0
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A column that becomes no feature, and why. enable: a feature that would read it, to be put in by a person."""

    column: str
    reason: str
    enable: PlannedFeature | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelChoice:
    """The label: its feature, what the model predicts, and which rows have it.

    where: the rows that have a label; None if all do. classes: how many, of `classes`. mean, std: of a number, as
    sampled; the model learns (label - mean) / std. share: of ones, for `binary`.
    """

    column: str
    feature: PlannedFeature
    task: Task
    reason: str
    where: str | None = None
    classes: int = 1
    mean: float = 0.0
    std: float = 1.0
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The rows that no model learns from, by the columns `by` (none: by their place).

    train, held_out: expressions that exclude each other; rows where the column is null are in neither. sample: without
    these, `source.sample` with the rows to learn from, whose rest is held out.
    """

    by: tuple[str, ...]
    train: str | None = None
    held_out: str | None = None
    sample: Mapping[str, object] | None = None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupChoice:
    """Deduplicated groups in sessions: the column whose equal values stay together, the groups' columns by name, and
    what they save. columns is empty until the groups have been measured."""

    by: str
    reason: str
    groups: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What the caller, or a person at a terminal, has chosen; None where `init` guesses, "" for none.

    session_named: the session is no guess.
    """

    label: str | None = None
    time: str | None = None
    session: str | None = None
    session_named: bool = False
    max_features: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class InitPlan:
    """What `feedline init` writes. rows: of the table; sampled_rows: those that figures are of. notes: sentences for
    the head of the file and the terminal."""

    name: str
    table: str
    format: str
    rows: int
    sampled_rows: int
    label: LabelChoice
    features: tuple[PlannedFeature, ...]
    left_out: tuple[LeftOut, ...]
    held_out: HeldOut
    time: str | None
    session: str | None
    dedup: DedupChoice | None
    batch_size: int
    tail: Literal["drop", "partial"]
    skip_bad_files: bool
    notes: tuple[str, ...] = ()

    @property
    def where(self) -> str | None:
        """The rows that the model learns from."""
        return all_of(self.label.where, self.held_out.train)

    @property
    def held_out_keys(self) -> dict[str, object]:
        """Keys of pipeline.yaml with which it has the rows that the model is evaluated on."""
        if self.held_out.sample is not None:
            return {"source.sample.rest": True}
        return {"source.where": all_of(self.label.where, self.held_out.held_out)}


def all_of(*conditions: str | None) -> str | None:
    """The expression that all of these hold; None without any."""
    return " and ".join(each for each in conditions if each) or None
