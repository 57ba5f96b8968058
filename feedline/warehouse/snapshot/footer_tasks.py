"""Read the footers of many files, in threads of this process or on a Dask cluster, within bounded memory.

Files are grouped into tasks: small values that any `map` may run, with compact results (`FactBlock`). In a task threads
hide the store's latency; parsing holds the GIL, so only more processes make it faster. Tasks are passed to `map` in
waves, as it may hold all its results before it returns the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, StoreError, TableError
from feedline.warehouse.parquet.footer import FileFacts, file_facts
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.snapshot.packed_facts import FactBlock, blocks_of, join_blocks
from feedline.warehouse.storage.locations import join, locate, redact
from feedline.warehouse.storage.parallel import Map, interruptible
from feedline.warehouse.storage.retry import is_local

# Footers in flight: as many as hide an object store's latency. Of a local file, whose bytes are there at once, the
# interpreter's lock is all that they wait for: 16 threads take a quarter longer than 4, one of them no less.
_THREADS, _LOCAL_THREADS = 16, 4
FOOTERS = "reading footers"  # the phase of progress
_TASK_FILES = 256  # a third of a second of parsing; a few hundred kB of results
_WAVE_TASKS = 64
_PARSED_CHUNKS = 131_072  # column chunks held as Python objects, about 650 bytes each, until they are packed


@dataclass(frozen=True, slots=True, kw_only=True)
class FooterTask:
    """Files of one table: the root's URI, and of each file its index in the listing, path below the root and bytes.

    `stored_names`: see `Listing`. `collect`: files that cannot be read for another reason than damage are
    part of the result, too.
    """

    uri: str
    files: tuple[tuple[int, str, int], ...]
    stored_names: StoredNames | None = None
    collect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FooterResult:
    """The facts of a task's good files; for files with corrupt footers or other problems their index in the listing and
    the message."""

    blocks: tuple[FactBlock, ...]
    corrupt: tuple[tuple[int, str], ...]
    problems: tuple[tuple[int, str], ...] = ()

    @property
    def files(self) -> int:
        return len(self.corrupt) + len(self.problems) + sum(len(block.files) for block in self.blocks)


def read_footers(
    uri: str,
    files: Sequence[tuple[int, str, int]],
    map: Map | None,
    *,
    stored_names: StoredNames | None = None,
    collect: bool = False,
) -> Iterator[FooterResult]:
    """Read the footers of files (index, path, bytes); `map` runs the tasks (default: threads of this process).

    stored_names: see `Listing`. Corrupt footers are part of the result. Other errors are raised, with `collect` only
    those of a failing store.
    """
    tasks = [
        FooterTask(uri=uri, files=tuple(files[start : start + _TASK_FILES]), stored_names=stored_names, collect=collect)
        for start in range(0, len(files), _TASK_FILES)
    ]
    if map is None:
        for task in tasks:
            yield footer_task(task)
        return
    for start in range(0, len(tasks), _WAVE_TASKS):
        yield from map(footer_task, tasks[start : start + _WAVE_TASKS])


def footer_task(task: FooterTask) -> FooterResult:
    location = locate(task.uri)

    def facts(file: tuple[int, str, int]) -> FileFacts | TableError:
        _, path, size = file
        try:
            full, name = join(location.path, path), join(redact(task.uri), path)
            return file_facts(location.filesystem, full, size, name, task.stored_names)
        except StoreError:
            raise
        except TableError as error:
            if task.collect or isinstance(error, CorruptFileError):
                return error
            raise

    good: list[tuple[int, FileFacts]] = []
    blocks: list[FactBlock] = []
    corrupt: list[tuple[int, str]] = []
    problems: list[tuple[int, str]] = []
    threads = _LOCAL_THREADS if is_local(location.filesystem) else _THREADS
    first, count, chunks, most = 0, _THREADS, 0, 1
    with interruptible(min(threads, len(task.files)), "feedline-footers") as pool:
        while first < len(task.files):
            part = task.files[first : first + count]
            first += count
            for (index, _, _), outcome in zip(part, pool.map(facts, part), strict=True):
                if isinstance(outcome, CorruptFileError):
                    corrupt.append((index, str(outcome)))
                elif isinstance(outcome, TableError):
                    problems.append((index, str(outcome)))
                else:
                    good.append((index, outcome))
                    chunks += len(outcome.columns) * len(outcome.rows)
                    most = max(most, len(outcome.columns) * len(outcome.rows))
            count = max(_THREADS, _PARSED_CHUNKS // most)
            if chunks >= _PARSED_CHUNKS // 2:
                blocks += blocks_of(good)
                good, chunks = [], 0
    packed = tuple(join_blocks([*blocks, *blocks_of(good)]))
    return FooterResult(blocks=packed, corrupt=tuple(corrupt), problems=tuple(problems))
