"""Find changes of data and features that would cost less, and measure each on sampled blocks.

Runs in: the process that explains. A change is a job and requests of its own: a feature less, shorter lists, the same
rows in other files, from a cache, or deduplicated. Its blocks are computed in turn with those of today, packed as a
slot is, since less data is also less to copy; the gain is the median difference in CPU time. Changes that gain nothing
that can be told from noise are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

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
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError
from feedline.expressions.column_parts import has_column, part_of
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.histories import list_columns
from feedline.planning.source_plan import SourcePlan
from feedline.resources.scratch import scratch_folder
from feedline.transforms.compile.dedup_groups import assign_groups
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.optimize.survey import file_fragment, null_paths, without_nulls
from feedline.warehouse.parquet.encodings import choose
from feedline.warehouse.parquet.writer import DICTIONARY, PLAIN, SUFFIX, Encoding, leaf_paths, writer_options
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.history_ref import HistoryRef
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.workbench.explain.cost_account import CostAccount, FeatureAccount, value_encoding
from feedline.workbench.explain.cost_process import ChangeKind, DataChange
from feedline.workbench.explain.cpu_time import ROUNDS, CpuBudget, estimate, measure_in_turn
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


def read_columns(compiled: CompiledJob, histories: Sequence[HistoryRef] = ()) -> list[str]:
    """The columns of the table that a job's blocks read, partition columns among them; of lists of histories, those
    that decide what a row sees."""
    read = compiled.read
    names = {*read.parts, *read.row_filter().parts}
    parts = {name: None if has_column(read.schema, name) else part_of(name) for name in names}
    columns = {name if part is None else part.column for name, part in parts.items()}
    for history in histories:
        if history.names & columns:
            columns = columns - history.names | set(history.row_columns)
    return [name for name in read.schema.names if name in columns]


def mean_row_group_rows(sample: BlockSample, rows_per_row_group: NDArray[np.int64]) -> float:
    """The mean rows of the row groups that an epoch reads. rows_per_row_group: int64 [row groups of the table]."""
    return float(rows_per_row_group[sample.row_groups].mean()) if len(sample.row_groups) else 0.0


def rewrite_sample(
    sample: BlockSample, compiled: CompiledJob, folder: Path, *, better: Sequence[str] = (), merge: bool = False
) -> RewrittenSample:
    """Write the sample's row groups. better: columns whose encodings are chosen for decoding, as `optimize` chooses
    them; the others keep theirs. merge: row groups of a block are joined to ones of `ROW_GROUP_ROWS`.
    """
    writer = _SampleWriter(sample, compiled, folder, better)
    requests, before = list[BlockRequest](), 0
    for request in sample.requests:
        groups = _joined(request) if merge else [[piece] for piece in request.pieces]
        pieces = tuple(writer.write(group, merge=merge) for group in groups)
        requests.append(replace(request, pieces=pieces))
        before += sum(writer.bytes_now(piece.fragment) for piece in request.pieces)
    return RewrittenSample(
        sample=replace(sample, requests=tuple(requests)),
        nbytes=sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}")),
        before=before,
        row_group_rows=round(float(np.mean(writer.row_group_rows))),
    )


def _joined(request: BlockRequest) -> list[list[PieceRequest]]:
    """Pieces that may be one: each is read to its end and the next from its start, of the same partition."""
    if request.draws is not None or request.buckets is not None:
        return [[piece] for piece in request.pieces]
    groups: list[list[PieceRequest]] = []
    rows = 0
    for piece in request.pieces:
        size, last = _rows_of(piece.fragment), groups[-1][-1] if groups else None
        if (
            last is not None
            and last.skip + last.rows == _rows_of(last.fragment)
            and piece.skip == 0
            and piece.fragment.partition == last.fragment.partition
            and rows + size <= ROW_GROUP_ROWS
        ):
            groups[-1].append(piece)
            rows += size
        else:
            groups.append([piece])
            rows = size
    return groups


def _rows_of(fragment: Fragment) -> int:
    return sum(fragment.rows_of(position) for position in range(len(fragment.row_groups)))


class _SampleWriter:
    """Writes pieces into a folder, each as a file; encodings are those of the first one. row_group_rows: of each row
    group that was written."""

    def __init__(self, sample: BlockSample, compiled: CompiledJob, folder: Path, better: Sequence[str]) -> None:
        fragment = sample.requests[0].pieces[0].fragment
        keys = {name for name, _ in fragment.partition}
        self._columns = [name for name in read_columns(compiled, fragment.histories) if name not in keys]
        self._folder, self._schema, self._better = folder, compiled.read.schema, frozenset(better)
        self._encodings: list[Encoding] = []
        self._files = 0
        self.row_group_rows: list[int] = []

    def bytes_now(self, fragment: Fragment) -> int:
        """Compressed bytes of the columns in a fragment's row groups."""
        with fragment.open() as file:
            leaves = [leaf for name in self._columns for leaf in file.stored.get(name, ())]
            groups = [file.metadata.row_group(index) for index in fragment.row_groups]
            return sum(int(group.column(leaf).total_compressed_size) for group in groups for leaf in leaves)

    def write(self, pieces: Sequence[PieceRequest], *, merge: bool) -> PieceRequest:
        """Write the row groups of pieces as one file, and return the piece that reads their rows from it."""
        fragments = [piece.fragment for piece in pieces]
        first = fragments[0]
        has_gaps = any(bits is not None for fragment in fragments for bits in fragment.excluded)
        tables = [self._read(fragment, index) for fragment in fragments for index in range(len(fragment.row_groups))]
        expected = [count for fragment in fragments for count in fragment.expected]
        if merge and not has_gaps:
            tables, expected = [pa.concat_tables(tables)], [sum(expected)]
        path = self._folder / f"{self._files:05d}{SUFFIX}"
        self._files += 1
        self._write(path, tables, first)
        fragment = replace(
            file_fragment(take_snapshot(str(path)), 0),
            expected=tuple(expected),
            partition=first.partition,
            proofs=first.proofs if len(expected) == len(first.proofs) else (),
            excluded=tuple(bits for each in fragments for bits in each.excluded) if has_gaps else (),
            decoder=first.decoder,
            histories=first.histories,
        )
        return PieceRequest(fragment=fragment, skip=pieces[0].skip, rows=sum(piece.rows for piece in pieces))

    def _read(self, fragment: Fragment, position: int) -> pa.Table:
        row_group = replace(fragment.alone(position), expected=(UNCOUNTED,), proofs=(), excluded=())
        return read_arrow(row_group, ReadRequest(self._columns, self._schema, chunk_rows=_READ_ROWS)).combine_chunks()

    def _write(self, path: Path, tables: Sequence[pa.Table], fragment: Fragment) -> None:
        """Write tables as row groups. Columns in better encodings are not nullable where the file holds no null."""
        nulls = frozenset(
            path
            for table in tables
            for name in self._better.intersection(table.schema.names)
            for path in null_paths(name, contiguous(table[name]))
        )
        fields = tables[0].schema
        schema = pa.schema([without_nulls(each, nulls) if each.name in self._better else each for each in fields])
        self._encodings = self._encodings or self._encodings_of(fragment, tables[0], schema)
        options = writer_options(self._encodings)
        if not self._better:
            options["dictionary_pagesize_limit"] = _DICTIONARY_BYTES
        with pq.ParquetWriter(str(path), schema, **options) as writer:
            for table in tables:
                self.row_group_rows.append(table.num_rows)
                writer.write_table(table.cast(schema), row_group_size=max(table.num_rows, 1))

    def _encodings_of(self, fragment: Fragment, table: pa.Table, schema: pa.Schema) -> list[Encoding]:
        encodings: list[Encoding] = []
        for field in schema:
            if field.name not in self._better:
                encodings += _stored_encodings(fragment, field)
                continue
            column = table.select([field.name]).cast(pa.schema([field]))
            rows = max(1, int(column.num_rows * min(1.0, _CHOICE_BYTES / max(column.nbytes, 1))))
            encodings += [choice.encoding for choice in choose(column.slice(0, rows), "decode")]
        return encodings


