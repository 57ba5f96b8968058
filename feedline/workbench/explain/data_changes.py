"""Find changes of data and features that would cost less, and measure each on sampled blocks.

Runs in: the process that explains. A change is a job and requests of its own: a feature less, shorter lists, the same
rows in other files, from a cache, or deduplicated. Its blocks are computed in turn with those of today, packed as a
slot is, since less data is also less to copy; the gain is the median difference in CPU time. Changes that gain nothing
that can be told from noise are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline.blocks.jobs import CompiledJob, compile_job
from feedline.blocks.piece_chunks import piece_chunks
from feedline.blocks.request import BlockRequest, PieceRequest
from feedline.config.dedup_section import DedupSpec
from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import FeedlineError
from feedline.expressions.column_parts import has_column, part_of
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.source_plan import SourcePlan
from feedline.resources.scratch import scratch_folder
from feedline.transforms.compile.dedup_groups import assign_groups
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.optimize.survey import file_fragment, null_paths, without_nulls
from feedline.warehouse.parquet.encodings import choose
from feedline.warehouse.parquet.writer import DICTIONARY, PLAIN, SUFFIX, Encoding, leaf_paths, writer_options
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.reading.read import read_arrow
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.workbench.explain.cost_account import CostAccount, FeatureAccount
from feedline.workbench.explain.cpu_time import NO_CPU, ROUNDS, CpuBudget, estimate, measure_in_turn
from feedline.workbench.explain.measured_costs import ChangeKind, DataChange
from feedline.workbench.explain.pass_costs import (
    REPEATS,
    STAGES,
    BlockSample,
    StageSeconds,
    bare_job,
    run_sample,
    stage_seconds,
)

# --------------------------------------------------------------------------------------------------------------------
# Write the rows that sampled blocks read as other Parquet files, and read the same blocks from these. Only columns
# that blocks read are written: every row of the row groups, in other encodings, or in larger row groups. A request of
# the new files has the same rows in the same order.

ROW_GROUP_ROWS = 65_536  # that `optimize` writes unless it is asked for others
_READ_ROWS = 1 << 20
_CHOICE_BYTES = 2 << 20  # of a column, on which its encoding is chosen: a quarter of what `optimize` takes
_DICTIONARY_BYTES = 1 << 20  # pyarrow's, of a table that another program wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenSample:
    """The sample with requests of new files. nbytes: of the new files' columns; before: of the same columns now.
    row_group_rows: the mean of the new row groups."""

    sample: BlockSample
    nbytes: int
    before: int
    row_group_rows: int


def read_columns(compiled: CompiledJob) -> list[str]:
    """The columns of the table that a job's blocks read, partition columns among them."""
    names = {*compiled.columns, *(part for mark in compiled.marks for part in mark.parts)}
    names |= set() if compiled.where is None else set(compiled.where.parts)
    names |= set() if compiled.sample is None else set(compiled.sample.parts)
    found = set()
    for name in names:
        part = None if has_column(compiled.schema, name) else part_of(name)
        found.add(name if part is None else part.column)
    return [name for name in compiled.schema.names if name in found]


def mean_row_group_rows(sample: BlockSample, rows_per_row_group: NDArray[np.int64]) -> float:
    """The mean rows of the row groups that an epoch reads. rows_per_row_group: int64 [row groups of the table]."""
    return float(rows_per_row_group[sample.row_groups].mean()) if len(sample.row_groups) else 0.0


def rewrite_sample(
    sample: BlockSample, compiled: CompiledJob, folder: Path, *, better: Sequence[str] = (), merge: bool = False
) -> RewrittenSample:
    """Write the sample's row groups. better: columns whose encodings are chosen for decoding, as `optimize` chooses
    them; the others keep theirs. merge: row groups of a block are joined to ones of `ROW_GROUP_ROWS`.
    """
    writer = _SampleWriter(sample, compiled, folder, frozenset(better))
    requests, before = list[BlockRequest](), 0
    for request in sample.requests:
        groups = _joined(request) if merge else [[piece] for piece in request.pieces]
        pieces = tuple(writer.write(group, merge=merge) for group in groups)
        requests.append(replace(request, pieces=pieces))
        before += sum(writer.bytes_now(piece.fragment) for piece in request.pieces)
    nbytes = sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
    return RewrittenSample(
        sample=replace(sample, requests=tuple(requests)),
        nbytes=nbytes,
        before=before,
        row_group_rows=round(writer.rows / max(writer.groups, 1)),
    )


