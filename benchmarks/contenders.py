"""The contenders of the floor benchmark, each a loop over batches of the same work (`workload`).

Runs in a contender's own process. `prepare` imports and returns the loop, so that imports and loop are timed
separately; nothing heavy is imported before. The two floors run the same expressions with nothing around them; torch's
DataLoader, grain and torchdata.nodes get hand-written numpy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

Batches = Iterator[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of a contender: the table's files, the same as a pipeline.yaml, rows per batch, threads or workers."""

    files: Sequence[str]
    pipeline: str
    batch_size: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A contender. `needs`: packages without which it is skipped; `role`: the comparisons it takes part in."""

    about: str
    role: str
    needs: tuple[str, ...]
    prepare: Callable[[], Callable[[Job], Batches]]


def polars_scan() -> Callable[[Job], Batches]:
    """A floor: one file after the other through Polars' own reader, which uses all cores."""
    import polars as pl
    import polars_workload
    import workload

    def loop(job: Job) -> Batches:
        expressions = polars_workload.polars_expressions()
        frames = (pl.scan_parquet(path, hive_partitioning=False).select(expressions).collect() for path in job.files)
        return workload.batches(map(polars_workload.encode_frame, frames), job.batch_size)

    return loop


def thread_pool() -> Callable[[Job], Batches]:
    """A floor: threads, one row group each."""
    import polars_workload
    import workload

    def loop(job: Job) -> Batches:
        pieces = in_order(polars_workload.polars_piece, workload.row_groups(job.files), job.threads)
        return workload.batches(pieces, job.batch_size)

    return loop


def torch_dataloader() -> Callable[[Job], Batches]:
    """torch's DataLoader: worker processes, each with its share of the row groups."""
    import workload
    from torch.utils.data import DataLoader

    def loop(job: Job) -> Batches:
        dataset = workload.ShardedRows(job.files, job.batch_size)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=job.threads, multiprocessing_context="forkserver", prefetch_factor=2
        )
        return map(workload.batch_of, loader)

    return loop


def grain_threads() -> Callable[[Job], Batches]:
    """grain: a dataset of row groups, read and encoded by its threads."""
    import grain
    import workload

    def loop(job: Job) -> Batches:
        groups = grain.MapDataset.source(workload.row_groups(job.files))
        pieces = groups.map(partial(workload.numpy_pieces, size=job.batch_size))
        options = grain.ReadOptions(num_threads=job.threads, prefetch_buffer_size=2 * job.threads)
        return workload.batches(chain.from_iterable(pieces.to_iter_dataset(options)), job.batch_size)

    return loop


def torchdata_nodes() -> Callable[[Job], Batches]:
    """torchdata.nodes: row groups through a ParallelMapper of threads."""
    import workload
    from torchdata import nodes

    def loop(job: Job) -> Batches:
        groups = nodes.IterableWrapper(workload.row_groups(job.files))
        encode = partial(workload.numpy_pieces, size=job.batch_size)
        mapper = nodes.ParallelMapper(groups, encode, num_workers=job.threads, method="thread", in_order=True)
        return workload.batches(chain.from_iterable(nodes.Loader(mapper)), job.batch_size)

    return loop


def feedline(overrides: dict[str, object]) -> Callable[[Job], Batches]:
    """Feedline, its feeder in another process."""
    from feedline import FeedlineDataset

    def loop(job: Job) -> Batches:
        with FeedlineDataset(job.pipeline, set=overrides) as dataset:
            loop.imports_s = dataset.facts["imports_s"]  # type: ignore[attr-defined]
            yield from dataset

    return loop


def in_order(function: Callable[[Any], Any], items: Iterable[Any], threads: int) -> Iterator[Any]:
    """Yield function(item) for each item, in order, from a thread pool; at most two results per thread wait."""
    pending: deque[Any] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) == 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


CONTENDERS = {
    "polars-scan": Contender(
        about="per file polars.scan_parquet().select().collect()", role="floor", needs=("polars",), prepare=polars_scan
    ),
    "thread-pool": Contender(
        about="threads, a row group each: pyarrow, Polars, numpy",
        role="floor",
        needs=("polars", "pyarrow"),
        prepare=thread_pool,
    ),
    "dataloader": Contender(
        about="torch DataLoader over pyarrow, worker processes",
        role="processes",
        needs=("torch",),
        prepare=torch_dataloader,
    ),
    "grain": Contender(
        about="grain over pyarrow, threads", role="in-process", needs=("grain", "pyarrow"), prepare=grain_threads
    ),
    "torchdata-nodes": Contender(
        about="torchdata.nodes over pyarrow, threads",
        role="in-process",
        needs=("torchdata", "pyarrow"),
        prepare=torchdata_nodes,
    ),
    "feedline-off": Contender(
        about="Feedline, shuffle: off",
        role="feedline",
        needs=("feedline",),
        prepare=partial(feedline, {"shuffle": "off"}),
    ),
    "feedline": Contender(
        about="Feedline, default shuffle", role="feedline", needs=("feedline",), prepare=partial(feedline, {})
    ),
}
IN_PROCESS = ("floor", "in-process")  # the roles of contenders that run in the trainer's process
