"""Measure what decoding each column costs, in CPU time, on sampled blocks.

Runs in: the process that explains. A run decodes all columns of a chunk in one call. Here each column is decoded alone,
beside a column that no file has, which comes as nulls: what that takes by itself is opening files and filter. What a
call takes that decodes anything follows from the smallest columns, alone and together. Both are `shared`, and a column
costs what it takes beyond. All columns are decoded as in a run, too: the sum may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.jobs import CompiledJob
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest
from feedline.expressions.column_parts import part_of
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.read import arrow_columns, bytes_of
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.workbench.explain.cpu_time import CpuBudget, CpuEstimate, estimate, measure_in_turn
from feedline.workbench.explain.sampled_blocks import BlockSample

_MOST_COLUMNS = 400  # that are decoded one by one: the largest; the others as one
_SMALLEST = 8  # columns that tell what a call takes
_CALLS_S = 0.0015  # CPU of a call for one column of a piece, about: so that a budget is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAs:
    """How a file stores a column, and who decodes it. decoder: `kernel`, or `pyarrow` and why; encodings, codecs: of
    its first row group's Parquet columns."""

    encodings: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ()
    decoder: str = "kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCost:
    """A column, or a part of one: CPU seconds and compressed bytes per million rows. is_measured: alone; else it has
    its part of what is left, by bytes."""

    name: str
    cpu_s: CpuEstimate
    nbytes: int
    stored: StoredAs
    is_measured: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCosts:
    """CPU seconds per million rows. shared: of opening files, filter and calls; whole: of all columns as a run decodes
    them."""

    columns: tuple[ColumnCost, ...]
    shared: CpuEstimate
    whole: CpuEstimate

    @property
    def difference_s(self) -> float:
        """What a run takes beyond the sum of all that was measured alone; negative where it takes less."""
        return self.whole.cpu_s - self.shared.cpu_s - sum(column.cpu_s.cpu_s for column in self.columns)


def decode_columns(compiled: CompiledJob, request: BlockRequest, columns: Sequence[str] | None) -> None:
    """Decode columns of a block's rows, all of the job's if None, and drop them."""
    for piece in request.pieces:
        for _ in piece_chunks(compiled, piece, columns, as_stored=True):
            pass


def measure_decoding(
    sample: BlockSample, compiled: CompiledJob, snapshot: Snapshot, budget: CpuBudget, *, rounds: int
) -> DecodeCosts:
    """Decode the sample's columns, each alone and all together."""
    per_million = 1e6 / max(int(snapshot.rows_per_row_group[sample.row_groups].sum()), 1)
    sizes = {
        name: round(bytes_of(snapshot, sample.row_groups, [name]) * per_million)
        for name in compiled.columns
        if name in snapshot.schema.names or part_of(name) is not None
    }
    most = budget.calls(3 * _CALLS_S * sum(len(request.pieces) for request in sample.requests))
    names = sorted(sizes, key=lambda name: (-sizes[name], name))[: min(_MOST_COLUMNS, most)]
    rest = tuple(name for name in compiled.columns if name not in names)
    nothing = _free_name(compiled.schema)
    beside = replace(compiled, schema=compiled.schema.append(pa.field(nothing, pa.int8())))

    def decode(job: CompiledJob, columns: Sequence[str] | None) -> None:
        for request in sample.requests:
            decode_columns(job, request, columns)

    works: list[Callable[[], None]] = [partial(decode, compiled, None), partial(decode, beside, (nothing,))]
    works += [partial(decode, beside, (nothing, name)) for name in names]
    works += [partial(decode, beside, (nothing, *rest))] if rest else []
    works.append(partial(decode, beside, (nothing, *names[-_SMALLEST:])))
    seconds = measure_in_turn(works, budget, rounds=rounds) * sample.per_million
    beyond = seconds[:, 2:] - seconds[:, [1]]
    call_s = _call_seconds(beyond[:, : len(names)][:, -_SMALLEST:], beyond[:, -1])
    alone = [estimate(beyond[:, index] - call_s).positive() for index in range(len(names) + bool(rest))]
    stored = stored_as(sample.requests[0].pieces[0].fragment, compiled.columns, compiled.schema)
    costs = dict(zip(names, alone, strict=False))
    if rest:
        costs |= _divide(alone[-1], {name: sizes.get(name, 0) for name in rest})
    return DecodeCosts(
        columns=tuple(
            ColumnCost(
                name=name,
                cpu_s=costs[name],
                nbytes=sizes.get(name, 0),
                stored=stored.get(name, StoredAs()),
                is_measured=name not in rest or len(rest) == 1,
            )
            for name in compiled.columns
        ),
        shared=estimate(seconds[:, 1] + call_s),
        whole=estimate(seconds[:, 0]),
    )


def _call_seconds(alone: NDArray[np.float64], together: NDArray[np.float64]) -> float:
    """What a call takes that decodes anything: n columns alone take (n - 1) times that more than together. alone:
    float64 [rounds, n]; together: float64 [rounds]."""
    count = alone.shape[1]
    if count < 2:
        return 0.0
    found = float(np.median((alone.sum(axis=1) - together) / (count - 1)))
    return min(max(found, 0.0), max(float(np.median(alone, axis=0).min()), 0.0))


def _divide(whole: CpuEstimate, weights: Mapping[str, float]) -> dict[str, CpuEstimate]:
    total = sum(weights.values())
    return {name: whole.scaled(weight / total if total else 1 / len(weights)) for name, weight in weights.items()}


def _free_name(schema: pa.Schema) -> str:
    name = "__nothing"
    while schema.get_field_index(name) >= 0:
        name = f"_{name}"
    return name


def stored_as(fragment: Fragment, columns: Sequence[str], schema: pa.Schema) -> dict[str, StoredAs]:
    """How the file of a fragment stores these columns; those that it has not are left out."""
    left = arrow_columns(fragment, columns, schema)
    found = {}
    with fragment.open() as file:
        group = file.metadata.row_group(fragment.row_groups[0])
        for name in columns:
            part = part_of(name)
            column = name if name in file.stored or part is None else part.column
            if column not in file.stored:
                continue
            chunks = [group.column(leaf) for leaf in file.stored[column]]
            encodings = [_encoding(chunk.encodings) for chunk in chunks]
            reason = left.get(column)
            found[name] = StoredAs(
                encodings=tuple(dict.fromkeys(encodings)),
                codecs=tuple(dict.fromkeys(str(chunk.compression).lower() for chunk in chunks)),
                decoder="kernel" if reason is None else f"pyarrow: {reason}",
            )
    return found


def _encoding(names: Sequence[str]) -> str:
    """The encoding of a chunk's values, of all that its pages name (levels are always RLE)."""
    if any("DICTIONARY" in name for name in names):
        return "DICTIONARY"
    return next((name for name in names if name not in ("RLE", "BIT_PACKED")), names[0] if names else "")