def _joined(request: BlockRequest) -> list[list[PieceRequest]]:
    """Pieces that may be one: each is read to its end and the next from its start, of the same partition."""
    if request.draws is not None or request.buckets is not None:
        return [[piece] for piece in request.pieces]
    groups: list[list[PieceRequest]] = []
    rows = 0
    for piece in request.pieces:
        before = groups[-1][-1] if groups else None
        follows = (
            before is not None
            and before.skip + before.rows == _rows_of(before.fragment)
            and piece.skip == 0
            and piece.fragment.partition == before.fragment.partition
            and rows + _rows_of(piece.fragment) <= ROW_GROUP_ROWS
        )
        if follows:
            groups[-1].append(piece)
            rows += _rows_of(piece.fragment)
        else:
            groups.append([piece])
            rows = _rows_of(piece.fragment)
    return groups


def _rows_of(fragment: Fragment) -> int:
    return sum(fragment.rows_of(position) for position in range(len(fragment.row_groups)))


class _SampleWriter:
    """Writes pieces into a folder, each as a file; encodings are those of the first one."""

    def __init__(self, sample: BlockSample, compiled: CompiledJob, folder: Path, better: frozenset[str]) -> None:
        self._folder, self._better = folder, better
        first = sample.requests[0].pieces[0].fragment
        keys = {name for name, _ in first.partition}
        self._columns = [name for name in read_columns(compiled) if name not in keys]
        self._schema = compiled.schema
        self._encodings: list[Encoding] = []
        self._target: pa.Schema | None = None
        self._count = 0
        self.rows = self.groups = 0

    def bytes_now(self, fragment: Fragment) -> int:
        """Compressed bytes of the columns in a fragment's row groups."""
        with fragment.open() as file:
            leaves = [leaf for name in self._columns for leaf in file.stored.get(name, ())]
            groups = [file.metadata.row_group(index) for index in fragment.row_groups]
            return sum(int(group.column(leaf).total_compressed_size) for group in groups for leaf in leaves)

    def write(self, pieces: Sequence[PieceRequest], *, merge: bool) -> PieceRequest:
        """Write the row groups of pieces as one file, and return the piece that reads their rows from it."""
        fragments = [piece.fragment for piece in pieces]
        has_gaps = any(bits is not None for fragment in fragments for bits in fragment.excluded)
        tables = [self._read(fragment, index) for fragment in fragments for index in range(len(fragment.row_groups))]
        expected = [count for fragment in fragments for count in fragment.expected]
        if merge and not has_gaps:
            tables, expected = [pa.concat_tables(tables)], [sum(expected)]
        if not self._encodings:
            self._encodings = self._choose(fragments[0], tables[0])
        path = self._folder / f"{self._count:05d}{SUFFIX}"
        self._count += 1
        self._write(path, tables)
        snapshot = take_snapshot(str(path))
        written = file_fragment(snapshot, 0)
        fragment = replace(
            written,
            expected=tuple(expected),
            partition=fragments[0].partition,
            proofs=() if len(expected) != len(fragments[0].proofs) else fragments[0].proofs,
            excluded=() if not has_gaps else tuple(bits for one in fragments for bits in one.excluded),
            decoder=fragments[0].decoder,
        )
        return PieceRequest(fragment=fragment, skip=pieces[0].skip, rows=sum(piece.rows for piece in pieces))

    def _read(self, fragment: Fragment, position: int) -> pa.Table:
        one = replace(fragment.alone(position), expected=(UNCOUNTED,), proofs=(), excluded=())
        return read_arrow(one, self._columns, None, self._schema, chunk_rows=_READ_ROWS).combine_chunks()

    def _choose(self, fragment: Fragment, table: pa.Table) -> list[Encoding]:
        """The encodings of all leaves, and the schema of files: without nulls where the first row group has none."""
        nulls = frozenset(path for name in table.schema.names for path in null_paths(name, _whole(table[name])))
        better = {name for name in table.schema.names if name in self._better}
        fields = [without_nulls(each, nulls) if each.name in better else each for each in table.schema]
        chosen: dict[str, list[Encoding]] = {}
        for name in better:
            column = table.select([name])
            rows = max(1, int(column.num_rows * min(1.0, _CHOICE_BYTES / max(column.nbytes, 1))))
            one = column.slice(0, rows).cast(pa.schema([each for each in fields if each.name == name]))
            chosen[name] = [choice.encoding for choice in choose(one, "decode")]
        self._target = pa.schema(fields)
        found: list[Encoding] = []
        for each in self._target:
            leaves = list(leaf_paths(pa.schema([each])).items())
            found += chosen.get(each.name) or self._stored(fragment, each.name, leaves)
        return found

    def _stored(self, fragment: Fragment, name: str, leaves: Sequence[tuple[str, str]]) -> list[Encoding]:
        """The encodings that a column has, as far as a writer can be asked for them."""
        with fragment.open() as file:
            group = file.metadata.row_group(fragment.row_groups[0])
            chunks = [group.column(leaf) for leaf in file.stored.get(name, ())]
            if len(chunks) != len(leaves):
                return [Encoding(leaf=leaf, encoding=DICTIONARY, codec="zstd") for leaf, _ in leaves]
            return [
                Encoding(leaf=leaf, encoding=_encoding_of(chunk.encodings), codec=_codec_of(chunk.compression))
                for (leaf, _), chunk in zip(leaves, chunks, strict=True)
            ]

    def _write(self, path: Path, tables: Sequence[pa.Table]) -> None:
        assert self._target is not None
        options = writer_options(self._encodings)
        if not self._better:
            options["dictionary_pagesize_limit"] = _DICTIONARY_BYTES
        schema = self._target
        if any(_breaks(table, schema) for table in tables):  # a later row group has nulls
            schema = pa.schema([tables[0].schema.field(name) for name in schema.names])
        self.rows += sum(table.num_rows for table in tables)
        self.groups += len(tables)
        with pq.ParquetWriter(str(path), schema, **options) as writer:
            for table in tables:
                writer.write_table(table.cast(schema), row_group_size=max(table.num_rows, 1))