def _stored_encodings(fragment: Fragment, field: pa.Field) -> list[Encoding]:
    """The encodings that a column has, as far as a writer can be asked for them."""
    leaves = leaf_paths(pa.schema([field]))
    with fragment.open() as file:
        group = file.metadata.row_group(fragment.row_groups[0])
        chunks = [group.column(leaf) for leaf in file.stored.get(field.name, ())]
        stored = [(value_encoding(chunk.encodings, PLAIN), chunk.compression.lower()) for chunk in chunks]
    if len(stored) != len(leaves):
        stored = [(DICTIONARY, "zstd")] * len(leaves)
    return [
        Encoding(leaf=leaf, encoding=encoding, codec="none" if codec == "uncompressed" else codec)
        for leaf, (encoding, codec) in zip(leaves, stored, strict=True)
    ]


# --------------------------------------------------------------------------------------------------------------------

_FEATURES = 3  # that are dropped or shortened, each by itself
_LEAST_SHARE = 0.05  # of the CPU time that a feature or an op must take to be tried
_SHORTENS = ("first_x", "list_slice", "pad")  # ops that bound the length of lists
_PERCENTILE = 95
_MOST_KEPT = 0.9  # of the elements of lists, where shortening is tried
_BETTER_COLUMNS, _BETTER_SHARE = 8, 0.9  # columns whose encodings are tried: those that take most of decoding
_CHOOSING_S = 0.5  # CPU of choosing a column's encoding, about
_FEW_ROWS = ROW_GROUP_ROWS // 2  # of row groups that are joined

