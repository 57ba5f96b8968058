"""The op target_encoding: the mean target over the rows of a key.

Built in every process, run on the workers. Learning is one pass: count and exact sum of the target by key and fold
(`group_sums`). All means are computed once, at the end: for each key the smoothed mean over all folds, and for each
fold that over all others, so nothing is subtracted in floating point to leave out a row's own target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import Field, model_validator

from feedline.dataclass import dataclass
from feedline.errors import DataError, SpecError
from feedline.hashing import hashable, key_hash
from feedline.transforms.learning.exact_sums import Bins, normal, total
from feedline.transforms.learning.group_sums import GroupedState, GroupSums, check_numbers, state_total
from feedline.transforms.learning.learner import SEEN, WARNING, Artifact, Learning, Parts
from feedline.transforms.ops.group_table import (
    KEY,
    MAX_MEMORY,
    GroupColumns,
    GroupKeys,
    KeyedRows,
    MaxMemory,
    by_choice,
    check_artifact,
    check_parts,
    ordered_table,
)
from feedline.transforms.registry.op import MAX_INT, Parameters, example_of_several, op
from feedline.transforms.values.kinds import Value
from feedline.transforms.values.ragged import over_columns

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

_FOLD = "fold"
_MOST_FOLDS = 100
_NOWHERE = np.zeros(0, np.int64)
_SAME, _DIFFERENT = 1e-9, 1e-6  # how far equal means may lie apart, and other means must, relative to the largest
_SMALLER = "Use fewer folds, or fewer keys, with hash_bucket or a vocabulary's min_count before it"


class TargetEncoding(Parameters):
    target: Annotated[str, Field(min_length=1, description="The column of the table whose mean is learnt.")]
    fold_by: Annotated[
        str | list[str] | None,
        Field(
            description="The columns of the table whose values decide the fold of a row. Required unless `folds` is 1."
        ),
    ] = None
    folds: Annotated[int, Field(ge=1, le=_MOST_FOLDS, description="The number of folds; 1: no row is left out.")] = 5
    smoothing: Annotated[
        float, Field(ge=0, description="The number of rows with the overall mean that are added to each key.")
    ] = 20.0
    seed: Annotated[int, Field(ge=0, le=MAX_INT, description="Another seed gives other folds.")] = 0
    max_memory: MaxMemory = MAX_MEMORY

    @model_validator(mode="after")
    def _consistent(self) -> TargetEncoding:
        if self.folds > 1 and not self.fold_by:
            raise ValueError(
                f"{self.folds} folds need fold_by: got none, expected a column that tells rows apart, such as a "
                "request's or a user's id. With folds: 1, a row's value includes its own target"
            )
        return self

    @property
    def fold_columns(self) -> dict[str, str]:
        """The columns of `fold_by` by their roles; none without folds."""
        names = [self.fold_by] if isinstance(self.fold_by, str) else self.fold_by or []
        return {f"fold_by {index}": name for index, name in enumerate(names)} if self.folds > 1 else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMeans:
    """Learns the smoothed mean of a target by key, over all folds and without each of them."""

    groups: GroupKeys
    parameters: TargetEncoding = field(compare=False)  # part of a fit's key, except `max_memory`

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a group: its folds and bins stay together when a state is cut."""
        return self.groups.names

    @property
    def _sums(self) -> GroupSums:
        return GroupSums(by=(*self.groups.names, _FOLD))

    @property
    def _means(self) -> int:
        return self.parameters.folds + 1 if self.parameters.folds > 1 else 1

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        width = len(self.groups.types)
        rows = self.groups.rows(columns[:width])
        fold_of_row = folds(columns[width + 1 :], self.parameters, len(columns[width]))
        frame = rows.frame(self.groups.names).with_columns(pl.Series(_FOLD, rows.repeat(fold_of_row)))
        return self._sums.observe(*rows.finite(frame, columns[width]))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return self._sums.merge(states)

    def finish(self, parts: Parts) -> Artifact:
        """The means. Raises DataError without a target, without rows outside of a fold, or beyond `max_memory`."""
        check_parts(self.groups, parts, 1 + self._means, self.parameters.max_memory, _SMALLER)
        counts = [0] * self.parameters.folds
        sums: list[Bins] = [{} for _ in counts]
        for state in parts:
            for (fold,), some in state.group_by(_FOLD):
                count, bins = state_total(some)
                counts[int(str(fold))] += count
                sums[int(str(fold))] = _join([sums[int(str(fold))], bins])
        means = [self._mean(counts, sums, without) for without in range(-1, self._means - 1)]
        table = ordered_table(self.groups, [self._empty(), *(self._encode(state, means) for state in parts)])
        facts = {"rows": sum(counts), "groups": table.num_rows, "means": means}
        return Artifact(facts=facts, table=table)

    def blank(self) -> Artifact:
        return Artifact(facts={"rows": 0, "groups": 0, "means": [0.0] * self._means}, table=self._empty().to_arrow())

    def show(self, artifact: Artifact) -> dict[str, Any]:
        summary = {
            "rows": artifact.facts["rows"],
            "groups": artifact.facts["groups"],
            "mean": artifact.facts["means"][0],
        }
        if artifact.table is not None and artifact.table.num_rows:
            encoded = pl.Series(artifact.table["encoded"])
            summary |= {"least": encoded.min(), "greatest": encoded.max()}
            if self._reveals_targets(artifact.table):
                summary[WARNING] = (
                    "the target has the same mean in every key, as where negatives are sampled for each positive of a "
                    "key: without its own fold, a row's value tells its target. Name a fold_by that a positive shares "
                    "with its negatives, fit on rows before the sampling, or leave the feature out"
                )
        return summary

    def _reveals_targets(self, table: pa.Table) -> bool:
        """True if all keys have one mean, but other means without each fold: those differ by what is left out alone."""

        def spread(name: str) -> float:
            values = table[name].to_numpy()
            return float(values.max() - values.min())

        names = _encoded_names(self._means)
        scale = max(1e-300, float(np.abs(table["encoded"].to_numpy()).max()))
        return (
            table.num_rows > 1
            and spread("encoded") <= _SAME * scale
            and any(spread(name) > _DIFFERENT * scale for name in names[1:])
        )

    def _mean(self, counts: list[int], sums: list[Bins], without: int) -> float:
        """The target's mean over the rows outside of a fold; -1: over all rows."""
        others = [fold for fold in range(len(counts)) if fold != without]
        count = sum(counts[fold] for fold in others)
        if count:
            return float(total(_join([sums[fold] for fold in others])) / count)
        column = self.parameters.target
        if not sum(counts):
            raise DataError(f"no target to learn from: got no value in column {column!r}, expected at least one")
        raise DataError(
            f"all rows with a target are in one of {len(counts)} folds: got fold {without}, expected at least two. "
            "Name a fold_by with more values, or write folds: 1"
        )

    def _encode(self, state: pl.DataFrame, means: list[float]) -> pl.DataFrame:
        by_group = GroupedState.by(state, self.groups.names)
        smoothing, counts = self.parameters.smoothing, by_group.counts()
        columns = {"encoded": _smooth(by_group.sums()[0], counts, means[0], smoothing)}
        folds = by_choice(by_group.state[_FOLD].to_numpy(), self.parameters.folds)
        parts = [folds.get(fold, _NOWHERE) for fold in range(len(means) - 1)]
        for name, mean, (count, sums) in zip(self._columns[2:], means[1:], by_group.leave_out(parts), strict=True):
            columns[name] = _smooth(sums, count, mean, smoothing)
        encoded = {name: pl.Series(column) for name, column in columns.items()}
        return by_group.groups.with_columns(count=pl.Series(counts), **encoded)

    @property
    def _columns(self) -> tuple[str, ...]:
        return ("count", *_encoded_names(self._means))

    def _empty(self) -> pl.DataFrame:
        counts = {"count": pl.Int64()}
        return pl.DataFrame(schema=self.groups.schema() | counts | dict.fromkeys(self._columns[1:], pl.Float64()))


