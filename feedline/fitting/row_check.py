"""Compute the features of a plan's rows, and write those that are bad as an exclusion.

Runs in: the process that checks: `Pipeline.check_rows`, `feedline check --rows`. Tasks run on workers (`reduction`), a
few row groups each. Row groups of files that have not changed since an earlier check by the same features are taken
over. Nothing is written unless all rows were checked and the budget holds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.blocks.block_encoder import BlockEncoder, StageClock, expanded_chunk
from feedline.blocks.environment import check_environment, environment_text
from feedline.blocks.jobs import CompiledJob, compile_job, find_job
from feedline.blocks.request import Job
from feedline.config import PipelineSpec
from feedline.config.features import Expectation, broken_bounds
from feedline.dataclass import dataclass
from feedline.errors import DataError, FeedlineError, SpecError, TableError
from feedline.fitting.fit_tasks import fit_tasks
from feedline.fitting.reduction import Workers, run_tasks
from feedline.loader.encoding.bad_values import bad_rows_of
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.quality import Observer, Quality, measures
from feedline.planning.exclusions import recorded_sample
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.make_plan import FrozenSource, plan_source
from feedline.planning.resolve import current_snapshot
from feedline.planning.source_plan import SourcePlan
from feedline.planning.table_features import compile_spec, planned_schema
from feedline.progress import report_progress
from feedline.transforms.compile.compiled import CompiledFeatures, Output, compile_some
from feedline.transforms.compile.null_probe import failing_rows
from feedline.transforms.values.lookup_counts import RowLookups
from feedline.warehouse.histories.joined_rows import read_rows
from feedline.warehouse.reading.fragment import Chunk, Fragment, count_excluded, pack_mask
from feedline.warehouse.rebase.file_changes import file_changes
from feedline.warehouse.selection.exclusion import Exclusion, ExclusionOrigin, RowFault
from feedline.warehouse.snapshot.snapshot import Snapshot, retimed_text
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.locations import absolute, redact
from feedline.warehouse.storage.parallel import Map

# --------------------------------------------------------------------------------------------------------------------
# Find all rows of some row groups that a run would refuse, or that break an expectation alone, with the reasons. A
# chunk of rows goes through the code of blocks once. Only if that fails, or the chunk's quality breaks a bound, its
# rows are judged one by one: those that features cannot be computed of (`failing_rows`), then those whose finished
# values break a rule (`bad_values`). Without them the chunk must pass; if it does not, that is an error, and no row
# is blamed for it.

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
    bad_groups: list[BadRows] = []
    alone = (fragment.alone(position) for fragment in fragments for position in range(len(fragment.row_groups)))
    for index, fragment in enumerate(alone):
        bad = judge.row_group(index, fragment)
        if bad is not None:
            bad_groups.append(bad)
        if sum(each.rows for each in bad_groups) > check.most:
            break
    return tuple(bad_groups)


class _Judge:
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
        for chunk in read_rows(fragment, self._compiled.read):
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
        frame = expanded_chunk(chunk)
        reasons = self._judge(frame)
        bad = np.logical_or.reduce(list(reasons.values())) if reasons else np.zeros(frame.height, np.bool_)
        if np.count_nonzero(bad) <= self._most:  # else perhaps not all were found
            self._confirm(frame.filter(pl.Series(~bad)), label(chunk.uri, chunk.row_group))
        return reasons

    def _judge(self, frame: pl.DataFrame) -> Reasons:
        features = self._compiled.features
        reasons: Reasons = {}
        try:
            reasons |= self._finished(features, frame)
        except DataError:
            failing = failing_rows(features, frame, self._most)
            if not failing:
                raise
            rest = frozenset(output.name for output in features.outputs if output.name not in failing)
            if rest:
                reasons |= self._finished(self._features(rest), frame)
            for name, rows in failing.items():
                reasons[name, f"cannot be computed ({self._schema[name].chain})"] = rows
                if np.count_nonzero(rows) > self._most:  # perhaps not all were found
                    continue
                others = self._finished(self._features(frozenset({name})), frame.filter(pl.Series(~rows)))
                for key, marked in others.items():
                    reasons[key] = np.zeros(frame.height, np.bool_)
                    reasons[key][np.flatnonzero(~rows)[marked]] = True
        return reasons

    def _features(self, names: frozenset[str]) -> CompiledFeatures:
        if names not in self._some:
            self._some[names] = compile_some(self._compiled.features, names)
        return self._some[names]

    def _finished(self, features: CompiledFeatures, frame: pl.DataFrame) -> Reasons:
        """The rows whose finished features break a rule. Raises DataError if one cannot be computed."""
        lookups: dict[str, list[RowLookups]] = {}
        columns, _ = features.apply_counting(frame, None, lookups)
        series = columns if not isinstance(columns, pl.DataFrame) else {each.name: each for each in columns}
        result: Reasons = {}
        for output in features.outputs:
            reasons = bad_rows_of(
                self._schema[output.name],
                series[output.name],
                self._bounds.get(output.name, ()),
                _null_inputs(frame, output),
                [missed for _, missed in lookups.get(output.name, ())],
            )
            result |= {(output.name, reason): rows for reason, rows in reasons.items()}
        return result

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


# --------------------------------------------------------------------------------------------------------------------

MAX_SHARE = 0.01
_SHOWN_REASONS = 20
_PHASE = "checking"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBudget:
    """The most rows that may be bad. rows: None for any number within the share of the selected rows."""

    rows: int | None = None
    share: float = MAX_SHARE

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise SpecError(f"max_share must be a share of the rows: got {self.share}, expected a number from 0 to 1")

    def most(self, selected: int) -> int:
        """The most bad rows among so many."""
        within = int(self.share * selected)
        return within if self.rows is None else min(within, self.rows)

    def __str__(self) -> str:
        share = f"max_share {self.share:g}"
        return share if self.rows is None else f"max_rows {self.rows}, {share}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """How many rows have a fault, in how many row groups, and the first of them: its file and its row there."""

    feature: str
    reason: str
    rows: int
    row_groups: int
    file: str
    row: int

    def line(self) -> str:
        rows, groups = _quantity(self.rows, "row"), _quantity(self.row_groups, "row group")
        return f"{rows} in {groups}: feature {self.feature!r} {self.reason} (first: {self.file}, row {self.row})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReport:
    """The result of a check. rows: of the plan; computed: those of them that were not known from an earlier check.
    retimed: a line on files that were checked again although their size and footer are as before, empty without any.
    file: the exclusion's. unfitted: features that were computed up to an op whose fit is missing."""

    table: str
    snapshot: str
    rows: int
    computed: int
    bad: int
    row_groups: int
    findings: tuple[Finding, ...]
    unfitted: tuple[str, ...]
    exclusion: str
    file: str
    seconds: float
    retimed: str = ""

    def text(self) -> str:
        """The report for people."""
        known = f", {self.rows - self.computed:,} of them by the earlier check" if self.computed < self.rows else ""
        share = f" ({self.bad / self.rows:.4%}) in {self.row_groups:,} row groups" if self.bad else ""
        checked = f"checked {self.rows:,} rows{known} in {self.seconds:.1f} s: {self.bad:,} bad{share}"
        lines = [f"{self.table}, snapshot {self.snapshot}: {checked}", *finding_lines(self.findings)]
        if self.retimed:
            lines.append(self.retimed)
        if self.unfitted:
            names = ", ".join(self.unfitted)
            lines.append(f"not fitted, so checked only up to the op that learns: {names}. Check again after the fit")
        lines.append(f"exclusion {self.exclusion}: {self.file}")
        if self.bad:
            lines.append(f"To leave these rows out, write `exclude: {self.file}` in source, with this snapshot")
        return "\n".join(lines)


