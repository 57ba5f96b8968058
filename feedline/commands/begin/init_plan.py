"""What `feedline init` has decided: features with their reasons, the label, the held-out rows, what is left out.

Pure values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from feedline.spec.features import Group

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
    """The rows that no model learns from: by the column `by`; `train` and `held_out` are expressions, and exclude each
    other. Rows where the column is null are in neither."""

    by: str
    train: str
    held_out: str
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
    """What the caller, or a person at a terminal, has chosen; None where `init` guesses, "" for none."""

    label: str | None = None
    time: str | None = None
    session: str | None = None
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
    held_out: HeldOut | None
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
        parts = [self.label.where, None if self.held_out is None else self.held_out.train]
        return " and ".join(part for part in parts if part) or None

    @property
    def held_out_where(self) -> str | None:
        """The rows that it is evaluated on; None if none are held out."""
        if self.held_out is None:
            return None
        return " and ".join(part for part in (self.label.where, self.held_out.held_out) if part)
