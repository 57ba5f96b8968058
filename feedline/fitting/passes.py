"""Fit the ops of a pipeline, in as few passes over the table as their dependencies allow.

Runs in: the process that fits: `Pipeline.fit`, `feedline fit`, a feeder with `fit: auto`. The passes' tasks run on
workers (`service.reduction`).

1. The features are compiled without artifacts, which gives the fits to make and their dependencies.
2. A pass observes, for all fits that wait for no other, the columns that they are learnt from (and the filter's, where
   statistics cannot decide), and nothing else: row groups that the filter rules out are not opened.
3. The last states become artifacts in this process. They lie in a scratch folder below work_dir for the workers of the
   next pass, until all fits are made.
4. All artifacts are saved as one artifact set, which becomes the current one. The scratch folder is always removed.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

import numpy as np

from feedline.artifacts.artifact_sets import ArtifactSetRecord, load_set, save_set, set_file
from feedline.artifacts.store import (
    Fit,
    FitOrigin,
    FittedArtifact,
    StoredArtifactSet,
    load_artifact,
    load_manifest,
    save,
)
from feedline.errors import CorruptFileError, DataError, FeedlineError, PlanError, SpecError
from feedline.fitting.fit_report import FitReport, facts_of
from feedline.fitting.observe import (
    NO_ROWS,
    FitJob,
    States,
    compile_fit,
    merge_spilled,
    merge_states,
    observe_fragments,
)
from feedline.fitting.reduction import FAN_IN, Workers, map_tasks, reduce_tasks
from feedline.fitting.spill import PARTS, Scratch, Spilled, discard, parts_of
from feedline.planning.binding import (
    artifact_set_key,
    artifact_set_ref,
    artifacts_dir,
    bound_sample,
    bound_where,
    compile_spec,
    planned_schema,
    require_columns,
    require_fitted,
    rows_of,
)
from feedline.planning.plan import code_of
from feedline.resources import available_memory_bytes
from feedline.serving.golden_check import record
from feedline.spec import PipelineSpec
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.warehouse.reading.fragment import Fragment, fragment_at
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.reading.seen_rows import source_names
from feedline.warehouse.selection.pruning_report import deciding_parts, needed_bytes
from feedline.warehouse.selection.select import Selection, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, below, locate, redact

# Rows of a task: as few tasks as keep all threads busy to the end, as many as progress wants to be told.
_LEAST_TASK_ROWS, _MOST_TASK_ROWS, _TASKS_PER_THREAD = 131_072, 1_048_576, 8
_TASK_FILES = 64
# What a fit may use of memory where pipeline.yaml says nothing: this, or half of what is free.
_MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProgress:
    """How far a fit is: pass `step` of `passes`, `fits` statistics over `rows` stored rows; tasks done, and all."""

    step: int
    passes: int
    fits: int
    rows: int
    tasks: int
    all_tasks: int


Say = Callable[[FitProgress], None]


@dataclass(frozen=True, slots=True)
class _PartialArtifactSet:
    """What is known while fitting: what was stored before, if that is to be kept, and what was made since."""

    stored: StoredArtifactSet
    keep: bool
    made: dict[str, FittedArtifact] = field(default_factory=dict)

    def seen_rows(self, key: str) -> bool | str:
        return self.stored.seen_rows(key)

    def find_artifact(self, wanted: FitRequest) -> Artifact | None:
        if wanted.key in self.made:
            return self.made[wanted.key].artifact
        manifest = self.stored.manifest if self.keep else None
        if manifest is None or wanted.key not in manifest.fits:
            return None
        depends = manifest.fits[wanted.key].depends
        stale = [key for key in depends if key in self.made and self.made[key].fit.digest != depends[key]]
        return None if stale else self.stored.find_artifact(wanted)

    def read(self, reading: Reading) -> Artifact:
        return self.stored.read(reading)

    def learnt(self, key: str) -> FittedArtifact:
        """A fit that is known."""
        if key in self.made:
            return self.made[key]
        assert self.stored.manifest is not None
        fit = self.stored.manifest.fits[key]
        return FittedArtifact(fit=fit, artifact=load_artifact(self.stored.ref.folder, fit))


def fit_pipeline(
    spec: PipelineSpec,
    snapshot: Snapshot,
    workers: Workers,
    *,
    keep: bool = False,
    say: Say = lambda progress: None,
) -> FitReport:
    """Fit all ops, make the result the current artifact set, and write golden vectors. keep: keep valid fits.

    A pipeline that uses another's fits (`artifacts: {from: NAME}`) learns nothing: they have to be there.

    Raises SpecError for whatever does not fit the table or the rows and where nothing can be written, PlanError where
    there is no row to learn from, and what reading raises. The set from before is still current then.
    """
    began = time.perf_counter()
    run = _Run(spec, snapshot, workers, keep or spec.artifacts.shared is not None, say)
    report = FitReport(table=snapshot.uri, snapshot=snapshot.id)
    try:
        try:
            if run.everything:
                run.work()
                report = run.report(began)
        finally:
            workers.at_the_end(lambda: discard(run.scratch))
        golden = record(spec, snapshot)
    except FeedlineError:
        raise
    except OSError as error:
        message = f"what is learnt cannot be written: {error}. Name folders that can be for `artifacts` and `work_dir`"
        raise spec.error(("artifacts",), message) from error
    return report if golden is None else replace(report, vectors=golden.rows.num_rows)


class _Run:
    """One fit of a pipeline, pass after pass."""

    def __init__(self, spec: PipelineSpec, snapshot: Snapshot, workers: Workers, keep: bool, say: Say) -> None:
        self._spec = spec
        self._snapshot = snapshot
        self._workers = workers
        self._say = say
        self._schema = planned_schema(spec, snapshot.schema)
        self._request = replace(artifact_set_key(spec), root=redact(snapshot.uri))
        stored = StoredArtifactSet(replace(artifact_set_ref(spec), request=self._request), newest=keep)
        self._known = _PartialArtifactSet(stored, keep)
        blank = _PartialArtifactSet(stored, False)
        self.everything = {want.key: want for want in self._compiled(blank).missing_fits}
        self._features = self._features_of(blank)
        self.scratch = Scratch(folder=below(absolute(spec.work_dir), f"fitting-{secrets.token_hex(8)}"), limit_bytes=0)
        self._place = ("fit", "where") if spec.fit.where is not None else ("source", "where")
        self._where = bound_where(spec, snapshot.schema, text=spec.fit.where, path=self._place)
        self._sample = bound_sample(spec, snapshot.schema)
        self._step = self._rows = self._nbytes_read = 0

    def work(self) -> None:
        """All passes. Raises as `fit_pipeline`."""
        wanted = self._wanted() if self._known.keep else tuple(self.everything.values())
        if not wanted:
            return
        if self._request.shared is not None:
            require_fitted(self._spec, self._compiled(self._known), self._known.stored)
        missing, passes = {want.key for want in wanted}, _depth(wanted)
        selection = screen_rows(self._snapshot, self._where, sample=self._sample)
        tasks = fit_tasks(self._snapshot, selection, self._workers.threads)
        while ready := [want for want in wanted if not want.depends]:
            self._step += 1
            self._learn(ready, self._observed(ready, tasks, selection, max(passes, self._step)))
            missing.difference_update(self._known.made)
            wanted = self._wanted() if missing or self._known.keep else ()
            missing.update(want.key for want in wanted)  # of what was kept until what it is made of came out different

    def _wanted(self) -> tuple[FitRequest, ...]:
        """What is missing, to be learnt from all features that share it, those too whose own fit would do."""
        missing = self._compiled(self._known).missing_fits
        return tuple(replace(self.everything[want.key], depends=want.depends) for want in missing)

    def report(self, began: float) -> FitReport:
        """Save the fits as the current artifact set."""
        learnt = [self._known.learnt(key) for key in self.everything]
        manifest, when = self._kept() or self._saved(learnt)
        return FitReport(
            fits=tuple(facts_of(one.fit, when[one.fit.key]) for one in learnt),
            made=len(self._known.made),
            passes=self._step,
            rows=self._rows,
            nbytes_read=self._nbytes_read,
            seconds=time.perf_counter() - began,
            table=self._snapshot.uri,
            snapshot=self._snapshot.id,
            folder=artifacts_dir(self._spec),
            manifest=manifest,
        )

    def _kept(self) -> tuple[str, Mapping[str, str]] | None:
        """The set that stays as it is; None where something was learnt, or some of it was not learnt for this."""
        stored = self._known.stored
        one = stored.chosen if self._known.keep and not self._known.made else None
        if one is None or stored.refused:
            return None
        if one.source is None and self._request.shared is None:  # an earlier version's: it has a name from now on
            self._name(one.manifest, one.fitted)
        return one.manifest, one.fitted

    def _saved(self, learnt: Sequence[FittedArtifact]) -> tuple[str, Mapping[str, str]]:
        """Write the set, with the fits of features that this pipeline does not have, and make it the current one."""
        folder, request = artifacts_dir(self._spec), self._request
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with content_store.lock_file(locate(absolute(folder)), set_file(request.pipeline, request.source)):
            before, others = self._others(folder)
            chosen = self._known.stored.chosen
            before = {**({} if chosen is None else chosen.fitted), **before}
            kept = [*learnt, *others]
            when = {one.fit.key: before.get(one.fit.key, now) for one in kept}
            when |= dict.fromkeys(self._known.made, now)
            manifest = save(folder, kept).digest
            self._name(manifest, when)
        return manifest, when

    def _name(self, manifest: str, when: Mapping[str, str]) -> None:
        """Make a manifest the current one of this pipeline and source."""
        request, now = self._request, datetime.now(UTC).isoformat(timespec="microseconds")
        one = ArtifactSetRecord(
            pipeline=request.pipeline, source=request.source, manifest=manifest, fitted=dict(when), saved=now
        )
        save_set(artifacts_dir(self._spec), one)

    def _others(self, folder: str) -> tuple[Mapping[str, str], list[FittedArtifact]]:
        """When the current fits were made, and the fits of features that this pipeline does not have, which stay."""
        try:
            one = load_set(folder, self._request.pipeline, self._request.source)
            fits = load_manifest(folder, one.manifest).fits.values() if one is not None else ()
        except (CorruptFileError, SpecError):  # replaced by what is written now
            return {}, []
        mine = {feature.name for feature in self._spec.features}
        others = [fit for fit in fits if fit.key not in self.everything and mine.isdisjoint(fit.features)]
        return ({} if one is None else one.fitted), [FittedArtifact(fit=fit, artifact=None) for fit in others]

    def _compiled(self, known: _PartialArtifactSet) -> CompiledFeatures:
        return compile_spec(self._spec, self._schema, artifacts=known)

    def _features_of(self, blank: _PartialArtifactSet) -> dict[str, tuple[str, ...]]:
        """The features that need each fit, by key."""
        found: dict[str, list[str]] = {}
        for feature in self._spec.features:
            for want in compile_spec(self._spec, self._schema, [feature], artifacts=blank).missing_fits:
                found.setdefault(want.key, []).append(feature.name)
        return {key: tuple(names) for key, names in found.items()}

    def _observed(
        self, ready: Sequence[FitRequest], tasks: Sequence[tuple[Fragment, ...]], selection: Selection, passes: int
    ) -> tuple[FitJob, States]:
        """One pass: what its tasks observed, as one."""
        job = self._job(ready, len(tasks))
        parts = compile_fit(job).parts
        if self._spec.source.schema_rules.missing == "error":
            require_columns(self._spec, self._snapshot, self._read(parts), self._where)
        stored = self._snapshot.rows_per_row_group
        rows = int(stored[selection.rows != 0].sum())
        self._nbytes_read += self._bytes(parts, selection)
        done = FitProgress(step=self._step, passes=passes, fits=len(ready), rows=rows, tasks=0, all_tasks=len(tasks))

        def tell(task: tuple[Fragment, ...]) -> None:
            nonlocal done
            done = replace(done, tasks=done.tasks + 1)
            self._say(done)

        self._say(done)
        states = (
            reduce_tasks(self._workers, observe_fragments, merge_states, job, tasks, done=tell) if tasks else NO_ROWS
        )
        if not states.rows:
            raise self._nothing()
        self._rows = states.rows
        return job, states

    def _learn(self, ready: Sequence[FitRequest], observed: tuple[FitJob, States]) -> None:
        """From last states to artifacts."""
        job, states = observed
        for place, (want, state) in enumerate(zip(ready, states.states, strict=True)):
            parts: Sequence[str] = ()
            if isinstance(state, Spilled) and len(state.files) > 1:
                tasks = [(place, state, part) for part in range(PARTS)]
                parts = map_tasks(self._workers, merge_spilled, job, tasks)
            try:
                artifact = want.learner.finish(parts_of(want.learner, state, job.scratch, parts))
            except FeedlineError as error:
                raise self._complaint(want, error) from error
            self._known.made[want.key] = FittedArtifact(fit=self._record(want, artifact), artifact=artifact)

    def _record(self, want: FitRequest, artifact: Artifact) -> Fit:
        op, version, parameters = want.op
        where, sample = self._spec.fit.where or self._spec.source.where, self._sample
        return Fit(
            key=want.key,
            op=op,
            version=version,
            parameters=parameters,
            chain=want.chain,
            features=self._features[want.key],
            types=dict(want.types),
            depends={key: self._known.learnt(key).fit.digest for key in sorted(self.everything[want.key].depends)},
            fitted_on=FitOrigin(
                table=redact(self._snapshot.uri),
                snapshot=self._snapshot.id,
                where=where,
                sample=None if sample is None else asdict(sample.sample),
                rows=self._rows,
                pipeline=self._spec.name,
                fit_where=self._spec.fit.where,
                named=source_names(self._spec.source.table, self._spec.source.format),
            ),
            facts=artifact.facts,
            shown=want.learner.show(artifact),
            table=None,
            digest=artifact.digest,
            behind=want.behind,
        )

    def _complaint(self, want: FitRequest, error: FeedlineError) -> FeedlineError:
        """What a learner says, with its place."""
        feature = next(feature for feature in self._spec.features if feature.name in self._features[want.key])
        said = str(error) if str(error).startswith(f"{want.op[0]} ") else f"{want.op[0]}: {error}"
        message = f"{want.feature}: {want.chain}: {said}"
        return self._spec.error(feature.path, message) if isinstance(error, SpecError) else DataError(message)

    def _nothing(self) -> FeedlineError:
        """Why there is no row to learn from."""
        rows = self._snapshot.rows
        if not rows or (self._where is None and self._sample is None):
            return PlanError(f"nothing to fit on: got 0 of {rows:,} rows of {redact(self._snapshot.uri)}")
        if self._where is None:
            return self._spec.error(("source", "sample"), f"the sample keeps no row: got 0 of {rows:,} rows to fit on")
        return self._spec.error(
            self._place, f"the filter keeps no row: got 0 of {rows:,} rows to fit on for {self._where.text!r}"
        )

    def _read(self, parts: Collection[str]) -> list[str]:
        """What a pass reads of the table: parts of columns, and what filter and sample need."""
        conditions = [condition.parts for condition in (self._where, self._sample) if condition is not None]
        made = (
            {SAMPLE_WEIGHT} if self._sample is not None and SAMPLE_WEIGHT not in self._snapshot.schema.names else set()
        )
        return sorted({*parts}.union(*conditions) - made)

    def _bytes(self, parts: Collection[str], selection: Selection) -> int:
        """Compressed bytes of the column chunks that a pass reads."""
        read, every = frozenset(parts), np.ones(len(selection.rows), np.bool_)
        deciding = deciding_parts(
            selection.proofs,
            self._where,
            self._sample,
            whole=selection.rows == self._snapshot.rows_per_row_group,
            weigh=self._sample is not None and SAMPLE_WEIGHT in read,
        )
        return int(needed_bytes(self._snapshot, [(read, every), *deciding])[selection.rows != 0].sum())

    def _job(self, ready: Sequence[FitRequest], tasks: int) -> FitJob:
        """What its tasks need; artifacts of passes before lie in the scratch folder."""
        known = {key for want in ready for key in self.everything[want.key].depends}
        where = self._spec.fit.where or self._spec.source.where
        rows = replace(rows_of(self._spec, self._snapshot), where=where)
        ref = replace(
            artifact_set_ref(self._spec), readings=self._known.stored.pinned.readings, request=None, rows=rows
        )
        if known:
            folder = below(self.scratch.folder, "artifacts")
            ref = replace(ref, folder=folder, manifest=save(folder, map(self._known.learnt, sorted(known))).digest)
        threads = math.ceil(self._workers.threads / self._workers.processes)
        levels = math.ceil(math.log(max(tasks, 2), FAN_IN))
        sets = threads * (1 + FAN_IN) + (FAN_IN - 1) * levels  # of states, at once in a process
        memory = self._spec.fit.memory or min(_MEMORY_BYTES, available_memory_bytes() // 2)
        return FitJob(
            features=self._spec.features,
            schema=self._schema.serialize().to_pybytes(),
            where=where,
            sample=None if self._sample is None else self._sample.sample,
            keys=tuple(want.key for want in ready),
            artifacts=ref,
            scratch=replace(self.scratch, limit_bytes=max(memory // sets, 1)),
            environment=self._workers.environment,
            code=code_of(self._spec),
        )


def fit_tasks(snapshot: Snapshot, selection: Selection, threads: int) -> list[tuple[Fragment, ...]]:
    """The row groups that may hold rows to learn from, in the table's order, in tasks of about equal rows. Pure."""
    left = np.flatnonzero(selection.rows)
    if not len(left):
        return []
    stored = snapshot.rows_per_row_group[left].astype(np.int64)
    share = int(stored.sum()) // (_TASKS_PER_THREAD * threads)
    rows = min(max(share, _LEAST_TASK_ROWS), _MOST_TASK_ROWS)
    file, part = snapshot.file_of_row_group[left], (np.cumsum(stored) - stored) // rows
    borders = np.flatnonzero((file[1:] != file[:-1]) | (part[1:] != part[:-1])) + 1
    tasks: dict[tuple[int, int], list[Fragment]] = {}
    for number, run in enumerate(np.split(np.arange(len(left)), borders)):
        groups = left[run]
        fragment = fragment_at(snapshot, int(file[run[0]]), groups, selection.rows[groups], selection.verdicts.proofs)
        tasks.setdefault((int(part[run[0]]), number // _TASK_FILES), []).append(fragment)
    return [tuple(fragments) for fragments in tasks.values()]


def _depth(wanted: Sequence[FitRequest]) -> int:
    """How many passes it takes: the longest chain of fits that wait for each other."""
    depends = {want.key: want.depends for want in wanted}
    depth: dict[str, int] = {}
    for key in sorted(depends, key=lambda key: len(depends[key])):  # what a fit waits for, waits for less
        depth[key] = 1 + max((depth[before] for before in depends[key]), default=0)
    return max(depth.values(), default=0)