def _breaks(table: pa.Table, schema: pa.Schema) -> bool:
    """Whether a column holds a null where the schema has none."""
    return any(
        any(True for _ in null_paths(field.name, _whole(table[field.name])))
        for field in schema
        if not field.nullable or (pa.types.is_nested(field.type) and field != table.schema.field(field.name))
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _encoding_of(names: Sequence[str]) -> str:
    if any("DICTIONARY" in name for name in names):
        return DICTIONARY
    return next((name for name in names if name not in ("RLE", "BIT_PACKED")), PLAIN)


def _codec_of(name: str) -> str:
    return "none" if name == "UNCOMPRESSED" else name.lower()


# --------------------------------------------------------------------------------------------------------------------

_FEATURES = 3  # that are dropped or shortened, each by itself
_LEAST_SHARE = 0.05  # of the CPU time that a feature or an op must take to be tried
_SHORTENS = ("first_x", "list_slice", "pad")  # ops that bound the length of lists
_PERCENTILE = 95
_MOST_KEPT = 0.9  # of the elements of lists, where shortening is tried
_BETTER_COLUMNS, _BETTER_SHARE = 8, 0.9  # columns whose encodings are tried: those that take most of decoding
_CHOOSING_S = 0.5  # CPU of choosing a column's encoding, about
_FEW_ROWS = ROW_GROUP_ROWS // 2  # of row groups that are joined


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """A change that is to be measured."""

    change: DataChange
    sample: BlockSample


def find_changes_of_data(
    plan: SourcePlan,
    sample: BlockSample,
    account: CostAccount,
    *,
    budget_s: float = float("inf"),
    rounds: int = ROUNDS,
    only: Collection[ChangeKind] | None = None,
) -> list[DataChange]:
    """Measure the changes that may pay, those that gain most first. only: these kinds (default: all)."""
    budget = CpuBudget(budget_s)
    compiled = compile_job(sample.job)
    block_s = account.block_s.cpu_s / sample.per_million
    better = _slow_columns(account)
    makers: list[tuple[ChangeKind, float, Callable[[Path], list[_Trial]]]] = [  # with CPU seconds to prepare, about
        ("drop", 0.0, lambda _: _dropped(sample, account)),
        ("truncate", block_s, lambda _: _truncated(sample, compiled, account)),
        ("row_groups", 3 * block_s, partial(_larger_row_groups, plan, sample, compiled)),
        ("cache", 3 * block_s, partial(_cached, plan, sample)),
        ("dedup", 4 * block_s, lambda _: _deduplicated(plan, sample)),
        ("optimize", 3 * block_s + _CHOOSING_S * len(better), partial(_optimized, plan, sample, compiled, better)),
    ]
    with ExitStack() as stack:
        candidates: list[_Trial] = []
        for kind, prepare_s, make in makers:
            enough = budget.left_s >= prepare_s + 2 * block_s * (len(candidates) + _FEATURES)
            if (only is None or kind in only) and enough:
                # A codec that pyarrow does not write, a full disk: then this change is not known, the others are.
                with suppress(FeedlineError, pa.ArrowException, OSError):
                    candidates += make(stack.enter_context(scratch_folder()))
        measured = _measure(sample, candidates, budget, rounds)
    heavy = _heavy_ops(account) if only is None or "op" in only else []
    found = (replace(each, before=account.stages) for each in [*measured, *heavy] if each.is_worthwhile)
    return sorted(found, key=lambda each: -each.gain_s.cpu_s)


def _measure(sample: BlockSample, candidates: Sequence[_Trial], budget: CpuBudget, rounds: int) -> list[DataChange]:
    if not candidates:
        return []
    samples = [sample, *(candidate.sample for candidate in candidates)]
    stages: list[list[StageSeconds]] = [[] for _ in samples]

    def run(index: int) -> None:
        stages[index].append(stage_seconds(run_sample(samples[index], packed=True)))

    works = [partial(run, index) for index in range(len(samples))]
    seconds = measure_in_turn(works, budget, rounds=rounds) * sample.per_million
    before_s = float(np.median(seconds[:, 0]))
    medians = [np.median(own[-len(seconds) :], axis=0) for own in stages]
    found = []
    for index, candidate in enumerate(candidates, start=1):
        gain_s = estimate(seconds[:, 0] - seconds[:, index])
        parts = _parts_of(gain_s.cpu_s, medians[0] - medians[index])
        found.append(replace(candidate.change, gain_s=gain_s, before_s=before_s, stages=parts))
    return found


def _parts_of(gain_s: float, stages: StageSeconds) -> dict[str, float]:
    """A gain by the stages that gain."""
    gains = np.maximum(stages, 0.0)
    shares = gains / gains.sum() if gains.sum() > 0 else np.full(len(STAGES), 1 / len(STAGES))
    return dict(zip(STAGES, (gain_s * shares).tolist(), strict=True))


def _costly(account: CostAccount, *, groups: Collection[str] | None = None) -> list[FeatureAccount]:
    """The features that cost most, without labels and extras."""
    chosen = [
        feature
        for feature in account.features
        if account.share(feature) >= _LEAST_SHARE
        and feature.group not in ("label", "extra")
        and (groups is None or feature.group in groups)
    ]
    return sorted(chosen, key=lambda feature: -feature.cpu_s.cpu_s)[:_FEATURES]


def _dropped(sample: BlockSample, account: CostAccount) -> list[_Trial]:
    found = []
    for feature in _costly(account):
        others = tuple(each for each in sample.job.features if each.name != feature.name)
        if not others:
            continue
        change = DataChange(
            kind="drop",
            subject=feature.name,
            how=f"remove {feature.name} from `features`",
            loses="the model loses the feature",
            gain_s=NO_CPU,
            before_s=0.0,
            saved_bytes=feature.nbytes,
        )
        found.append(_Trial(change=change, sample=_with_features(sample, others)))
    return found


def _with_features(sample: BlockSample, features: Sequence[FeatureSpec]) -> BlockSample:
    return replace(sample, job=bare_job(sample.job, features))


def _truncated(sample: BlockSample, compiled: CompiledJob, account: CostAccount) -> list[_Trial]:
    """Lists without a bound, cut after the elements that 95 % of the rows have at most."""
    by_name = {feature.name: feature for feature in sample.job.features}
    found = []
    for feature in _costly(account, groups=("sparse",)):
        spec = by_name[feature.name]
        if spec.op is not None or spec.expr is not None or any(call.op in _SHORTENS for call in spec.ops):
            continue
        lengths = _list_lengths(sample, compiled, spec.column or spec.name)
        if lengths is None or not lengths.sum():
            continue
        most = max(1, int(np.percentile(lengths, _PERCENTILE)))
        kept = float(np.minimum(lengths, most).sum() / lengths.sum())
        if kept > _MOST_KEPT:
            continue
        call = OpCall(op="first_x", arguments=json.dumps({"": most}))
        shorter = tuple(
            replace(each, ops=(call, *each.ops)) if each.name == spec.name else each for each in sample.job.features
        )
        change = DataChange(
            kind="truncate",
            subject=feature.name,
            how=f"{feature.name}: [{{first_x: {most}}}, ...] in `features`",
            loses=f"{1 - kept:.0%} of its elements are lost, all of the longest {100 - _PERCENTILE} % of rows",
            gain_s=NO_CPU,
            before_s=0.0,
        )
        found.append(_Trial(change=change, sample=_with_features(sample, shorter)))
    return found


def _list_lengths(sample: BlockSample, compiled: CompiledJob, column: str) -> NDArray[np.int64] | None:
    """int64 [rows]: the lengths of a column's lists; None for a column of others."""
    lengths = [
        chunk.frame.get_column(column).list.len().fill_null(0).to_numpy()
        for request in sample.requests
        for piece in request.pieces
        for chunk in piece_chunks(compiled, piece, [column])
        if isinstance(chunk.frame.get_column(column).dtype, pl.List)
    ]
    return np.concatenate(lengths).astype(np.int64) if lengths else None


def _larger_row_groups(plan: SourcePlan, sample: BlockSample, compiled: CompiledJob, folder: Path) -> list[_Trial]:
    mean = mean_row_group_rows(sample, plan.snapshot.rows_per_row_group)
    if mean >= _FEW_ROWS:
        return []
    rewritten = rewrite_sample(sample, compiled, folder, merge=True)
    change = DataChange(
        kind="row_groups",
        subject=f"row groups of {mean:,.0f} rows",
        how=_optimize_command(plan, rewritten),
        gain_s=NO_CPU,
        before_s=0.0,
        saved_bytes=(rewritten.before - rewritten.nbytes) * sample.per_million,
    )
    return [_Trial(change=change, sample=rewritten.sample)]


def _optimized(
    plan: SourcePlan, sample: BlockSample, compiled: CompiledJob, better: Sequence[str], folder: Path
) -> list[_Trial]:
    if not better:
        return []
    mean = mean_row_group_rows(sample, plan.snapshot.rows_per_row_group)
    rewritten = rewrite_sample(sample, compiled, folder, better=better, merge=mean < _FEW_ROWS)
    change = DataChange(
        kind="optimize",
        subject=", ".join(better),
        how=_optimize_command(plan, rewritten, " --for decode"),
        gain_s=NO_CPU,
        before_s=0.0,
        saved_bytes=(rewritten.before - rewritten.nbytes) * sample.per_million,
    )
    return [_Trial(change=change, sample=rewritten.sample)]


def _slow_columns(account: CostAccount) -> list[str]:
    """The table's columns that take most of decoding."""
    columns = sorted(account.decoding.columns, key=lambda column: -column.cpu_s.cpu_s)
    total, taken, found = sum(max(column.cpu_s.cpu_s, 0.0) for column in columns), 0.0, list[str]()
    if total < _LEAST_SHARE * account.block_s.cpu_s:
        return []
    for column in columns[:_BETTER_COLUMNS]:
        if taken >= _BETTER_SHARE * total:
            break
        found.append(column.name)
        taken += column.cpu_s.cpu_s
    return found


def _optimize_command(plan: SourcePlan, rewritten: RewrittenSample, options: str = "") -> str:
    """The command that writes the whole table as the sample was written."""
    table, rows = plan.spec.source.table, rewritten.row_group_rows
    rows = ROW_GROUP_ROWS if rows > ROW_GROUP_ROWS // 2 else 1024 * max(1, round(rows / 1024))
    return f"feedline optimize {table if isinstance(table, str) else 'TABLE'} OUT{options} --row-group-rows {rows}"


def _cached(plan: SourcePlan, sample: BlockSample, folder: Path) -> list[_Trial]:
    """Blocks whose features are in a cache: it is filled first."""
    if plan.spec.cache is not None:
        return []
    ref = CacheRef(folder=str(folder / "cache"), size=1 << 40, free=0, shared=False, write_budget=None)
    cached = replace(sample, job=replace(sample.job, cache=ref))
    run_sample(cached, packed=True)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    change = DataChange(
        kind="cache",
        subject="all features",
        how="cache: {dir: FOLDER}, on local disk",
        loses="the first epoch fills it",
        gain_s=NO_CPU,
        before_s=0.0,
        disk_bytes=nbytes / max(sample.rows, 1) * sample.epoch_rows,
        from_epoch=1,
    )
    return [_Trial(change=change, sample=cached)]


def _deduplicated(plan: SourcePlan, sample: BlockSample) -> list[_Trial]:
    """Features in the groups that `plan --dedup` would propose, in the table's order."""
    facts = describe_proposals(plan)
    groups = [DedupSpec(name=each["name"], columns=tuple(each["columns"])) for each in facts["proposals"]]
    if not groups or facts["needs_runs"]:
        return []
    plain = [feature for feature in sample.job.features if feature.dedup is None]
    assigned = {
        feature.name: feature
        for feature in assign_groups(plain, groups, out_of_fold=plan.spec.fit.out_of_fold)
        if feature.dedup is not None
    }
    features = tuple(assigned.get(feature.name, feature) for feature in sample.job.features)
    change = DataChange(
        kind="dedup",
        subject=", ".join(group.name for group in groups),
        how=str(facts["yaml"]),
        loses="batches then have groups of unique rows, which the model must expand",
        gain_s=NO_CPU,
        before_s=0.0,
    )
    return [_Trial(change=change, sample=_with_features(sample, features))]


_CHEAPER = {
    "python": "a built-in op, or an expression",
    "expr": "a built-in op, where one computes the same",
    "ngram": "shorter lists before it: first_x",
    "cartesian": "shorter lists before it: first_x",
}


def _heavy_ops(account: CostAccount) -> list[DataChange]:
    """Ops that take much of a block: what they cost is the most that another op could gain.

    Passes tell an op's part of all ops; what those take is taken from whole blocks, which vary less.
    """
    found = []
    before = account.block_s.cpu_s
    scale = account.stages["ops"] / max(account.passes.ops_s, 1e-12)
    for cost in account.passes.features:
        for step in cost.steps:
            if step.op == REPEATS:  # no op
                continue
            part = step.cpu_s / step.sharers / max(cost.ops_s.cpu_s, 1e-12)
            gain_s = cost.ops_s.scaled(scale * min(part, 1.0))
            if gain_s.cpu_s < 2 * _LEAST_SHARE * before:
                continue
            shared = f", shared by {step.sharers} features" if step.sharers > 1 else ""
            found.append(
                DataChange(
                    kind="op",
                    subject=f"{step.op} of {cost.name}",
                    how=f"replace {step.op} of {cost.name} by {_CHEAPER.get(step.op, 'an op that costs less')}{shared}",
                    loses="this is the most that it gains: another op costs something, too",
                    gain_s=gain_s,
                    before_s=before,
                    is_measured=False,
                    stages={"ops": gain_s.cpu_s},
                )
            )
    return found
