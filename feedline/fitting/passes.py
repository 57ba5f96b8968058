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
    save_manifest,
)
from feedline.errors import CorruptFileError, DataError, FeedlineError, PlanError, SpecError
from feedline.fitting.fit_report import FitReport, fit_facts
from feedline.fitting.fit_tasks import fit_tasks
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
from feedline.fitting.spill import PARTS, Scratch, SpilledState, discard, state_parts
from feedline.planning.binding.fitted_artifacts import artifact_set_key, artifact_set_ref, artifacts_dir, require_fitted
from feedline.planning.binding.read_columns import require_columns
from feedline.planning.binding.selected_rows import bound_sample, bound_where, rows_of
from feedline.planning.binding.table_features import compile_spec, planned_schema, required_functions
from feedline.planning.rows.exclusions import named_exclusion
from feedline.resources.cgroups import available_memory_bytes
from feedline.serving.golden_check import record
from feedline.spec import PipelineSpec
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.reading.seen_rows import source_names
from feedline.warehouse.selection.pruning_report import deciding_parts, needed_bytes
from feedline.warehouse.selection.select import Selection, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, below, locate, redact

# Default of `fit.memory`: this, or half of the free memory if that is less.
_MEMORY_BYTES = 4 * 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class FitProgress:
    """Progress of a fit: pass `step` of `passes`, `fits` statistics over `rows` stored rows; tasks done and in all."""

    step: int
    passes: int
    fits: int
    rows: int
    tasks: int
    all_tasks: int


FitCallback = Callable[[FitProgress], None]


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
        """A new or stored fit."""
        if key in self.new_fits:
            return self.new_fits[key]
        assert self.stored.manifest is not None
        fit = self.stored.manifest.fits[key]
        return FittedArtifact(fit=fit, artifact=load_artifact(self.stored.ref.folder, fit))


def fit_pipeline(
    spec: PipelineSpec,
    snapshot: Snapshot,
    workers: Workers,
    *,
    keep: bool = False,
    say: FitCallback = lambda progress: None,
) -> FitReport:
    """Fit all ops, make the result the current artifact set, and write golden vectors. keep: keep valid fits.

    A pipeline that uses another's fits (`artifacts: {from: NAME}`) learns nothing: those fits must exist.

    Raises SpecError if the spec does not fit the table or rows, or nothing can be written; PlanError if there is no row
    to learn from; and what reading raises. The previous set is still current then.
    """
    began = time.perf_counter()
    run = _Run(spec, snapshot, workers, keep or spec.artifacts.shared is not None, say)
    report = FitReport(table=snapshot.uri, snapshot=snapshot.id)
    try:
        try:
            if run.requests:
                run.work()
                report = run.report(began)
        finally:
            workers.remove_when_idle(lambda: discard(run.scratch))
        golden = record(spec, snapshot)
    except FeedlineError:
        raise
    except OSError as error:
        message = f"artifacts cannot be written: {error}. Name writable folders in `artifacts` and `work_dir`"
        raise spec.error(("artifacts",), message) from error
    return report if golden is None else replace(report, vectors=golden.rows.num_rows)