Trial: TypeAlias = tuple[DataChange, BlockSample]  # a change, and the blocks with it, which are to be measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """What changes begin with: a plan, sampled blocks of it, and their account."""

    plan: SourcePlan
    sample: BlockSample
    account: CostAccount
    compiled: CompiledJob

    @property
    def slow_columns(self) -> list[str]:
        """The table's columns that take most of decoding."""
        lists = list_columns(self.plan.spec)
        own = [column for column in self.account.decoding.columns if column.name not in lists]
        columns = sorted(own, key=lambda column: -column.cpu_s.cpu_s)
        seconds = np.maximum([column.cpu_s.cpu_s for column in columns], 0.0)
        if seconds.sum() < _LEAST_SHARE * self.account.block_s.cpu_s:
            return []
        # CPU seconds [6, 3, 1] -> before each column [0, 6, 9], of which 6 and 0 are less than 0.9 * 10: two columns
        before_s = np.cumsum(seconds) - seconds
        count = int(np.count_nonzero(before_s < _BETTER_SHARE * seconds.sum()))
        return [column.name for column in columns[: min(count, _BETTER_COLUMNS)]]


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
    today = Today(plan=plan, sample=sample, account=account, compiled=compile_job(sample.job))
    block_s = account.block_s.cpu_s / sample.per_million
    with ExitStack() as stack:
        trials: list[Trial] = []
        for kind, passes, make in _MAKERS:
            prepare_s = passes * block_s + (_CHOOSING_S * len(today.slow_columns) if kind == "optimize" else 0.0)
            enough = budget.left_s >= prepare_s + 2 * block_s * (len(trials) + _FEATURES)
            if (only is None or kind in only) and enough:
                # A codec that pyarrow does not write, a full disk: then this change is not known, the others are.
                with suppress(FeedlineError, pa.ArrowException, OSError):
                    trials += make(today, stack.enter_context(scratch_folder()))
        measured = _measure(sample, trials, budget, rounds)
    heavy = _heavy_ops(account) if only is None or "op" in only else []
    worthwhile = (replace(each, before=account.stages) for each in [*measured, *heavy] if each.is_worthwhile)
    return sorted(worthwhile, key=lambda change: -change.gain_s.cpu_s)