def _encoded_names(means: int) -> tuple[str, ...]:
    return ("encoded", *(f"encoded without fold {fold}" for fold in range(means - 1)))


def _smooth(sums: Floats, counts: npt.NDArray[np.int64], mean: float, smoothing: float) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = (sums + mean * smoothing) / (counts + smoothing)
    return np.where(counts == 0, mean, found)


def _join(sums: Sequence[Bins]) -> Bins:
    merged: dict[int, int] = {}
    for bins in sums:
        for bin_index, units in bins.items():
            merged[bin_index] = merged.get(bin_index, 0) + units
    return normal(merged)


def folds(columns: Sequence[pl.Series], parameters: TargetEncoding, rows: int) -> Bytes:
    """The fold of each row, from the columns of `fold_by`: uint8 [N]."""
    if not columns:
        return np.zeros(rows, np.uint8)
    hashes = key_hash(columns, parameters.seed)
    found: Bytes = (hashes % np.uint64(parameters.folds)).astype(np.uint8)
    return found


def _check(parameters: TargetEncoding, side_values: Mapping[str, Value]) -> None:
    if "target" in side_values:
        check_numbers(side_values["target"], "target", parameters.target)
    for role, name in parameters.fold_columns.items():
        if not hashable(pl.Series(dtype=side_values[role].dtype).to_arrow().type):
            raise SpecError(
                f"fold_by has a column without a hash: got {name!r} of {side_values[role].kind}s, expected integers, "
                "floats, booleans, strings, binary values, dates or timestamps. Name another column"
            )


