"""The contenders of the floor benchmark, each a loop over batches of the same work.

Runs in a contender's own process. `prepare` imports and returns the loop, so that imports and loop are timed
separately; nothing heavy is imported before. A contender is a form of loader: what it does with a row group is up to
the shape. torch's DataLoader, grain and torchdata.nodes get hand-written numpy (`numpy_workload`). The two floors have
nothing around the work: the scan computes expressions (`polars_workload`), the thread pool these or numpy. Of several
ranks, each reads its share of the row groups (`workload.groups_of`), and Feedline's share a feeder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import Any

from shapes import Shape

Batches = Iterator[Any]
Encode = Callable[[Any], list[Any]]  # a row group to its pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of a contender: the table's files, the same as a pipeline.yaml, rows per batch, threads or workers.

    files: those that the shape's filter selects. shape: the table's, one of `SHAPES`; sample: the file for the first
    batches' ids where these are hashed. epochs: how often the table is read. settings: overrides of Feedline's
    pipeline. rank, ranks: which of several trainers this is; arrivals: the file for the times of its batches; measurer:
    the process whose descendants' CPU time counts (default: the parent).
    """

    files: Sequence[str]
    pipeline: str
    batch_size: int
    threads: int
    shape: str = "lists"
    sample: str = ""
    epochs: int = 1
    settings: Mapping[str, object] = field(default_factory=dict)
    rank: int = 0
    ranks: int = 1
    arrivals: str = ""
    measurer: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A contender. `needs`: packages without which it is skipped; `role`: the comparisons it takes part in.

    in_order: its batches are the table's rows in order.
    """

    about: str
    role: str
    needs: tuple[str, ...]
    prepare: Callable[[Shape], Callable[[Job], Batches]]
    in_order: bool = True


def polars_scan(shape: Shape) -> Callable[[Job], Batches]:
    """A floor: one file after the other through Polars' own reader, which uses all cores."""
    import polars as pl
    import polars_workload
    import workload

    def loop(job: Job) -> Batches:
        scans = (pl.scan_parquet(path, hive_partitioning=False) for path in [*job.files] * job.epochs)
        frames = (polars_workload.selected(scan, shape).collect() for scan in scans)
        pieces = (polars_workload.encode_frame(frame, shape) for frame in frames)
        return workload.batches(pieces, job.batch_size, shape)

    return loop


def thread_pool(shape: Shape) -> Callable[[Job], Batches]:
    """A floor: threads, one row group each."""
    import workload

    encoder = polars_encoder(shape) if shape.pool_in_polars else numpy_encoder(shape)

    def loop(job: Job) -> Batches:
        pieces = in_order(encoder(job.batch_size), workload.groups_of(job), job.threads)
        return workload.batches(chain.from_iterable(pieces), job.batch_size, shape)

    return loop


def torch_dataloader(shape: Shape) -> Callable[[Job], Batches]:
    """torch's DataLoader: worker processes, each with its share of the row groups."""
    import sharded_rows
    from torch.utils.data import DataLoader

    def loop(job: Job) -> Batches:
        dataset = sharded_rows.ShardedRows(job, shape)
        loader = DataLoader(
            dataset, batch_size=None, num_workers=job.threads, multiprocessing_context="forkserver", prefetch_factor=2
        )
        return (sharded_rows.batch_of(tensors, shape) for tensors in loader)

    return loop


def grain_threads(shape: Shape) -> Callable[[Job], Batches]:
    """grain: a dataset of row groups, read and encoded by its threads."""
    import grain
    import workload

    encoder = numpy_encoder(shape)

    def loop(job: Job) -> Batches:
        groups = grain.MapDataset.source(workload.groups_of(job))
        pieces = groups.map(encoder(job.batch_size))
        options = grain.ReadOptions(num_threads=job.threads, prefetch_buffer_size=2 * job.threads)
        return workload.batches(chain.from_iterable(pieces.to_iter_dataset(options)), job.batch_size, shape)

    return loop