class _Run:
    """One fit of a pipeline, pass after pass."""

    def __init__(self, spec: PipelineSpec, snapshot: Snapshot, workers: Workers, keep: bool, say: FitCallback) -> None:
        self._spec = spec
        self._snapshot = snapshot
        self._workers = workers
        self._say = say
        self._schema = planned_schema(spec, snapshot.schema)
        self._request = replace(artifact_set_key(spec), root=redact(snapshot.uri))
        stored = StoredArtifactSet(replace(artifact_set_ref(spec), request=self._request), newest=keep)
        self._artifacts, blank = _FitsSoFar(stored, keep), _FitsSoFar(stored, False)
        self.requests = {request.key: request for request in self._compile(blank).missing_fits}
        self._features = self._features_of(blank)
        self.scratch = Scratch(folder=below(absolute(spec.work_dir), f"fitting-{secrets.token_hex(8)}"), limit_bytes=0)
        self._where_path = ("fit", "where") if spec.fit.where is not None else ("source", "where")
        self._where = bound_where(spec, snapshot.schema, text=spec.fit.where, path=self._where_path)
        self._sample = bound_sample(spec, snapshot.schema)
        self._exclusion = named_exclusion(spec, snapshot) if spec.fit.where is None else None
        self._step = self._rows = self._nbytes_read = 0

    def work(self) -> None:
        """Run all passes. Raises as `fit_pipeline` does."""
        requests = self._missing_requests() if self._artifacts.keep else tuple(self.requests.values())
        if not requests:
            return
        if self._request.shared_from is not None:
            require_fitted(self._spec, self._compile(self._artifacts), self._artifacts.stored)
        missing, passes = {request.key for request in requests}, _depth(requests)
        selection = screen_rows(self._snapshot, self._where, sample=self._sample).without(self._exclusion)
        tasks = fit_tasks(self._snapshot, selection, self._workers.threads)
        while ready := [request for request in requests if not request.depends]:
            self._step += 1
            self._learn(ready, self._observe(ready, tasks, selection, max(passes, self._step)))
            missing.difference_update(self._artifacts.new_fits)
            requests = self._missing_requests() if missing or self._artifacts.keep else ()
            missing.update(request.key for request in requests)  # also stored fits whose own inputs have changed

    def _missing_requests(self) -> tuple[FitRequest, ...]:
        """The fits to make, each from all features that share it, including those that a stored fit would serve."""
        missing = self._compile(self._artifacts).missing_fits
        return tuple(replace(self.requests[request.key], depends=request.depends) for request in missing)

    def report(self, began: float) -> FitReport:
        """Save the fits as the current artifact set."""
        fits = [self._artifacts.fitted_artifact(key) for key in self.requests]
        manifest, times = self._unchanged_set() or self._save(fits)
        return FitReport(
            fits=tuple(fit_facts(one.fit, times[one.fit.key]) for one in fits),
            made=len(self._artifacts.new_fits),
            passes=self._step,
            rows=self._rows,
            nbytes_read=self._nbytes_read,
            seconds=time.perf_counter() - began,
            table=self._snapshot.uri,
            snapshot=self._snapshot.id,
            folder=artifacts_dir(self._spec),
            manifest=manifest,
        )

    def _unchanged_set(self) -> tuple[str, Mapping[str, str]] | None:
        """The stored set if it stays current; None if there are new fits."""
        stored = self._artifacts.stored
        record = stored.record if self._artifacts.keep and not self._artifacts.new_fits else None
        if record is None:
            return None
        if record.source is None and self._request.shared_from is None:  # an earlier version's: give it a name
            self._make_current(record.manifest, record.fit_times)
        return record.manifest, record.fit_times

    def _save(self, fits: Sequence[FittedArtifact]) -> tuple[str, Mapping[str, str]]:
        """Write the set, with the fits of features that this pipeline does not have, and make it current."""
        folder, request = artifacts_dir(self._spec), self._request
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with content_store.lock_file(locate(absolute(folder)), set_file(request.pipeline, request.source)):
            before, others = self._other_fits(folder)
            record = self._artifacts.stored.record
            before = {**({} if record is None else record.fit_times), **before}
            every = [*fits, *others]
            times = {one.fit.key: before.get(one.fit.key, now) for one in every}
            times |= dict.fromkeys(self._artifacts.new_fits, now)
            manifest = save_manifest(folder, every).digest
            self._make_current(manifest, times)
        return manifest, times

    def _make_current(self, manifest: str, times: Mapping[str, str]) -> None:
        """Make a manifest current for this pipeline and source."""
        request, now = self._request, datetime.now(UTC).isoformat(timespec="microseconds")
        record = ArtifactSetRecord(
            pipeline=request.pipeline, source=request.source, manifest=manifest, fit_times=dict(times), saved_at=now
        )
        save_set(artifacts_dir(self._spec), record)

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

    def _compile(self, artifacts: _FitsSoFar) -> CompiledFeatures:
        return compile_spec(self._spec, self._schema, artifacts=artifacts)

    def _features_of(self, blank: _FitsSoFar) -> dict[str, tuple[str, ...]]:
        """The features that need each fit, by key."""
        names: dict[str, list[str]] = {}
        for feature in self._spec.features:
            for request in compile_spec(self._spec, self._schema, [feature], artifacts=blank).missing_fits:
                names.setdefault(request.key, []).append(feature.name)
        return {key: tuple(features) for key, features in names.items()}

    def _observe(
        self, ready: Sequence[FitRequest], tasks: Sequence[tuple[Fragment, ...]], selection: Selection, passes: int
    ) -> tuple[FitJob, States]:
        """Run the tasks of one pass and merge their states."""
        job = self._job(ready, len(tasks))
        parts = compile_fit(job).parts
        if self._spec.source.schema_rules.missing == "error":
            require_columns(self._spec, self._snapshot, self._read_columns(parts), self._where)
        rows = int(self._snapshot.rows_per_row_group[selection.rows != 0].sum())
        self._nbytes_read += self._pass_bytes(parts, selection)
        now = FitProgress(step=self._step, passes=passes, fits=len(ready), rows=rows, tasks=0, all_tasks=len(tasks))

        def advance(task: tuple[Fragment, ...]) -> None:
            nonlocal now
            now = replace(now, tasks=now.tasks + 1)
            self._say(now)

        self._say(now)
        states = NO_ROWS
        if tasks:
            states = reduce_tasks(self._workers, observe_fragments, merge_states, job, tasks, on_done=advance)
        if not states.rows:
            raise self._no_rows_error()
        self._rows = states.rows
        return job, states

    def _learn(self, ready: Sequence[FitRequest], job_states: tuple[FitJob, States]) -> None:
        """Turn final states into artifacts."""
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
        where, sample = self._spec.fit.where or self._spec.source.where, self._sample
        depends = self.requests[request.key].depends
        return Fit(
            key=request.key,
            op=op,
            version=version,
            parameters=parameters,
            chain=request.chain,
            features=self._features[request.key],
            types=dict(request.types),
            depends={key: self._artifacts.fitted_artifact(key).fit.digest for key in sorted(depends)},
            fitted_on=FitOrigin(
                table=redact(self._snapshot.uri),
                snapshot=self._snapshot.id,
                where=where,
                sample=None if sample is None else asdict(sample.sample),
                rows=self._rows,
                pipeline=self._spec.name,
                fit_where=self._spec.fit.where,
                named=source_names(self._spec.source.table, self._spec.source.format),
                exclude=None if self._exclusion is None else self._exclusion.id,
            ),
            facts=artifact.facts,
            shown=request.learner.show(artifact),
            table=None,
            digest=artifact.digest,
            behind=request.behind,
        )

    def _learner_error(self, request: FitRequest, error: FeedlineError) -> FeedlineError:
        """A learner's error, with the feature and the position in pipeline.yaml."""
        feature = next(feature for feature in self._spec.features if feature.name in self._features[request.key])
        op = request.op[0]
        cause = str(error) if str(error).startswith(f"{op} ") else f"{op}: {error}"
        message = f"{request.feature}: {request.chain}: {cause}"
        return self._spec.error(feature.path, message) if isinstance(error, SpecError) else DataError(message)

    def _no_rows_error(self) -> FeedlineError:
        """The error for a fit without rows."""
        rows = self._snapshot.rows
        if not rows or (self._where is None and self._sample is None):
            return PlanError(f"nothing to fit on: got 0 of {rows:,} rows of {redact(self._snapshot.uri)}")
        if self._where is None:
            return self._spec.error(("source", "sample"), f"the sample keeps no row: got 0 of {rows:,} rows to fit on")
        return self._spec.error(
            self._where_path, f"the filter keeps no row: got 0 of {rows:,} rows to fit on for {self._where.text!r}"
        )

    def _read_columns(self, parts: Collection[str]) -> list[str]:
        """The column parts that a pass reads, with those of filter and sample."""
        conditions = [condition.parts for condition in (self._where, self._sample) if condition is not None]
        generated = self._sample is not None and SAMPLE_WEIGHT not in self._snapshot.schema.names
        return sorted({*parts}.union(*conditions) - ({SAMPLE_WEIGHT} if generated else set()))

    def _pass_bytes(self, parts: Collection[str], selection: Selection) -> int:
        """Compressed bytes of the column chunks that a pass reads."""
        read, every = frozenset(parts), np.ones(len(selection.rows), np.bool_)
        deciding = deciding_parts(
            selection.proofs,
            self._where,
            self._sample,
            whole=selection.kept_rows == self._snapshot.rows_per_row_group,
            weigh=self._sample is not None and SAMPLE_WEIGHT in read,
        )
        return int(needed_bytes(self._snapshot, [(read, every), *deciding])[selection.rows != 0].sum())

    def _job(self, ready: Sequence[FitRequest], tasks: int) -> FitJob:
        """The job of a pass; artifacts of earlier passes are in the scratch folder."""
        depends = {key for request in ready for key in self.requests[request.key].depends}
        where = self._spec.fit.where or self._spec.source.where
        rows = replace(rows_of(self._spec.source, self._snapshot), where=where)
        ref = replace(
            artifact_set_ref(self._spec), readings=self._artifacts.stored.pinned_ref.readings, request=None, rows=rows
        )
        if depends:
            folder = below(self.scratch.folder, "artifacts")
            manifest = save_manifest(folder, map(self._artifacts.fitted_artifact, sorted(depends)))
            ref = replace(ref, folder=folder, manifest=manifest.digest)
        threads = math.ceil(self._workers.threads / self._workers.processes)
        levels = math.ceil(math.log(max(tasks, 2), FAN_IN))
        sets = threads * (1 + FAN_IN) + (FAN_IN - 1) * levels  # sets of states at once in a process
        memory = self._spec.fit.memory or min(_MEMORY_BYTES, available_memory_bytes() // 2)
        return FitJob(
            features=self._spec.features,
            schema=self._schema.serialize().to_pybytes(),
            where=where,
            sample=None if self._sample is None else self._sample.sample,
            keys=tuple(request.key for request in ready),
            artifacts=ref,
            scratch=replace(self.scratch, limit_bytes=max(memory // sets, 1)),
            environment=self._workers.environment,
            code=required_functions(self._spec),
        )


def _depth(requests: Sequence[FitRequest]) -> int:
    """The number of passes: the longest chain of dependent fits."""
    depends = {request.key: request.depends for request in requests}
    depth: dict[str, int] = {}
    for key in sorted(depends, key=lambda key: len(depends[key])):  # dependencies first: they have fewer of their own
        depth[key] = 1 + max((depth[before] for before in depends[key]), default=0)
    return max(depth.values(), default=0)