@op(
    per_value=True,
    inputs=(KEY,),
    repeats=True,
    gives="float64, or lists of it",
    parameters=TargetEncoding,
    examples=(
        example_of_several(
            "target_encoding",
            {"target": "clicked", "folds": 1, "smoothing": 1},
            [(pl.Int64(), [7, 7, 8, None]), (pl.Int64(), [1, 1, 0, 0])],
            [2.5 / 3, 2.5 / 3, 0.25, 0.25],
        ),
    ),
    learns=Learning(
        learner=lambda parameters, values: TargetMeans(groups=GroupKeys.of(values), parameters=parameters),
        side_columns=lambda parameters: {"target": parameters.target, **parameters.fold_columns},
        row_roles=lambda parameters: tuple(parameters.fold_columns),
        check=_check,
    ),
)
def target_encoding(
    values: Sequence[Value], parameters: TargetEncoding, artifact: Artifact, side_values: Mapping[str, Value]
) -> Value:
    """The mean of a target over all rows of the same key, smoothed towards the mean of all rows.

    A key is a value of one column, or the values of several together. It becomes `(sum + mean * smoothing) / (count +
    smoothing)`: count and sum of the target over the key's rows, and the mean over all rows. A key that did not occur
    in the fit becomes the mean, and counts as unknown in `oov_rate`. Null is a key like any other. The elements of a
    list are separate keys, each with its row's target; a null list stays null.

    **Out of fold.** A row that the fit [has seen](fitting.md#rows-that-were-learnt-from) gets the value without its own
    fold: count, sum and mean are those of the other folds, so none of them contains its own target. The fold is the
    hash of the columns of `fold_by`, modulo `folds`: the hash of a [sample's key](snapshots.md#sampling), with the
    seed, so that a row has the same fold on every machine, however the table is cut. Rows with equal values share a
    fold: with a request's id each row is left out alone, with a user's id all rows of a user are left out together. Any
    other row, such as one of a held-out day, gets the value over all rows. So does every row in serving (`transform`),
    which needs neither target nor `fold_by`.

    Where negatives were sampled for each positive of a key, every key has the same mean, and leaving out a fold tells
    what was in it: a positive row gets less than a negative one. `feedline fit` warns of that; a `fold_by` that a
    positive shares with its negatives avoids it.

    Rows whose target is null, NaN or infinite are left out; true is 1, false 0. Sums are exact, so the result does not
    depend on the order of rows or the partition of the table, to the last bit.

    A process that looks up keys holds (`folds` + 4) numbers of 8 bytes per key, and the index: 52 bytes for an integer,
    68 and the characters for a string. More than `max_memory` is an error.

    Like `TargetEncoding` in NVTabular and `TargetEncoder(smooth=…)` in scikit-learn (Micci-Barreca 2001). NVTabular
    takes the mean over all rows in training too, which leaks a row's own target.
    """
    keys = GroupKeys.of(values)
    check_artifact(artifact, keys, parameters.max_memory, _SMALLER)
    row_columns = [side_values[role].expr for role in (*parameters.fold_columns, SEEN) if role in side_values]

    positions, lookup = keys.positions(values, artifact)
    names = _encoded_names(len(artifact.facts["means"]))

    def run(found_at: pl.Series, *row_columns: pl.Series) -> pl.Series:
        rows, group_columns = KeyedRows.of([found_at]), GroupColumns(keys, artifact)
        found, means = rows.keys[0].to_numpy(), np.array(artifact.facts["means"])
        if not row_columns:
            return rows.series(np.where(found, group_columns.take("encoded", found), means[0]))
        columns, seen_mark = row_columns[: len(parameters.fold_columns)], row_columns[len(parameters.fold_columns) :]
        without = folds(columns, parameters, len(found_at)) + np.uint8(1)
        if seen_mark:  # unseen rows get the first mean, over all folds
            without *= seen_mark[0].to_numpy()
        return rows.series(group_columns.take_each(names, rows.repeat(without), found, means))

    dtype = pl.List(pl.Float64()) if keys.listed else pl.Float64()
    return Value(expr=over_columns([positions, *row_columns], run, dtype), dtype=dtype, lookup=lookup)
