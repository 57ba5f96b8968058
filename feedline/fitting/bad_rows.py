"""Find all rows of some row groups that a run would refuse, or that break an expectation alone, with the reasons.

Runs in: threads of the process that checks, or Dask workers. A chunk of rows goes through the code of blocks once. Only
if that fails, or the chunk's quality breaks a bound, its rows are judged one by one: those that features cannot be
computed of (`failing_rows`), then those whose finished values break a rule (`bad_values`). Without them the chunk must
pass; if it does not, that is an error, and no row is blamed for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, StageClock, expanded_chunk
from feedline.blocks.environment import check_environment
from feedline.blocks.jobs import CompiledJob, compile_job, find_job
from feedline.blocks.request import Job
from feedline.errors import DataError
from feedline.loader.encoding.bad_values import bad_rows_of
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.quality import Observer, Quality, measures
from feedline.spec.expectations import Expectation, broken_bounds
from feedline.transforms.compile.compiled import CompiledFeatures, Output, compile_some
from feedline.transforms.compile.failing_rows import failing_rows
from feedline.transforms.values.lookup_counts import RowLookups
from feedline.warehouse.reading.fragment import Chunk, Fragment, pack_mask
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.storage.faults import label

Bools = NDArray[np.bool_]
Reasons = dict[tuple[str, str], Bools]  # by feature and reason, which rows


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCheck:
    """What all tasks of a check share. unfitted: features whose fit is missing, whose values have no meaning yet.
    most: bad rows after which a task may end early, as they are too many."""

    job: Job
    unfitted: frozenset[str]
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRows:
    """Bad rows of one row group. index: of the row group among the task's. kept: its rows; bits: those that are bad.
    reasons: feature, reason, how many rows, and the first of them."""

    index: int
    kept: int
    rows: int
    bits: bytes
    reasons: tuple[tuple[str, str, int, int], ...]


def find_bad_rows(check: RowCheck, fragments: Sequence[Fragment]) -> tuple[BadRows, ...]:
    """The bad rows of some fragments, whose rows were counted; of more than `check.most`, some.

    Raises DataError for what no row is to blame for, and what reading raises.
    """
    job = find_job(check.job)
    check_environment(job.environment)
    judge = _Judge(check, compile_job(job))
    found: list[BadRows] = []
    alone = (fragment.alone(position) for fragment in fragments for position in range(len(fragment.row_groups)))
    for index, fragment in enumerate(alone):
        bad = judge.row_group(index, fragment)
        if bad is not None:
            found.append(bad)
        if sum(each.rows for each in found) > check.most:
            break
    return tuple(found)


class _Judge:
    """Judges rows by a job's features."""

    def __init__(self, check: RowCheck, compiled: CompiledJob) -> None:
        self._most = check.most
        self._compiled = compiled
        self._schema = compiled.layout.schema.expanded
        self._bounds = {
            feature.name: bounds
            for feature in check.job.features
            if feature.name not in check.unfitted
            and (bounds := tuple(bound for bound in feature.expect if bound.per_row))
        }
        self._some: dict[frozenset[str], CompiledFeatures] = {}

    def row_group(self, index: int, fragment: Fragment) -> BadRows | None:
        """The bad rows of a fragment's only row group; None if there are none."""
        kept = fragment.expected[0]
        bad = np.zeros(kept, np.bool_)
        totals: dict[tuple[str, str], tuple[int, int]] = {}
        for chunk in self._chunks(fragment):
            if self._is_clean(chunk):
                continue
            for key, rows in self._reasons(chunk).items():
                bad[chunk.start : chunk.start + len(rows)] |= rows
                count, first = totals.get(key, (0, chunk.start + int(np.argmax(rows))))
                totals[key] = count + int(rows.sum()), first
            if np.count_nonzero(bad) > self._most:
                break
        if not totals:
            return None
        reasons = tuple((*key, *counts) for key, counts in sorted(totals.items()))
        return BadRows(index=index, kept=kept, rows=int(np.count_nonzero(bad)), bits=pack_mask(bad), reasons=reasons)

    def _chunks(self, fragment: Fragment) -> Iterator[Chunk]:
        compiled = self._compiled
        return read_fragment(
            fragment,
            compiled.columns,
            compiled.where,
            compiled.schema,
            sample=compiled.sample,
            marks=compiled.marks,
            compact=compiled.compact,
            coded=compiled.coded,
            expanded=compiled.expanded,
        )

    def _is_clean(self, chunk: Chunk) -> bool:
        """Whether a run would take all rows of a chunk, and none breaks a bound."""
        encoder = BlockEncoder(self._compiled, StageClock(), whole=False)
        encoder.begin_piece()
        try:
            encoder.add(chunk)
            encoder.finish()
        except DataError:
            return False
        return not self._broken(encoder.observer.quality())

    def _broken(self, quality: Quality) -> list[tuple[str, Expectation]]:
        values = measures(quality, self._compiled.layout.schema, self._bounds)
        return [(name, bound) for name, bounds in self._bounds.items() for bound in broken_bounds(bounds, values[name])]

    def _reasons(self, chunk: Chunk) -> Reasons:
        """The bad rows of a chunk that has some."""
        frame = expanded_chunk(chunk)
        found = self._judge(frame)
        bad = np.logical_or.reduce(list(found.values())) if found else np.zeros(frame.height, np.bool_)
        if np.count_nonzero(bad) <= self._most:  # else perhaps not all were found
            self._confirm(frame.filter(pl.Series(~bad)), label(chunk.uri, chunk.row_group))
        return found

    def _judge(self, frame: pl.DataFrame) -> Reasons:
        features = self._compiled.features
        found: Reasons = {}
        try:
            found |= self._finished(features, frame)
        except DataError:
            failing = failing_rows(features, frame, self._most)
            if not failing:
                raise
            rest = frozenset(output.name for output in features.outputs if output.name not in failing)
            if rest:
                found |= self._finished(self._features(rest), frame)
            for name, rows in failing.items():
                found[name, f"cannot be computed ({self._schema[name].chain})"] = rows
                if np.count_nonzero(rows) > self._most:  # perhaps not all were found
                    continue
                others = self._finished(self._features(frozenset({name})), frame.filter(pl.Series(~rows)))
                for key, marked in others.items():
                    found[key] = np.zeros(frame.height, np.bool_)
                    found[key][np.flatnonzero(~rows)[marked]] = True
        return found

    def _features(self, names: frozenset[str]) -> CompiledFeatures:
        if names not in self._some:
            self._some[names] = compile_some(self._compiled.features, names)
        return self._some[names]

    def _finished(self, features: CompiledFeatures, frame: pl.DataFrame) -> Reasons:
        """The rows whose finished features break a rule. Raises DataError if one cannot be computed."""
        lookups: dict[str, list[RowLookups]] = {}
        columns, _ = features.apply_counting(frame, None, lookups)
        series = columns if not isinstance(columns, pl.DataFrame) else {each.name: each for each in columns}
        found: Reasons = {}
        for output in features.outputs:
            reasons = bad_rows_of(
                self._schema[output.name],
                series[output.name],
                self._bounds.get(output.name, ()),
                _null_inputs(frame, output),
                [missed for _, missed in lookups.get(output.name, ())],
            )
            found |= {(output.name, reason): rows for reason, rows in reasons.items()}
        return found

    def _confirm(self, frame: pl.DataFrame, place: str) -> None:
        """Raise DataError if rows that were found good are refused."""
        if not frame.height:
            return
        features = self._compiled.features
        observer = Observer(self._schema, [output.reads for output in features.outputs])
        try:
            columns, lookups = features.apply_counting(frame)
            observer.count_rows(frame)
            encode(columns, self._schema, observer, self._compiled.filters, rows=frame.height)
        except DataError as error:
            raise DataError(f"rows of {place} fail together, though none of them fails alone: {error}") from error
        for name, counts in lookups.items():
            observer.count_lookups(name, counts)
        assert not (broken := self._broken(observer.quality())), f"rows without a fault break {broken} in {place}"


def _null_inputs(frame: pl.DataFrame, output: Output) -> Bools:
    """bool [rows]: where a column that a feature reads is null."""
    nulls = [frame.get_column(name).is_null().to_numpy() for name in output.reads if name in frame.columns]
    return np.logical_or.reduce(nulls) if nulls else np.zeros(frame.height, np.bool_)
