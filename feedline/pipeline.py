"""The Python interface to a pipeline.yaml: plan, fit, transform, iterate, and inspect with Dask.

Runs in: any process. `batches` and `transform` need no Dask, no ring and no other process.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from feedline.config import PipelineSpec, load_spec
from feedline.config.chosen_features import choose_features
from feedline.config.pipeline_spec import json_schema
from feedline.extras import extra
from feedline.fitting.fit_report import FitReport
from feedline.fitting.history_audit import AuditReport, audit_histories
from feedline.fitting.passes import fit_pipeline
from feedline.fitting.reduction import Workers, threads_here
from feedline.fitting.row_check import MAX_SHARE, RowBudget, RowReport, find_exclusion
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.encoding.quality import measures, merge
from feedline.loader.plan_descriptions import describe_bad_files
from feedline.loader.row_arrays import Encoded
from feedline.loader.wire.facts import Hello
from feedline.planning.plan import Plan
from feedline.planning.resolve import (
    Fit,
    current_snapshot,
    current_snapshots,
    lanes_for,
    plan_column_group,
    preview_plan,
    resolve_hello,
    resolve_next,
    resolve_rebase,
    resolve_snapshots,
    resolve_state,
    start_of,
)
from feedline.resources.cgroups import available_cores
from feedline.service.feeder.in_process import iterate_plan
from feedline.service.feeder.quality_monitor import QualityMonitor
from feedline.serving.encoder import Rows, Serving
from feedline.transforms.catalogue import op_schema
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

if TYPE_CHECKING:
    from feedline.loader.batch import Batch
    from feedline.materialize.write_plan import MaterializeReport


# The snapshot of the table, or those of all sources.
Snapshots: TypeAlias = Snapshot | Sequence[Snapshot]


class Pipeline:
    """A pipeline.yaml, resolved against the op registry, and against its table when needed.

    `spec`: its content, as `from_yaml` and `from_dict` read it. `snapshot` of its methods: of the table, or those of
    all sources (default: a new one). `map` of its methods: computes a function of each element of a list, in order
    (default: in threads of this process).

    Examples:
        >>> pipeline = Pipeline.from_yaml("pipeline.yaml", set={"batch.size": 512})
        >>> batch = next(pipeline.batches(rank=1, world_size=2))
        >>> batch.epoch, batch.step, batch.rows
        (0, 0, 512)
        >>> row = {"dense_0": 1.5, "ts": datetime(2026, 1, 1, 12), "id_0": 17, "hist_0": [5, 6, 7]}
        >>> pipeline.transform(row)["history"].lengths
        array([3], dtype=int32)
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self.spec = spec
        self._serving = Serving(spec)
        self._monitors: list[QualityMonitor] = []

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], set: Mapping[str, object] | None = None) -> Pipeline:
        """Read a pipeline.yaml, with overrides. Raises SpecError naming file, line and path."""
        return cls(load_spec(path, set or {}))

    @classmethod
    def from_dict(cls, pipeline: Mapping[str, object], set: Mapping[str, object] | None = None) -> Pipeline:
        """A pipeline from what a pipeline.yaml would hold, with overrides; relative paths are relative to the current
        folder. Equal contents have equal fingerprints. Raises SpecError naming the path."""
        return cls(load_spec(pipeline, set or {}))

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """The JSON Schema of pipeline.yaml, ops included."""
        return json_schema(op_schema())

    # -- planning -------------------------------------------------------------------------------------------------

    def of_source(self, name: str) -> Pipeline:
        """The pipeline of the one of `sources` with this name, with its rows of a step as the batch size. Raises
        SpecError for an unknown one."""
        return Pipeline(self.spec.for_source(name))

    def snapshot(self, *, map: Map | None = None) -> Snapshot:
        """Take a snapshot of the table and save it in work_dir; `map` reads the footers (default: threads).

        With `on_bad_file: skip` bad files are left out, and rows are counted to find them. `source.snapshot` may name a
        saved one. Several sources have `snapshots`.
        """
        return current_snapshot(self.spec, map=map)

    def snapshots(self, *, map: Map | None = None) -> tuple[Snapshot, ...]:
        """The same of each source. Where a `snapshot` may be given, these may, too."""
        return current_snapshots(self.spec, map=map)

    def plan(self, *, world_size: int = 1, snapshot: Snapshots | None = None, map: Map | None = None) -> Plan:
        """The exact plan for a number of ranks, on a new snapshot unless one is given."""
        lanes = lanes_for(self.spec.lanes, world_size)
        return preview_plan(self.spec, _snapshots_of(self, snapshot, map), lanes=lanes, map=map)

    def complete_plan(
        self,
        world_size: int = 1,
        snapshot: Snapshots | None = None,
        *,
        map: Map | None = None,
        workers: Workers | None = None,
    ) -> Plan:
        """The plan of a new run with every artifact, on a new snapshot unless one is given; snapshot, counts and
        artifacts are kept in work_dir.

        With `fit: auto`, `workers` fit what is missing (default: threads of this process). Raises SpecError where an
        artifact is missing, DataError for nulls that the run is certain to contain.
        """
        lanes, fit = lanes_for(self.spec.lanes, world_size), self._fit_with(workers)
        snapshots = _snapshots_of(self, snapshot, map)
        return resolve_snapshots(self.spec, snapshots, lanes=lanes, fit=fit, map=map).without_gaps()

    def resolve(
        self,
        hello: Hello,
        *,
        job: str,
        map: Map | None = None,
        workers: Workers | None = None,
        plans: Sequence[Plan] = (),
    ) -> Plan:
        """The plan that a trainer's hello asks for: its state's, or one that all ranks of this start agree on.

        job: names the start that the ranks agree on. With `fit: auto`, `workers` fit what is missing (default: threads
        of this process). plans: of the pipeline's other ranks in this process; the same plan is returned, not made
        again.

        Raises StateError, with both values, where the trainer's state belongs to another plan or other features.
        """
        return resolve_hello(
            self.spec, hello, start=start_of(hello, job=job), fit=self._fit_with(workers), map=map, plans=plans
        )

    def plan_for(self, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
        """The plan that a state belongs to. Raises StateError where it is of another plan or other features."""
        return resolve_state(self.spec, state, fit=self._fit_with(None), map=map)

    def next_plan(self, plan: Plan, *, map: Map | None = None) -> Plan | None:
        """The plan of the epoch after a plan's (from `complete_plan` or `plan_for`), on a followed table
        (`source.follow`); None where the run has ended.

        What has landed is decided once and kept: a second call gives the same plan. Raises PlanError until then.
        """
        return resolve_next(self.spec, plan, fit=self._fit_with(None), map=map)

    def rebase(self, state: Mapping[str, Any], *, map: Map | None = None) -> Plan:
        """The plan of a state's run on the current table, without the rows that the state's epoch has delivered.

        `plan.state_after(state)` continues there. An unchanged table gives the state's own plan. `source.snapshot` is
        ignored. Raises StateError where rows of rewritten files were delivered whose identities were not recorded,
        where the state is of another plan, and where the new table cannot be compared with the old one.
        """
        return resolve_rebase(self.spec, state, map=map)

    # -- fitting --------------------------------------------------------------------------------------------------

    def fit(
        self,
        *,
        missing: bool = False,
        snapshot: Snapshots | None = None,
        workers: Workers | None = None,
        map: Map | None = None,
    ) -> FitReport:
        """Fit all ops on the rows selected by `fit.where`, make the result the current artifact set, and write golden
        vectors.

        missing: fit only what is missing. workers: where to compute (default: threads of this process). Raises
        SpecError, PlanError where there is no row to fit on, and reading errors; then the current artifact set stays,
        unless only the golden vectors could not be written.
        """
        snapshots = _snapshots_of(self, snapshot, map)
        try:
            if workers is not None:
                return fit_pipeline(self.spec, snapshots, workers, keep=missing)
            with self._threads() as local_workers:
                return fit_pipeline(self.spec, snapshots, local_workers, keep=missing)
        finally:  # not earlier: rows transformed meanwhile would keep the set that is being replaced
            self._serving = Serving(self.spec)

    def _fit_with(self, workers: Workers | None) -> Fit:
        return lambda snapshots: self.fit(missing=True, snapshot=snapshots, workers=workers).manifest

    def check_rows(
        self,
        out: str | os.PathLike[str] | None = None,
        *,
        max_rows: int | None = None,
        max_share: float = MAX_SHARE,
        earlier: str | None = None,
        workers: Workers | None = None,
        map: Map | None = None,
    ) -> RowReport:
        """Find all rows that features refuse or that break an expectation alone, and write them as an exclusion, for
        `source.exclude`: to a file or URI `out`, and below work_dir.

        max_rows, max_share: more bad rows are an error. earlier: an exclusion whose unchanged files are not read again.
        workers: where to compute (default: threads of this process). Raises DataError for too many
        bad rows, SpecError, and what planning and reading raise; then nothing is written.
        """
        budget, file = RowBudget(rows=max_rows, share=max_share), None if out is None else os.fspath(out)
        with nullcontext(workers) if workers is not None else self._threads() as own:
            return find_exclusion(self.spec, own, budget=budget, out=file, earlier=earlier, map=map)

    def audit(
        self,
        compare: Mapping[str, str],
        *,
        by: str | None = None,
        times: str | None = None,
        rows: int | None = None,
        workers: Workers | None = None,
        map: Map | None = None,
    ) -> AuditReport:
        """Compare columns of lists that the table has with those that features rebuild from histories, before ops.

        compare: by feature, the column. by: the column by whose values to count (default: the first partition key).
        times: the column of lists with the times of the table's events, by which leaks are found. rows: about so many
        (default: all). workers: where to compare (default: threads of this process). Raises SpecError for what cannot
        be compared, and what planning and reading raise.
        """
        with nullcontext(workers) if workers is not None else self._threads() as own:
            return audit_histories(self.spec, own, compare, by=by, times=times, rows=rows, map=map)

    # -- using ----------------------------------------------------------------------------------------------------

    def transform(self, data: Rows, histories: Mapping[str, Rows] | None = None) -> Encoded:
        """Encode rows exactly as training does, without a table, labels, Dask or torch. Thread-safe.

        `data`: Arrow, Polars, pandas, columns by name, a list of dicts, or one dict of a row's values. `histories`: the
        events of each history that features read, in the same forms: at least those that the rows see. Raises SpecError
        where a column is missing or of a kind that features refuse, DataError for nulls and for values out of range.
        """
        return self._serving.transform(data, histories or {})

    @property
    def schema(self) -> BatchSchema:
        """The columns of a batch, equal to `dataset.schema`; the table is read only where its types are not recorded.
        Raises SpecError where an artifact is missing."""
        return self._serving.schema(lambda: [snapshot.schema for snapshot in self.snapshots()])

    def batches(
        self,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        step: int = 0,
        snapshot: Snapshots | None = None,
        plan: Plan | None = None,
        features: Sequence[str] | None = None,
    ) -> Iterator[Batch]:
        """The batches of one rank and epoch from a step on, computed in this process and thread: no ring, no Dask.

        For tests, for debugging with pdb, and for machines without Linux. `plan`: the plan of a state (`plan_for`) or
        of a rebase (default: a new one). `features`: of a column group, as `FeedlineDataset` takes them (default: those
        of the plan).
        """
        names = None if features is None else choose_features(self.spec, features)
        plan = plan or self.complete_plan(world_size, snapshot)
        plan = plan if names is None else plan_column_group(plan, names)
        plan.require_fitted()
        _warn(plan)
        monitor = QualityMonitor(plan.layout.schema, plan.feature_specs, plan.on_expect)
        self._monitors.append(monitor)
        return iterate_plan(plan, monitor, epoch=epoch, rank=rank, world_size=world_size, step=step)

    def quality(self) -> dict[str, dict[str, Any]]:
        """The quality of the blocks that `batches` delivered: measures by feature."""
        totals = [(monitor.schema, total) for monitor in self._monitors if (total := monitor.total) is not None]
        return measures(merge([total for _, total in totals]), totals[0][0]) if totals else {}

    def to_dask(self, epoch: int = 0, *, world_size: int = 1) -> Any:
        """A Dask DataFrame of Arrow-typed feature columns; its partitions are the epoch's blocks, lane after lane.

        Rows that the tail policy would drop are included.
        """
        with extra("dataframe", "Pipeline.to_dask"):
            from feedline.service.plan_frame import plan_to_dask  # noqa: PLC0415 -- an extra; 0.35 s of pandas

        plan = self.complete_plan(world_size)
        source = plan.source_for("to_dask")
        _warn(plan)
        return plan_to_dask(source, epoch)

    def materialize(
        self,
        out: str | os.PathLike[str],
        *,
        format: str = "zarr",
        overwrite: bool = False,
        workers: Workers | None = None,
        map: Map | None = None,
    ) -> MaterializeReport:
        """Write the features of all selected rows, in the table's order, into a folder or URI, `out`.

        format: "zarr" or "parquet". overwrite: replace what an earlier call wrote there. workers: where to compute
        (default: threads of this process). Raises SpecError, also for a folder that holds anything else, TableError
        where it cannot be written, and what blocks raise; then OUT is as it was, or lacks its marker.
        """
        from feedline.materialize.write_plan import open_output, write_plan  # noqa: PLC0415 -- for this method alone

        with nullcontext(workers) if workers is not None else self._threads() as own:
            folder = open_output(os.fspath(out), format, overwrite=overwrite)
            plan = self.complete_plan(map=map, workers=own)
            source = plan.source_for("materialize")
            plan.require_fitted()
            _warn(plan)
            monitor = QualityMonitor(plan.layout.schema, plan.feature_specs, plan.on_expect)
            self._monitors.append(monitor)
            monitor.begin(0)
            return write_plan(source, folder, format, own, monitor=monitor)

    def _threads(self) -> AbstractContextManager[Workers]:
        threads = self.spec.cluster.threads
        return threads_here(available_cores() if threads == "auto" else threads)


def _snapshots_of(pipeline: Pipeline, given: Snapshots | None, map: Map | None) -> Sequence[Snapshot]:
    if given is None:
        return pipeline.snapshots(map=map)
    return (given,) if isinstance(given, Snapshot) else given


def _warn(plan: Plan) -> None:
    for text in plan.null_warnings():
        warnings.warn(text, UserWarning, stacklevel=3)
    if bad_files := plan.bad_files():
        warnings.warn(describe_bad_files(bad_files), UserWarning, stacklevel=3)