def _measure(sample: BlockSample, trials: Sequence[Trial], budget: CpuBudget, rounds: int) -> list[DataChange]:
    if not trials:
        return []
    samples = [sample, *(changed for _, changed in trials)]
    stages: list[list[StageSeconds]] = [[] for _ in samples]

    def run(index: int) -> None:
        stages[index].append(stage_seconds(run_sample(samples[index], packed=True)))

    works = [partial(run, index) for index in range(len(samples))]
    seconds = measure_in_turn(works, budget, rounds=rounds) * sample.per_million
    before_s = float(np.median(seconds[:, 0]))
    medians = [np.median(each[-len(seconds) :], axis=0) for each in stages]
    changes = []
    for index, (change, _) in enumerate(trials, start=1):
        gain_s = estimate(seconds[:, 0] - seconds[:, index])
        parts = _parts_of(gain_s.cpu_s, medians[0] - medians[index])
        changes.append(replace(change, gain_s=gain_s, before_s=before_s, stages=parts))
    return changes


def _parts_of(gain_s: float, stages: StageSeconds) -> dict[str, float]:
    gains = np.maximum(stages, 0.0)
    shares = gains / gains.sum() if gains.sum() > 0 else np.full(len(STAGES), 1 / len(STAGES))
    return dict(zip(STAGES, (gain_s * shares).tolist(), strict=True))


def _costly(account: CostAccount) -> list[FeatureAccount]:
    """The features that cost most, without labels and extras."""
    features = [each for each in account.features if each.group not in ("label", "extra")]
    features = [each for each in features if account.share(each) >= _LEAST_SHARE]
    return sorted(features, key=lambda feature: -feature.cpu_s.cpu_s)


def _with_features(sample: BlockSample, features: Sequence[FeatureSpec]) -> BlockSample:
    return replace(sample, job=bare_job(sample.job, features))


def _dropped(today: Today, _folder: Path) -> Iterator[Trial]:
    for feature in _costly(today.account)[:_FEATURES]:
        others = [each for each in today.sample.job.features if each.name != feature.name]
        if others:
            change = DataChange(
                kind="drop",
                subject=feature.name,
                how=f"remove {feature.name} from `features`",
                loses="the model loses the feature",
                saved_bytes=feature.nbytes,
            )
            yield change, _with_features(today.sample, others)


def _truncated(today: Today, _folder: Path) -> Iterator[Trial]:
    """Lists without a bound, cut after the elements that 95 % of the rows have at most."""
    specs = {feature.name: feature for feature in today.sample.job.features}
    costly = [specs[feature.name] for feature in _costly(today.account) if feature.group == "sparse"]
    for spec in costly[:_FEATURES]:
        if spec.op is not None or spec.expr is not None or any(call.op in _SHORTENS for call in spec.ops):
            continue
        if spec.history is not None:  # `last` bounds it, and `first_x` would keep its oldest events
            continue
        lengths = _list_lengths(today, spec.column or spec.name)
        if lengths is None or not lengths.sum():
            continue
        # lengths [4, 4, 4, 400] with 95 % of at most 4 -> 16 of 412 elements are kept
        most = max(1, int(np.percentile(lengths, _PERCENTILE)))
        kept = float(np.minimum(lengths, most).sum() / lengths.sum())
        if kept > _MOST_KEPT:
            continue
        call = OpCall(op="first_x", arguments=json.dumps({"": most}))
        shorter = {**specs, spec.name: replace(spec, ops=(call, *spec.ops))}
        change = DataChange(
            kind="truncate",
            subject=spec.name,
            how=f"{spec.name}: [{{first_x: {most}}}, ...] in `features`",
            loses=f"{1 - kept:.0%} of its elements are lost, all of the longest {100 - _PERCENTILE} % of rows",
        )
        yield change, _with_features(today.sample, [*shorter.values()])


