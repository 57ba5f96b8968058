"""Run `feedline plan --save`: do before a job what its start would do, and keep the results in `work_dir`.

Runs in: the process of the command. Footers are read and rows counted by threads of this process, or on the pipeline's
cluster, in waves whose results are kept: a command that was killed continues where it stopped.
"""

from __future__ import annotations

import numpy as np

from feedline.commands.cluster.connect import pipeline_cluster
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.pipeline import Pipeline
from feedline.planning.plan import Plan
from feedline.planning.table_snapshot import save_for_runs
from feedline.service.cluster.fit_workers import DaskWorkers
from feedline.warehouse.selection.pruning_report import COUNTED
from feedline.warehouse.storage.locations import absolute, redact


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPlan:
    """What was saved. snapshot, snapshot_file: of several sources each, joined by commas; the file is for
    `source.snapshot`, or that of each of `sources`. artifacts: the manifest of the artifact set, or None."""

    work_dir: str
    snapshot: str
    snapshot_file: str
    files: int
    rows: int
    counted_row_groups: int
    artifacts: str | None

    def text(self) -> str:
        """The summary for people, with the line that starts a run from it."""
        counted = f"counts of {self.counted_row_groups:,} row groups" if self.counted_row_groups else "nothing to count"
        artifacts = "no artifacts" if self.artifacts is None else f"artifact set {self.artifacts}"
        files = self.snapshot_file.split(",")
        keys = ["source.snapshot"] if len(files) == 1 else [f"sources.{index}.snapshot" for index in range(len(files))]
        lines = "\n".join(f"{key}: {file}" for key, file in zip(keys, files, strict=True))
        return (
            f"saved in {self.work_dir}: snapshot {self.snapshot}, {self.files:,} files, {self.rows:,} rows; {counted}; "
            f"{artifacts}\nruns that start from it neither list nor count: {lines}"
        )


def save_plan(spec: PipelineSpec, *, world_size: int) -> tuple[Plan, SavedPlan]:
    """Take the snapshot (unless `source.snapshot` names one), count, fit what is missing if the pipeline says
    `fit: auto`, and save all of it in work_dir.

    Raises SpecError where artifacts are missing that the run would not fit itself. Ctrl-C and SIGTERM end the command
    in order.
    """
    stopped = "stopped: what was read and counted is kept; run the same command to continue"
    with (
        ProgressLine() as line,
        exit_on_signals(lambda: line.note(stopped)),
        pipeline_cluster(spec) as cluster,
    ):
        pipeline = Pipeline(spec)
        map = None if cluster is None else cluster.map
        workers = None if cluster is None else DaskWorkers(cluster)
        snapshots = pipeline.snapshots(map=map)
        plan = pipeline.complete_plan(world_size, snapshots, map=map, workers=workers)
        files = [
            each.source.snapshot or save_for_runs(each, snapshot)
            for each, snapshot in zip(spec.per_source(), snapshots, strict=True)
        ]
    first = plan.sources[0]
    return plan, SavedPlan(
        work_dir=redact(absolute(spec.work_dir)),
        snapshot=plan.snapshot_name,
        snapshot_file=",".join(redact(file) for file in files),
        files=sum(len(snapshot.files) for snapshot in snapshots),
        rows=sum(snapshot.rows for snapshot in snapshots),
        counted_row_groups=sum(int(np.count_nonzero(each.selection.verdicts.fate == COUNTED)) for each in plan.sources),
        artifacts=first.job.artifacts.manifest if first.features.artifacts is not None else None,
    )