def _quantity(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """A line per fault, most frequent first."""
    more = len(findings) - _SHOWN_REASONS
    lines = [f"bad      {finding.line()}" for finding in findings[:_SHOWN_REASONS]]
    return [*lines, f"and {more:,} more faults"] if more > 0 else lines


def find_exclusion(
    spec: PipelineSpec,
    workers: Workers,
    *,
    budget: RowBudget,
    out: str | None = None,
    earlier: str | None = None,
    map: Map | None = None,
) -> RowReport:
    """Find all bad rows of a pipeline's plan, and write them to `out`, if given, and below `work_dir`.

    The snapshot is that of `source.snapshot`, or a new one; `source.exclude` is ignored. earlier: the file of an
    earlier exclusion, whose row groups of unchanged files are taken over.

    Raises DataError for more bad rows than the budget allows, SpecError for an earlier exclusion that other features,
    filters or versions found, and what planning and reading raise. Then nothing is written.
    """
    began_s = time.perf_counter()
    snapshot = current_snapshot(spec, map=map)
    plan = plan_source(spec, FrozenSource(snapshot=snapshot), lanes=1, map=map, exclude=False)
    origin, totals = _origin(plan, workers), _BadRowTotals()
    known, retimed = np.zeros(len(plan.selection.rows), np.bool_), ""
    if earlier is not None:
        known, retimed = _take_over(plan, origin, earlier, totals)
    rows, most = origin.rows, budget.most(origin.rows)
    job = replace(plan.job, order=None, record=None, cache=None, auto=None, environment=workers.environment)
    if origin.unfitted:  # a fit names columns that no block reads, such as a target
        job = replace(job, schema=planned_schema(spec, snapshot.schema, snapshot.histories).serialize().to_pybytes())
    check = RowCheck(job=job, unfitted=frozenset(origin.unfitted), most=most)
    _search(plan, workers, check, known, totals)
    exclusion = totals.exclusion(origin)
    findings = _findings(plan, exclusion.faults)
    if totals.rows > most:
        got = f"got {totals.rows:,} or more of {rows:,}, expected at most {most:,} ({budget})"
        message = f"too many rows are bad: {got}. Correct the table or the features, or allow more"
        raise DataError("\n".join([message, *finding_lines(findings)]))
    return RowReport(
        table=redact(snapshot.uri),
        snapshot=snapshot.id,
        rows=rows,
        computed=int(plan.selection.rows[~known].sum()),
        bad=totals.rows,
        row_groups=len(exclusion.excluded),
        findings=findings,
        unfitted=origin.unfitted,
        exclusion=exclusion.id,
        file=_write(spec, exclusion, out),
        retimed=retimed,
        seconds=time.perf_counter() - began_s,
    )


@dataclass(slots=True)
class _BadRowTotals:
    """The bad rows found so far, as an exclusion has them."""

    excluded: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    faults: list[RowFault] = field(default_factory=list)
    rows: int = 0

    def add(self, row_group: int, kept: int, bits: bytes, faults: Iterable[RowFault]) -> None:
        self.excluded[row_group] = kept, bits
        self.faults.extend(faults)
        self.rows += count_excluded(bits)

    def exclusion(self, origin: ExclusionOrigin) -> Exclusion:
        faults = sorted(self.faults, key=lambda fault: (fault.row_group, fault.feature, fault.reason))
        return Exclusion(origin=origin, excluded=dict(sorted(self.excluded.items())), faults=tuple(faults))


def _search(
    plan: SourcePlan, workers: Workers, check: RowCheck, known: NDArray[np.bool_], totals: _BadRowTotals
) -> None:
    """Add the bad rows of all row groups but known ones, or until there are too many."""
    selection = replace(plan.selection, rows=np.where(known, 0, plan.selection.rows))
    tasks = fit_tasks(plan.snapshot, selection, workers.threads)
    if not tasks or totals.rows > check.most:
        return
    sizes = [sum(len(fragment.row_groups) for fragment in task) for task in tasks]
    groups = np.split(np.flatnonzero(selection.rows), np.cumsum(sizes)[:-1])  # tasks are in the table's order
    done, total = 0, int(selection.rows.sum())
    report_progress(_PHASE, done, total, "rows")
    with closing(run_tasks(workers, find_bad_rows, check, tasks)) as results:
        for row_groups, bad in zip(groups, results, strict=True):
            for each in bad:
                group = int(row_groups[each.index])
                faults = (
                    RowFault(row_group=group, feature=feature, reason=reason, rows=rows, first=first)
                    for feature, reason, rows, first in each.reasons
                )
                totals.add(group, each.kept, each.bits, faults)
            if totals.rows > check.most:
                return
            done += int(selection.rows[row_groups].sum())
            report_progress(_PHASE, done, total, "rows")


def _take_over(
    plan: SourcePlan, origin: ExclusionOrigin, file: str, totals: _BadRowTotals
) -> tuple[NDArray[np.bool_], str]:
    """Take the row groups of unchanged files over from an earlier exclusion; returns which row groups these are, and a
    line on files that are changed for their times alone."""
    earlier, before = _read_earlier(plan.spec, file)
    mine, theirs = origin.judgement, earlier.origin.judgement
    for name in mine:
        if json.dumps(mine[name], sort_keys=True) != json.dumps(theirs[name], sort_keys=True):
            raise SpecError(
                f"the earlier exclusion {redact(file)} was found with another {name}: got {theirs[name]}, expected "
                f"{mine[name]}. Leave it out, to check all rows"
            )
    faults: dict[int, list[RowFault]] = {}
    for fault in earlier.faults:
        faults.setdefault(fault.row_group, []).append(fault)
    after, known = plan.snapshot, np.zeros(len(plan.selection.rows), np.bool_)
    changes = file_changes(before, after)
    for old_file, new_file in changes.unchanged.items():
        groups = zip(before.row_groups_of(old_file).tolist(), after.row_groups_of(new_file).tolist(), strict=True)
        for old, new in groups:
            kept, bits = earlier.excluded.get(old, (int(plan.selection.rows[new]), None))
            known[new] = kept == int(plan.selection.rows[new])  # else it is checked again
            if known[new] and bits is not None:
                totals.add(new, kept, bits, (replace(fault, row_group=new) for fault in faults[old]))
    again = changes.retimed.any()
    return known, retimed_text(after, changes.retimed, "checked again") if again else ""


def _read_earlier(spec: PipelineSpec, file: str) -> tuple[Exclusion, Snapshot]:
    try:
        earlier = Exclusion.read(file)
        return earlier, Snapshot.load(spec.work_dir, earlier.origin.snapshot)
    except (TableError, OSError) as error:
        message = f"the earlier exclusion {redact(file)} cannot be used: {error}"
        raise SpecError(f"{message}. Leave it out, to check all rows") from error


def _origin(plan: SourcePlan, workers: Workers) -> ExclusionOrigin:
    spec, schema = plan.spec, plan.snapshot.schema
    rules = [
        [feature.name, feature.on_nonfinite == "error", bounds]
        for feature in spec.features
        if (bounds := [f"{bound.measure} {bound}" for bound in feature.expect if bound.per_row])
        or feature.on_nonfinite == "error"
    ]
    return ExclusionOrigin(
        snapshot=plan.snapshot.id,
        where=spec.source.where,
        sample=recorded_sample(spec),
        features=plan.features_fingerprint,
        rules=json.dumps(rules),
        environment=environment_text(workers.environment),
        unfitted=_unfitted(plan),
        types={name: str(schema.field(name).type) for name in plan.columns if name in schema.names},
        rows=int(plan.selection.rows.sum()),
    )


def _unfitted(plan: SourcePlan) -> tuple[str, ...]:
    if not plan.features.missing_fits:
        return ()
    spec, schema = plan.spec, planned_schema(plan.spec, plan.snapshot.schema, plan.snapshot.histories)
    compiled = ((each, compile_spec(spec, schema, [each], artifacts=plan.features.artifacts)) for each in spec.features)
    return tuple(feature.name for feature, alone in compiled if alone.missing_fits)


def _findings(plan: SourcePlan, faults: Sequence[RowFault]) -> tuple[Finding, ...]:
    """The faults by feature and reason, most frequent first, each with its first row, for which row groups are read."""
    of_key: dict[tuple[str, str], list[RowFault]] = {}
    for fault in faults:
        of_key.setdefault((fault.feature, fault.reason), []).append(fault)
    snapshot, stored = plan.snapshot, plan.snapshot.rows_per_row_group
    kept_rows: dict[int, NDArray[np.int64]] = {}
    findings = []
    for (feature, reason), each in of_key.items():
        first = min(each, key=lambda fault: fault.row_group)
        file = int(snapshot.file_of_row_group[first.row_group])
        before = int(stored[int(snapshot.row_groups_of(file)[0]) : first.row_group].sum())
        if first.row_group not in kept_rows:
            kept_rows[first.row_group] = read_kept_rows(plan, first.row_group, plan.columns[:1]).rows
        findings.append(
            Finding(
                feature=feature,
                reason=reason,
                rows=sum(fault.rows for fault in each),
                row_groups=len(each),
                file=snapshot.files["path"][file].as_py(),
                row=before + int(kept_rows[first.row_group][first.first]),
            )
        )
    return tuple(sorted(findings, key=lambda finding: (-finding.rows, finding.feature, finding.reason)))


def _write(spec: PipelineSpec, exclusion: Exclusion, out: str | None) -> str:
    """Write the exclusion; returns its path."""
    path = spec.work_dir if out is None else out
    try:
        if out is not None:
            exclusion.write(out)
        kept = exclusion.save(spec.work_dir)
    except FeedlineError:
        raise
    except OSError as error:
        raise SpecError(f"{redact(path)} cannot be written: {error}. Name a writable one") from error
    return redact(kept if out is None else absolute(out))
