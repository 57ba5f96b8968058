"""Fit the ops of a pipeline, in as few passes over the table as their dependencies allow.

Runs in: the process that fits: `Pipeline.fit`, `feedline fit`, a feeder with `fit: auto`. The passes' tasks run on
workers (`reduction`).

1. The features are compiled without artifacts, which gives the fits to make and their dependencies.
2. A pass observes the columns of all fits that depend on no missing one, and of the filter if statistics cannot decide.
3. The final states become artifacts, which workers of the next pass read from a scratch folder below work_dir.
4. All artifacts are saved as one artifact set, which becomes the current one. The scratch folder is always removed.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from feedline.artifacts.artifact_sets import ArtifactSetRecord, load_set, save_set, set_file
from feedline.artifacts.store import (
    Fit,
    FittedArtifact,
    StoredArtifactSet,
    load_artifact,
    load_manifest,
    save_manifest,
)
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError, FeedlineError, SpecError
from feedline.fitting.fit_report import FitReport, fit_facts
from feedline.fitting.fit_table import FitPass, FitTable, fit_tables, same_requests
from feedline.fitting.fit_tasks import fit_tasks
from feedline.fitting.observe import (
    NO_ROWS,
    FitJob,
    FitPiece,
    States,
    compile_fit,
    merge_spilled,
    merge_states,
    observe_pieces,
)
from feedline.fitting.reduction import FAN_IN, Workers, map_tasks, reduce_tasks
from feedline.fitting.spill import PARTS, Scratch, SpilledState, discard, state_parts
from feedline.planning.table_features import (
    artifact_set_key,
    artifact_set_ref,
    artifacts_dir,
    compile_spec,
    require_fitted,
)
from feedline.progress import report_progress
from feedline.resources.cgroups import available_memory_bytes
from feedline.serving.golden_check import record
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.transforms.registry.user_code import function_codes
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot, same_files
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, below, locate, redact

# --------------------------------------------------------------------------------------------------------------------
# Divide the rows that several tables of a fit read among them, so that each is learnt from once. Pure, but for the
# real paths of files. Tables share a row group if they read the same file. One table comes first in it: one that
# takes it whole, else the one that is named first; the others observe the rows that no table before them reads
# (`observe`), and do not read a row group that a table before them takes whole. So a fit has the union of the
# selected rows, whatever their filters, samples and exclusions are and how they are written. Tables whose features
# differ divide rows only for the fits that learn the same values from both.

Int64s = npt.NDArray[np.int64]


class SharedRows:
    """The tables of a fit with their selections, and which row groups they share."""

    def __init__(self, tables: Sequence[FitTable], selections: Sequence[Selection]) -> None:
        self._tables = tables
        self._selections = selections
        self._whole = [
            selection.rows == table.snapshot.rows_per_row_group
            for table, selection in zip(tables, selections, strict=True)
        ]
        self._earlier = [self._earlier_of(index) for index in range(len(tables))]

    def selection(self, index: int, alike: Sequence[frozenset[int]]) -> Selection:
        """What a table reads for a pass: its selection, without row groups that a table before it takes whole. alike:
        for each fit of the pass, the tables of which it learns the same values."""
        selection, earlier = self._selections[index], self._earlier[index]
        rows = selection.rows.copy()
        for other in earlier.keys() & frozenset.intersection(*alike):
            there = earlier[other]
            rows[(there >= 0) & self._whole[other][np.maximum(there, 0)]] = 0
        return replace(selection, rows=rows)

    def tasks(self, index: int, alike: Sequence[frozenset[int]], threads: int) -> list[tuple[FitPiece, ...]]:
        """The tasks of a pass over a table."""
        snapshot = self._tables[index].snapshot
        tasks = fit_tasks(snapshot, self.selection(index, alike), threads)
        others = sorted(self._earlier[index].keys() & frozenset[int]().union(*alike))
        files = {path: file for file, path in enumerate(snapshot.files["path"].to_pylist())} if others else {}

        def piece(fragment: Fragment) -> FitPiece:
            if not others:
                return FitPiece(fragment)
            own = snapshot.row_groups_of(files[fragment.path])[list(fragment.row_groups)]
            earlier = [(other, self._read(other, self._earlier[index][other][own])) for other in others]
            return FitPiece(fragment, tuple((other, read) for other, read in earlier if read is not None))

        return [tuple(map(piece, fragments)) for fragments in tasks]

    def _read(self, index: int, row_groups: Int64s) -> Fragment | None:
        """The fragment of some row groups of one file in another table; below 0 there is none."""
        row_groups = row_groups[row_groups >= 0]
        return self._selections[index].fragment(self._tables[index].snapshot, row_groups) if len(row_groups) else None

    def _earlier_of(self, index: int) -> dict[int, Int64s]:
        """By table: int64 [row groups], the row group that it reads before this table does; -1 where it does not."""
        own, earlier = self._tables[index].snapshot, dict[int, Int64s]()
        for other, table in enumerate(self._tables):
            if other == index:
                continue
            there = _same_row_groups(table.snapshot, own)
            place = np.maximum(there, 0)
            whole, mine = self._whole[other][place], self._whole[index]
            first = (whole & ~mine) | ((whole == mine) & (other < index))
            there[~(first & (self._selections[other].rows[place] != 0))] = -1
            if (there >= 0).any():
                earlier[other] = there
        return earlier


def _same_row_groups(one: Snapshot, other: Snapshot) -> Int64s:
    """int64 [row groups of `other`]: the index of the same row group in `one`, -1 without one."""
    file = same_files(one, other)[other.file_of_row_group]
    if not len(one.files) or not (file >= 0).any():
        return np.full(len(file), -1, np.int64)
    # one has the files a, with two row groups, and b; the other b, then a -> [2, 0, 1]
    starts = np.searchsorted(one.file_of_row_group, np.arange(len(one.files)))
    return np.where(file >= 0, starts[file] + other.row_group_in_file, -1).astype(np.int64)


# --------------------------------------------------------------------------------------------------------------------

# Default of `fit.memory`: this, or half of the free memory if that is less.
_MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True)
class _FitsSoFar:
    """The artifact set while fitting: the stored fits, if `keep`, and those made since."""

    stored: StoredArtifactSet
    keep: bool
    new_fits: dict[str, FittedArtifact] = field(default_factory=dict)

    def seen_rows(self, key: str) -> bool | str:
        return self.stored.seen_rows(key)

    def find_artifact(self, request: FitRequest) -> Artifact | None:
        if request.key in self.new_fits:
            return self.new_fits[request.key].artifact
        manifest = self.stored.manifest if self.keep else None
        if manifest is None or request.key not in manifest.fits:
            return None
        depends = manifest.fits[request.key].depends
        stale = [key for key in depends if key in self.new_fits and self.new_fits[key].fit.digest != depends[key]]
        return None if stale else self.stored.find_artifact(request)

    def read(self, reading: Reading) -> Artifact:
        return self.stored.read(reading)

    def fitted_artifact(self, key: str) -> FittedArtifact:
        if key in self.new_fits:
            return self.new_fits[key]
        assert self.stored.manifest is not None
        fit = self.stored.manifest.fits[key]
        return FittedArtifact(fit=fit, artifact=load_artifact(self.stored.ref.folder, fit))


def fit_pipeline(
    spec: PipelineSpec,
    snapshots: Sequence[Snapshot],
    workers: Workers,
    *,
    keep: bool = False,
) -> FitReport:
    """Fit all ops, make the result the current artifact set, and write golden vectors. snapshots: of each source. keep:
    keep valid fits.

    A pipeline that uses another's fits (`artifacts: {from: NAME}`) learns nothing: those fits must exist.

    Raises SpecError if the spec does not fit the table or rows, or nothing can be written; PlanError if there is no row
    to learn from; and what reading raises. The previous set is still current then.
    """
    began = time.perf_counter()
    if spec.source_name is not None:
        message = (
            f"fits learn from all sources together: got {spec.source_name} alone. Fit the pipeline without --source"
        )
        raise spec.error(("source",), message)
    run = _Run(spec, snapshots, workers, keep or spec.artifacts.shared is not None)
    _refuse_outdated_code(spec, run.learning_features)
    report = FitReport(table=run.table, snapshot=run.snapshot)
    try:
        try:
            if run.requests:
                run.work()
                report = run.report(began)
        finally:
            workers.remove_when_idle(lambda: discard(run.scratch))
        golden = record(spec, snapshots)
    except FeedlineError:
        raise
    except OSError as error:
        message = f"artifacts cannot be written: {error}. Name writable folders in `artifacts` and `work_dir`"
        raise spec.error(("artifacts",), message) from error
    return report if golden is None else replace(report, vectors=golden.rows.num_rows)


class _Run:
    """One fit of a pipeline, pass after pass."""

    def __init__(self, spec: PipelineSpec, snapshots: Sequence[Snapshot], workers: Workers, keep: bool) -> None:
        self._spec = spec
        self.table = ", ".join(dict.fromkeys(snapshot.uri for snapshot in snapshots))
        self.snapshot = ",".join(snapshot.id for snapshot in snapshots)
        self._workers = workers
        self._tables = fit_tables(spec, snapshots)
        self._request = replace(artifact_set_key(spec), root=redact(snapshots[0].uri))
        stored = StoredArtifactSet(replace(artifact_set_ref(spec), request=self._request), newest=keep)
        self._artifacts = _FitsSoFar(stored, keep)
        blank = _FitsSoFar(stored, False)
        self.requests, self._alike = same_requests(self._tables, blank)
        self._features = self._features_of(blank)
        self.scratch = Scratch(folder=below(absolute(spec.work_dir), f"fitting-{secrets.token_hex(8)}"), limit_bytes=0)
        self._step = self._nbytes_read = 0
        self._rows: tuple[int, ...] = ()  # learnt from, of each table

    @property
    def learning_features(self) -> frozenset[str]:
        return frozenset(name for names in self._features.values() for name in names)

    def work(self) -> None:
        """Run all passes. Raises as `fit_pipeline` does."""
        requests = self._missing_requests() if self._artifacts.keep else tuple(self.requests.values())
        if not requests:
            return
        if self._request.shared_from is not None:
            for table in self._tables:
                require_fitted(table.spec, table.compile(self._artifacts), self._artifacts.stored)
        missing, passes = {request.key for request in requests}, _depth(requests)
        shared = SharedRows(self._tables, [table.select() for table in self._tables])
        while ready := [request for request in requests if not request.depends]:
            self._step += 1
            self._learn(ready, self._observe(ready, shared, max(passes, self._step)))
            missing.difference_update(self._artifacts.new_fits)
            requests = self._missing_requests() if missing or self._artifacts.keep else ()
            missing.update(request.key for request in requests)  # also stored fits whose own inputs have changed

    def _missing_requests(self) -> tuple[FitRequest, ...]:
        """The fits to make, each from all features that share it, including those that a stored fit would serve."""
        missing: dict[str, frozenset[str]] = {}
        for table in self._tables:
            for request in table.compile(self._artifacts).missing_fits:
                missing[request.key] = missing.get(request.key, frozenset()) | request.depends
        return tuple(replace(self.requests[key], depends=depends) for key, depends in missing.items())

    def report(self, began: float) -> FitReport:
        """Save the fits as the current artifact set."""
        fits = [self._artifacts.fitted_artifact(key) for key in self.requests]
        manifest, times = self._unchanged_set() or self._save(fits)
        return FitReport(
            fits=tuple(fit_facts(one.fit, times[one.fit.key]) for one in fits),
            made=len(self._artifacts.new_fits),
            passes=self._step,
            rows=sum(self._rows),
            nbytes_read=self._nbytes_read,
            seconds=time.perf_counter() - began,
            table=self.table,
            snapshot=self.snapshot,
            folder=artifacts_dir(self._spec),
            manifest=manifest,
        )

    def _unchanged_set(self) -> tuple[str, Mapping[str, str]] | None:
        """The stored set if it stays current; None if there are new fits."""
        stored = self._artifacts.stored
        record = stored.record if self._artifacts.keep and not self._artifacts.new_fits else None
        return None if record is None else (record.manifest, record.fit_times)

    def _save(self, fits: Sequence[FittedArtifact]) -> tuple[str, Mapping[str, str]]:
        """Write the set, with the fits of features that this pipeline does not have, and make it current."""
        request, folder = self._request, artifacts_dir(self._spec)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        # no other fit of this pipeline and source makes its set current meanwhile
        with content_store.lock_file(locate(absolute(folder)), set_file(request.pipeline, request.source)):
            before, others = self._other_fits(folder)
            record = self._artifacts.stored.record
            before = {**({} if record is None else record.fit_times), **before}
            every = [*fits, *others]
            times = {one.fit.key: before.get(one.fit.key, now) for one in every}
            times |= dict.fromkeys(self._artifacts.new_fits, now)
            manifest = save_manifest(folder, every).digest
            current = ArtifactSetRecord(
                pipeline=request.pipeline,
                source=request.source,
                manifest=manifest,
                fit_times=times,
                saved_at=datetime.now(UTC).isoformat(timespec="microseconds"),
            )
            save_set(folder, current)
        return manifest, times

    def _other_fits(self, folder: str) -> tuple[Mapping[str, str], list[FittedArtifact]]:
        """Times of the current fits, and the current fits of features that this pipeline does not have, which stay."""
        try:
            record = load_set(folder, self._request.pipeline, self._request.source)
            fits = load_manifest(folder, record.manifest).fits.values() if record is not None else ()
        except (CorruptFileError, SpecError):  # it is replaced
            return {}, []
        own = {feature.name for feature in self._spec.features}
        others = [fit for fit in fits if fit.key not in self.requests and own.isdisjoint(fit.features)]
        return ({} if record is None else record.fit_times), [FittedArtifact(fit=fit, artifact=None) for fit in others]

    def _features_of(self, blank: _FitsSoFar) -> dict[str, tuple[str, ...]]:
        """The features that need each fit, by key."""
        names: dict[str, list[str]] = {}
        table = self._tables[0]
        for feature in table.spec.features:
            for request in compile_spec(table.spec, table.schema, [feature], artifacts=blank).missing_fits:
                names.setdefault(request.key, []).append(feature.name)
        return {key: tuple(features) for key, features in names.items()}

    def _observe(self, ready: Sequence[FitRequest], shared: SharedRows, passes: int) -> tuple[FitJob, States]:
        alike = [[self._alike[index][request.key] for request in ready] for index in range(len(self._tables))]
        pairs = [(table, shared.selection(index, alike[index])) for index, table in enumerate(self._tables)]
        tasks = [shared.tasks(index, each, self._workers.threads) for index, each in enumerate(alike)]
        jobs = self._jobs(ready, alike, sum(map(len, tasks)))
        for job, (table, selection) in zip(jobs, pairs, strict=True):
            parts = compile_fit(job).read.parts
            table.require(parts)
            self._nbytes_read += table.pass_bytes(parts, selection)
        total, all_tasks, done = sum(table.rows(selection) for table, selection in pairs), sum(map(len, tasks)), 0
        phase = f"fitting, pass {self._step} of {passes}"

        def advance(task: tuple[FitPiece, ...]) -> None:
            nonlocal done
            done += 1
            report_progress(phase, total * done // all_tasks, total, "rows")  # tasks have about the same rows

        report_progress(phase, 0, total, "rows")
        states = [
            reduce_tasks(self._workers, observe_pieces, merge_states, job, own, on_done=advance) if own else NO_ROWS
            for job, own in zip(jobs, tasks, strict=True)
        ]
        self._rows = tuple(each.rows for each in states)
        if not any(self._rows):
            raise self._tables[0].no_rows_error()
        return jobs[0], merge_states(jobs[0], states)

    def _learn(self, ready: Sequence[FitRequest], job_states: tuple[FitJob, States]) -> None:
        job, states = job_states
        for index, (request, state) in enumerate(zip(ready, states.states, strict=True)):
            parts: Sequence[str] = ()
            if isinstance(state, SpilledState) and len(state.files) > 1:
                tasks = [(index, state, part) for part in range(PARTS)]
                parts = map_tasks(self._workers, merge_spilled, job, tasks)
            try:
                artifact = request.learner.finish(state_parts(request.learner, state, job.scratch, parts))
            except FeedlineError as error:
                raise self._learner_error(request, error) from error
            self._artifacts.new_fits[request.key] = FittedArtifact(fit=self._fit(request, artifact), artifact=artifact)

    def _fit(self, request: FitRequest, artifact: Artifact) -> Fit:
        op, version, parameters = request.op
        depends = self.requests[request.key].depends
        origins = [table.origin(rows) for table, rows in zip(self._tables, self._rows, strict=True)]
        origins = [each for index, each in enumerate(origins) if not any(map(each.same_rows, origins[:index]))]
        return Fit(
            key=request.key,
            op=op,
            version=version,
            parameters=parameters,
            chain=request.chain,
            features=self._features[request.key],
            types=dict(request.types),
            depends={key: self._artifacts.fitted_artifact(key).fit.digest for key in sorted(depends)},
            fitted_on=origins[0],
            also_on=tuple(origins[1:]),
            redefined={name: text for name, text in self._request.redefined if name in self._features[request.key]},
            facts=artifact.facts,
            shown=request.learner.show(artifact),
            table=None,
            digest=artifact.digest,
            behind=request.behind,
        )

    def _learner_error(self, request: FitRequest, error: FeedlineError) -> FeedlineError:
        feature = next(feature for feature in self._spec.features if feature.name in self._features[request.key])
        op = request.op[0]
        cause = str(error) if str(error).startswith(f"{op} ") else f"{op}: {error}"
        message = f"{request.feature}: {request.chain}: {cause}"
        return self._spec.error(feature.path, message) if isinstance(error, SpecError) else DataError(message)

    def _jobs(self, ready: Sequence[FitRequest], alike: Sequence[Sequence[frozenset[int]]], tasks: int) -> list[FitJob]:
        """The job of a pass for each table; artifacts of earlier passes are in the scratch folder."""
        depends = {key for request in ready for key in self.requests[request.key].depends}
        earlier = None
        if depends:
            folder = below(self.scratch.folder, "artifacts")
            manifest = save_manifest(folder, map(self._artifacts.fitted_artifact, sorted(depends)))
            earlier = folder, manifest.digest
        threads = math.ceil(self._workers.threads / self._workers.processes)
        levels = math.ceil(math.log(max(tasks, 2), FAN_IN))
        sets = threads * (1 + FAN_IN) + (FAN_IN - 1) * levels  # sets of states at once in a process
        memory = self._spec.fit.memory or min(_MEMORY_BYTES, available_memory_bytes() // 2)
        fit_pass = FitPass(
            ready=ready,
            scratch=replace(self.scratch, limit_bytes=max(memory // sets, 1)),
            environment=self._workers.environment,
            readings=self._artifacts.stored.pinned_ref.readings,
            earlier=earlier,
            tables=tuple(table.conditions for table in self._tables),
        )
        return [table.job(fit_pass, tuple(own)) for table, own in zip(self._tables, alike, strict=True)]


def _refuse_outdated_code(spec: PipelineSpec, learning: Collection[str]) -> None:
    """Raise SpecError where this process may run another version of a user's function than its files are now: the fit
    would have the name of those."""
    for feature in spec.features:
        for (function, _), code in function_codes(feature).items() if feature.name in learning else ():
            if code.outdated:
                message = f"{feature.name}: a fit would be named by other code than {function} runs here"
                remedy = "Restart the process, in a notebook the kernel, and fit again"
                raise spec.error(feature.path, f"{message}: {code.outdated}. {remedy}")


def _depth(requests: Sequence[FitRequest]) -> int:
    depends = {request.key: request.depends for request in requests}
    depth: dict[str, int] = {}
    for key in sorted(depends, key=lambda key: len(depends[key])):  # dependencies first: they have fewer of their own
        depth[key] = 1 + max((depth[before] for before in depends[key]), default=0)
    return max(depth.values(), default=0)
