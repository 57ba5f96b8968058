"""Open what a feeder is watched by: its metrics, and the spans of its blocks, where pipeline.yaml asks for them.

Runs in: the feeder. Without the keys `metrics` and `traces` nothing is imported and nothing listens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from feedline.config.monitoring_section import MetricsSpec, TracesSpec
from feedline.errors import FeederError
from feedline.extras import extra
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.monitoring.feeder_metrics import FEEDER_METRICS
from feedline.service.monitoring.finished_block import ObserveBlock
from feedline.service.monitoring.target_files import sweep_targets


@contextlib.contextmanager
def watch_feeder(
    metrics: MetricsSpec | None, traces: TracesSpec | None, status: Callable[[], FeederStatus], ranks: Sequence[int]
) -> Iterator[ObserveBlock | None]:
    """Serve the metrics of a status, until the context ends; yields what takes finished blocks, if anything does.

    ranks: those that the feeder is to serve, if that is decided. Raises ClusterError if the address is taken, and
    FeederError without the extra `otel`.
    """
    with contextlib.ExitStack() as stack:
        if metrics is not None:
            from feedline.service.monitoring.prometheus_server import serve_metrics  # noqa: PLC0415 -- rare

            shown = f"{min(ranks)}-{max(ranks)}" if len(ranks) > 1 else "".join(map(str, ranks))
            labels = {"feedline_role": "feeder", "feedline_job": status().job, "feedline_ranks": shown}
            stack.enter_context(serve_metrics(metrics, FEEDER_METRICS, status, labels))
        observe = None
        if traces is not None:
            with extra("otel", "the key traces", FeederError):
                from feedline.service.monitoring.block_spans import BlockSpans  # noqa: PLC0415 -- an extra
            spans = BlockSpans(traces, job=status().job, feeder=status().feeder)
            stack.callback(spans.close)
            observe = spans.add
        yield observe


def remove_dead_targets(metrics: MetricsSpec | None) -> None:
    """Remove the target files of processes that have died, if there is a folder of them."""
    if metrics is not None and metrics.folder is not None:
        sweep_targets(metrics.folder)
