"""The metrics of a worker: the blocks that its process computes.

Runs in: workers. Pure.
"""

from __future__ import annotations

from feedline.dataclass import dataclass
from feedline.native.kernels import kernels_text
from feedline.service.monitoring.block_counts import BlocksComputed
from feedline.service.monitoring.metric import Metric, information, single
from feedline.version import VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerState:
    """A worker at a moment. threads: for tasks. is_serving: whether a scheduler has it."""

    threads: int
    is_serving: bool
    blocks: BlocksComputed


WORKER_METRICS: tuple[Metric[WorkerState], ...] = (
    information(
        "feedline_build_info",
        "The release of Feedline that the process runs, and its compiled kernels.",
        {"version": lambda state: VERSION, "role": lambda state: "worker", "kernels": lambda state: kernels_text()},
    ),
    single("feedline_worker_threads", "Threads that compute blocks.", lambda state: state.threads, {}),
    single("feedline_worker_serving", "1 while a scheduler has the worker.", lambda state: float(state.is_serving), {}),
    single("feedline_worker_blocks_total", "Blocks computed.", lambda state: state.blocks.sums.blocks, {}),
    single("feedline_worker_rows_total", "Rows of those blocks.", lambda state: state.blocks.sums.rows, {}),
    single("feedline_worker_blocks_running", "Blocks that are computed now.", lambda state: state.blocks.running, {}),
    single(
        "feedline_worker_read_bytes_total",
        "Compressed bytes of the column chunks of those blocks.",
        lambda state: state.blocks.sums.nbytes_read,
        {},
    ),
    single(
        "feedline_worker_encoded_bytes_total",
        "Bytes of them, encoded.",
        lambda state: state.blocks.sums.nbytes_encoded,
        {},
    ),
    Metric(
        name="feedline_worker_stage_seconds_total",
        meaning="Seconds that those blocks took, by stage.",
        labels=("stage",),
        samples=lambda state: [((stage,), seconds) for stage, seconds in state.blocks.sums.times.stages.items()],
    ),
    Metric(
        name="feedline_worker_failed_blocks_total",
        meaning="Blocks that failed, by the kind of failure.",
        labels=("kind",),
        samples=lambda state: [((kind,), count) for kind, count in state.blocks.failed.items()],
    ),
)