def _list_lengths(today: Today, column: str) -> NDArray[np.int64] | None:
    """int64 [rows]: the lengths of a column's lists; None for a column of others."""
    lengths = [
        chunk.frame.get_column(column).list.len().fill_null(0).to_numpy()
        for request in today.sample.requests
        for piece in request.pieces
        for chunk in piece_chunks(today.compiled, piece, [column])
        if isinstance(chunk.frame.get_column(column).dtype, pl.List)
    ]
    return np.concatenate(lengths).astype(np.int64) if lengths else None


def _larger_row_groups(today: Today, folder: Path) -> Iterator[Trial]:
    mean = mean_row_group_rows(today.sample, today.plan.snapshot.rows_per_row_group)
    if mean < _FEW_ROWS:
        yield _rewritten(today, folder, "row_groups", f"row groups of {mean:,.0f} rows", merge=True)


def _optimized(today: Today, folder: Path) -> Iterator[Trial]:
    if better := today.slow_columns:
        mean = mean_row_group_rows(today.sample, today.plan.snapshot.rows_per_row_group)
        yield _rewritten(today, folder, "optimize", ", ".join(better), better=better, merge=mean < _FEW_ROWS)


def _rewritten(
    today: Today, folder: Path, kind: ChangeKind, subject: str, *, better: Sequence[str] = (), merge: bool
) -> Trial:
    """The rows in other files, with the command that writes the whole table so."""
    rewritten = rewrite_sample(today.sample, today.compiled, folder, better=better, merge=merge)
    table, rows = today.plan.spec.source.table, rewritten.row_group_rows
    rows = ROW_GROUP_ROWS if rows > ROW_GROUP_ROWS // 2 else 1024 * max(1, round(rows / 1024))
    command = f"feedline optimize {table if isinstance(table, str) else 'TABLE'} OUT"
    change = DataChange(
        kind=kind,
        subject=subject,
        how=f"{command}{' --for decode' if better else ''} --row-group-rows {rows}",
        saved_bytes=(rewritten.before - rewritten.nbytes) * today.sample.per_million,
    )
    return change, rewritten.sample


def _cached(today: Today, folder: Path) -> Iterator[Trial]:
    """Blocks whose features are in a cache: it is filled first."""
    if today.plan.spec.cache is not None:
        return
    sample = today.sample
    ref = CacheRef(folder=str(folder / "cache"), size=1 << 40, free=0, shared=False, write_budget=None)
    cached = replace(sample, job=replace(sample.job, cache=ref))
    run_sample(cached, packed=True)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    change = DataChange(
        kind="cache",
        subject="all features",
        how="cache: {dir: FOLDER}, on local disk",
        loses="the first epoch fills it",
        disk_bytes=nbytes / max(sample.rows, 1) * sample.epoch_rows,
        from_epoch=1,
    )
    yield change, cached


def _deduplicated(today: Today, _folder: Path) -> Iterator[Trial]:
    """Features in the groups that `plan --dedup` would propose, in the table's order."""
    facts = describe_proposals(today.plan)
    groups = [DedupSpec(name=each["name"], columns=tuple(each["columns"])) for each in facts["proposals"]]
    if not groups or facts["needs_runs"]:
        return
    features = {feature.name: feature for feature in today.sample.job.features}
    plain = [feature for feature in features.values() if feature.dedup is None]
    assigned = assign_groups(plain, groups, out_of_fold=today.plan.spec.fit.out_of_fold)
    features |= {feature.name: feature for feature in assigned if feature.dedup is not None}
    change = DataChange(
        kind="dedup",
        subject=", ".join(group.name for group in groups),
        how=str(facts["yaml"]),
        loses="batches then have groups of unique rows, which the model must expand",
    )
    yield change, _with_features(today.sample, [*features.values()])


# Kinds of changes; how often preparing each computes the sampled blocks, about; and how it is made in a folder.
_MAKERS: tuple[tuple[ChangeKind, int, Callable[[Today, Path], Iterator[Trial]]], ...] = (
    ("drop", 0, _dropped),
    ("truncate", 1, _truncated),
    ("row_groups", 3, _larger_row_groups),
    ("cache", 3, _cached),
    ("dedup", 4, _deduplicated),
    ("optimize", 3, _optimized),
)

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
