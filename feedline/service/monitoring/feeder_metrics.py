"""The metrics of a feeder, read from its status.

Runs in: the feeder, in the thread that answers a scrape. Pure. Labels are the job, the rank, the stage, and words of
fixed sets; never a feature, a file or a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from feedline.loader.wire.run_status import FILES_PHASE, FeederStatus, RankStatus
from feedline.service.monitoring.metric import Metric, Sample, information, single

_JOB: Mapping[str, Callable[[FeederStatus], str]] = {"pipeline": lambda status: status.job}


def _feeder(name: str, meaning: str, value: Callable[[FeederStatus], float | None]) -> Metric[FeederStatus]:
    return single(f"feedline_{name}", meaning, value, _JOB)


def _rank(name: str, meaning: str, value: Callable[[RankStatus], float | None]) -> Metric[FeederStatus]:

    def samples(status: FeederStatus) -> Iterator[Sample]:
        for rank in status.ranks:
            if (number := value(rank)) is not None:
                yield (status.job, str(rank.rank)), number

    return Metric(name=f"feedline_{name}", meaning=meaning, labels=("pipeline", "rank"), samples=samples)


def _ranks_by(
    label: str, name: str, meaning: str, values: Callable[[RankStatus], Mapping[str, float]]
) -> Metric[FeederStatus]:
    """Numbers of each rank, by a label with a fixed set of words."""

    def samples(status: FeederStatus) -> Iterable[Sample]:
        for rank in status.ranks:
            for word, number in values(rank).items():
                yield (status.job, str(rank.rank), word), number

    return Metric(name=f"feedline_{name}", meaning=meaning, labels=("pipeline", "rank", label), samples=samples)


def _of_cache(rank: RankStatus, **names: str) -> dict[str, float]:
    """Counts of a cache, by word; none without one. names: of the counts."""
    cached = rank.stats.delivery.cached
    return {} if cached is None else {word: getattr(cached, name) for word, name in names.items()}


_OF_RANKS = (
    _rank("rows_total", "Rows announced to the trainer.", lambda rank: rank.stats.rows),
    _rank("batches_total", "Batches announced to the trainer.", lambda rank: rank.stats.batches),
    _rank("delivered_bytes_total", "Bytes of the batches announced.", lambda rank: rank.stats.nbytes),
    _rank(
        "trainer_wait_seconds_total",
        "Seconds that the trainer has waited for batches, beyond a stream's first, by its own clock.",
        lambda rank: rank.stalled_s,
    ),
    _rank(
        "block_wait_seconds_total",
        "Seconds in which the feeder slept while the next step lacked a block.",
        lambda rank: rank.stats.wait_blocks_s,
    ),
    _rank(
        "slot_wait_seconds_total",
        "Seconds in which the feeder slept while the next batch lacked a free slot: the trainer is the limit.",
        lambda rank: rank.stats.wait_slots_s,
    ),
    _rank("blocks_total", "Blocks received from workers.", lambda rank: rank.stats.delivery.blocks),
    _rank(
        "blocks_resubmitted_total",
        "Blocks submitted again: lost, failed or late ones.",
        lambda rank: rank.stats.delivery.resubmitted,
    ),
    _rank(
        "read_bytes_total",
        "Compressed bytes of the column chunks that the received blocks consist of.",
        lambda rank: rank.stats.delivery.nbytes_read,
    ),
    _rank("encoded_bytes_total", "Bytes of the received blocks.", lambda rank: rank.stats.delivery.nbytes_encoded),
    _ranks_by(
        "stage",
        "stage_seconds_total",
        "Seconds of threads for the received blocks, and for copies to slots.",
        lambda rank: {**rank.stats.delivery.times.stages, "copy": rank.stats.copy_s},
    ),
    _ranks_by(
        "stage",
        "stage_cpu_seconds_total",
        "CPU seconds among them.",
        lambda rank: {**rank.stats.delivery.times.cpu_stages, "copy": rank.stats.copy_cpu_s},
    ),
    _rank(
        "fetch_seconds_total",
        "Seconds of the stage `read` that waited for the store or the disk.",
        lambda rank: rank.stats.delivery.times.fetch_s,
    ),
    _rank(
        "contended_seconds_total",
        "Seconds in which threads of blocks were ready to run while others had the CPUs.",
        lambda rank: rank.stats.delivery.times.contended_s,
    ),
    _rank(
        "queued_seconds_total",
        "Seconds of blocks between submission and result, without computing.",
        lambda rank: rank.stats.delivery.times.queued_s,
    ),
    _rank("planning_seconds_total", "Seconds from requests for plans to answers.", lambda rank: rank.stats.planning_s),
    _ranks_by(
        "result",
        "cache_columns_total",
        "Features x row groups that the cache was asked for.",
        lambda rank: _of_cache(rank, found="found", computed="computed", skipped="skipped", damaged="damaged"),
    ),
    _ranks_by(
        "direction",
        "cache_bytes_total",
        "Bytes read from and written to the cache.",
        lambda rank: _of_cache(rank, read="nbytes_read", written="nbytes_written"),
    ),
    _rank(
        "cache_wait_seconds_total",
        "Seconds that blocks waited for another job that computed the same.",
        lambda rank: _of_cache(rank, waited="waited_s").get("waited"),
    ),
    _ranks_by(
        "kind",
        "quality_problems_total",
        "Values that are null, not finite or unknown, and expectations that were broken, in delivered blocks.",
        lambda rank: rank.problems,
    ),
    _rank("trainers_total", "Trainers that have come to the rank.", lambda rank: rank.trainers),
    _rank(
        "trainer_attached",
        "1 while a trainer is connected.",
        lambda rank: float(rank.awaits_plan or rank.state == "feeding"),
    ),
    _rank(
        "waiting_for_files",
        "1 while the next epoch waits for files of a followed table to land.",
        lambda rank: float(rank.state == FILES_PHASE),
    ),
    _rank("starved", "1 while the trainer's next step lacks a block.", lambda rank: float(rank.starved)),
    _rank("epoch", "Epoch that is delivered, from 0.", lambda rank: rank.stats.epoch),
    _rank("step", "Next step of the epoch.", lambda rank: rank.stats.step),
    _rank("steps", "Steps of the epoch.", lambda rank: rank.stats.steps),
    _rank("step_seconds", "Median seconds per step that the trainer takes without waiting.", lambda rank: rank.step_s),
    _rank("epoch_rows", "Rows of an epoch on all ranks.", lambda rank: None if rank.plan is None else rank.plan.rows),
    _rank(
        "epoch_dropped_rows",
        "Rows that an epoch leaves out, on all ranks.",
        lambda rank: None if rank.plan is None else rank.plan.rows_dropped,
    ),
    _rank("ring_slots", "Slots of the ring.", lambda rank: rank.stats.ring_slots),
    _rank("ring_ready_slots", "Slots with a batch that the trainer has not taken.", lambda rank: rank.ready),
    _rank("blocks_in_flight", "Blocks submitted and not yet used up.", lambda rank: rank.stats.blocks_in_flight),
    _rank("window_blocks", "Limit of blocks in flight; 0 before it is decided.", lambda rank: rank.stats.window),
    _rank("held_bytes", "Bytes of finished blocks that steps still need.", lambda rank: rank.held_bytes),
)

FEEDER_METRICS: tuple[Metric[FeederStatus], ...] = (
    information(
        "feedline_build_info",
        "The release of Feedline that the process runs, and its compiled kernels.",
        {
            "version": lambda status: status.version,
            "role": lambda status: "feeder",
            "kernels": lambda status: ", ".join(status.kernels) or "none",
        },
    ),
    information(
        "feedline_feeder_info",
        "The feeder's pipeline by its name, and where its blocks are computed.",
        {**_JOB, "name": lambda status: status.name, "form": lambda status: status.form},
    ),
    _feeder("feeder_start_time_seconds", "Unix time of the feeder's start.", lambda status: status.started_s),
    _feeder("feeder_status_time_seconds", "Unix time of the status that is shown.", lambda status: status.now_s),
    _feeder("feeder_cpu_seconds_total", "CPU seconds of the feeder's process.", lambda status: status.cpu_s),
    _feeder(
        "feeder_restarts_total", "Feeders of these ranks that died and were replaced.", lambda status: status.restarts
    ),
    _feeder("feeder_cores", "Cores that the feeder may use.", lambda status: status.cores),
    _feeder("epochs", "Epochs that `feedline run` serves; 0 where trainers decide.", lambda status: status.epochs),
    _feeder("workers", "Workers that compute the feeder's blocks.", lambda status: status.workers),
    _feeder("threads", "Threads of those workers.", lambda status: status.threads),
    _feeder("scheduler_lost_total", "Connections to the scheduler that were lost.", lambda status: status.lost),
    _feeder("scheduler_regained_total", "Connections to the scheduler that came back.", lambda status: status.regained),
    *_OF_RANKS,
)