def grain_processes(shape: Shape) -> Callable[[Job], Batches]:
    """grain: the same dataset in its worker processes, which hand over arrays in shared memory."""
    import grain
    import workload

    encoder = numpy_encoder(shape)

    def loop(job: Job) -> Batches:
        groups = grain.MapDataset.source(workload.groups_of(job))
        arrays = groups.map(partial(workload.piece_arrays, encode=encoder(job.batch_size)))
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)  # a worker encodes one row group at a time
        workers = grain.MultiprocessingOptions(num_workers=job.threads, per_worker_buffer_size=1)
        handed_over = arrays.to_iter_dataset(options).mp_prefetch(workers)
        pieces = (workload.Piece(*piece) for group in handed_over for piece in group)
        return workload.batches(pieces, job.batch_size, shape)

    return loop


def torchdata_nodes(shape: Shape) -> Callable[[Job], Batches]:
    """torchdata.nodes: row groups through a ParallelMapper of threads."""
    import workload
    from torchdata import nodes

    encoder = numpy_encoder(shape)

    def loop(job: Job) -> Batches:
        groups = nodes.IterableWrapper(workload.groups_of(job))
        mapper = nodes.ParallelMapper(
            groups, encoder(job.batch_size), num_workers=job.threads, method="thread", in_order=True
        )
        return workload.batches(chain.from_iterable(nodes.Loader(mapper)), job.batch_size, shape)

    return loop


def feedline(shape: Shape, *, overrides: dict[str, object]) -> Callable[[Job], Batches]:
    """Feedline, its feeder in another process."""
    from cpu_of_parts import CpuOfParts

    from feedline import FeedlineDataset

    def loop(job: Job) -> Batches:
        with FeedlineDataset(job.pipeline, set={**overrides, **job.settings}) as dataset:
            loop.imports_s = dataset.facts["imports_s"]  # type: ignore[attr-defined]
            steps = len(dataset) * job.epochs
            between = max(1, steps // 5), steps * 4 // 5  # as many rows are under way at the end as at the beginning
            for step, batch in enumerate(chain.from_iterable(repeat(dataset, job.epochs)), 1):
                yield batch
                if step == between[0]:
                    parts = CpuOfParts(dataset.facts["feeder"], job.measurer)
                elif step == between[1]:
                    loop.parts = between, parts.since()  # type: ignore[attr-defined]

    return loop


def polars_encoder(shape: Shape) -> Callable[[int], Encode]:
    """Import what encodes a shape in Polars; return the function from rows per batch to the encoding."""
    import polars_workload

    return lambda _: lambda group: [polars_workload.polars_piece(group, shape)]


def numpy_encoder(shape: Shape) -> Callable[[int], Encode]:
    """Import what encodes a shape in numpy; return the function from rows per batch to the encoding."""
    import numpy_workload

    if shape.hashed:
        import polars  # noqa: F401  imported where strings are hashed

    return lambda size: partial(numpy_workload.numpy_pieces, shape=shape, size=size)


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
        about="threads, a row group each: pyarrow, Polars or numpy",
        role="floor",
        needs=("polars", "pyarrow"),
        prepare=thread_pool,
    ),
    "dataloader": Contender(
        about="torch DataLoader over pyarrow, worker processes",
        role="processes",
        needs=("torch",),
        prepare=torch_dataloader,
        in_order=False,
    ),
    "grain": Contender(
        about="grain over pyarrow, threads", role="in-process", needs=("grain", "pyarrow"), prepare=grain_threads
    ),
    "grain-processes": Contender(
        about="grain over pyarrow, worker processes",
        role="processes",
        needs=("grain", "pyarrow"),
        prepare=grain_processes,
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
        prepare=partial(feedline, overrides={"shuffle": "off"}),
    ),
    "feedline": Contender(
        about="Feedline, default shuffle",
        role="feedline",
        needs=("feedline",),
        prepare=partial(feedline, overrides={}),
        in_order=False,
    ),
}
IN_PROCESS = ("floor", "in-process")  # the roles of contenders that run in the trainer's process
