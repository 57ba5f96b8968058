"""Stage situations of which the bottleneck is known, for `explain.py`: a table, a pipeline, what the verdict must name.

Sleeps stand for slow stores, slow trainers and busy workers, so that they are the same on every machine. Situations of
CPU have tables in which a column, an op or the layout costs most.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from slow_store import slow_store

from feedline import Table
from feedline.loader.limits.machine_advice import Advice

Document = dict[str, Any]
Columns = Callable[[np.random.Generator, int], dict[str, Any]]

_OPS = '''"""An op that waits: it stands for a worker that computes for so long."""

import time


def waiting(values, seconds):
    time.sleep(seconds)
    return values
'''
_FILES, _TINY_FILES, _TINY = 4, 2, 16  # a tiny table has a part of the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A pipeline in which something is the limit. limits, stages, words: of which the verdict must name one, one and
    all. kind: of the advice that must be given and is taken (None: there must be none); advised: a word of its change.

    gain: what the advice is to gain: rows per second, or CPU seconds per million rows of blocks. apply: makes the
    change in the pipeline's document, or the table. step_s: of the trainer (None: there is none). cores, cores_after:
    that it may use before and after (0: all). fill: an epoch before the last measurement, for a cache.
    """

    document: Document
    limits: tuple[str, ...]
    stages: tuple[str, ...]
    words: tuple[str, ...] = ()
    kind: str | None
    advised: str = ""
    gain: Literal["rows/s", "CPU-s"] = "rows/s"
    apply: Callable[[Advice | None, Document, Path], object]
    step_s: float | None = None
    cores: int = 0
    cores_after: int = 0
    fill: bool = False


def lists(draw: np.random.Generator, lengths: np.ndarray, values: int) -> pa.Array:
    """Lists of random ids."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, draw.integers(0, values, int(offsets[-1])))


def write_table(folder: Path, columns: Columns, rows: int, row_group: int, *, tiny: bool) -> Path:
    """A table of some files of so many rows each, which a tiny one has a part of."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(_TINY_FILES if tiny else _FILES):
        content = pa.table(columns(np.random.default_rng(number), rows // _TINY if tiny else rows))
        pq.write_table(content, folder / f"{number}.parquet", row_group_size=row_group)
    return folder


def _narrow(draw: np.random.Generator, rows: int) -> dict[str, Any]:
    ids = lists(draw, draw.integers(0, 12, rows), 100_000)
    return {"x": draw.random(rows, np.float32), "ids": ids, "y": draw.integers(0, 2, rows).astype(np.float32)}


def listed_columns(mean: float, values: int = 2**40, tail: int = 0) -> Columns:
    """Columns of which `hist` has long lists; tail: the length of one in 25."""

    def columns(draw: np.random.Generator, rows: int) -> dict[str, Any]:
        lengths = draw.geometric(1 / mean, rows)
        if tail:
            lengths[::25] = tail
        return {
            "price": draw.random(rows).astype(np.float32),
            "hist": lists(draw, lengths, values),
            "tags": lists(draw, draw.geometric(1 / 4, rows), 100),
            "clicked": draw.integers(0, 2, rows),
        }

    return columns


def _sessions(draw: np.random.Generator, rows: int) -> dict[str, Any]:
    """Rows in runs of 8 with the same history: too many ids for a dictionary."""
    runs = -(-rows // 8)
    hist = lists(draw, draw.geometric(1 / 100, runs), 2**40)
    repeated = hist.take(pa.array(np.repeat(np.arange(runs), 8)[:rows]))
    return {**listed_columns(4)(draw, rows), "hist": repeated}


def narrow_pipeline(folder: Path, uri: str | Path, *, waits_s: float = 0.0, **changes: Any) -> Document:
    """A pipeline over a table of three columns; waits_s: that an op sleeps per block."""
    ops: list[Any] = [{"fill_null": 0}]
    if waits_s:
        (folder / "waiting_ops.py").write_text(_OPS)
        parameters = {"function": "waiting_ops:waiting", "form": "numpy", "gives": "float32"}
        ops.append({"python": {**parameters, "parameters": {"seconds": waits_s}}})
    document = {
        "version": 1,
        "name": "explained",
        "work_dir": str(folder / "work"),
        "allow_code": bool(waits_s),
        "source": {"table": str(uri), "split_rows": 8_192},
        "features": {"dense": {"x": ops}, "sparse": {"ids": [{"modulo": 1000}]}, "label": {"y": []}},
        "batch": {"size": 1024},
        "shuffle": {"rows": False, "window_rows": 8_192},
        "cluster": {"threads": 1, "dashboard": False},
        "epochs": 1000,
    }
    return document | changes


def listed_pipeline(folder: Path, table: Path, *ops: Any, **changes: Any) -> Document:
    """A pipeline over `listed_columns`. ops: of `hist`."""
    document = {
        "version": 1,
        "name": "costs",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table)},
        "features": {
            "dense": {"price": [{"fill_null": 0}, "log1p"]},
            "sparse": {"hist": list(ops), "tags": [{"modulo": 100}]},
            "label": {"clicked": []},
        },
        "batch": {"size": 1024},
        "shuffle": {"seed": 1},
        "cluster": {"threads": 1, "dashboard": False},
        "epochs": 1000,
    }
    return document | changes


def set_keys(advice: Advice | None, document: Document, folder: Path) -> None:
    """Make a change that is keys of pipeline.yaml."""
    assert advice is not None
    for name, value in yaml.safe_load(advice.change).items():
        document[name] = document.get(name, {}) | value if isinstance(value, dict) else value


def _nothing(advice: Advice | None, document: Document, folder: Path) -> None:
    pass


def _twice_the_threads(advice: Advice | None, document: Document, folder: Path) -> None:
    document["cluster"]["threads"] = 2


def _two_processes(advice: Advice | None, document: Document, folder: Path) -> None:
    """They stand for workers of other hosts: threads would wait for the interpreter's lock."""
    document["cluster"] = {"workers": 2, "threads": 1, "dashboard": False}


def _drop(advice: Advice | None, document: Document, folder: Path) -> None:
    del document["features"]["sparse"]["hist"]


def _without_op(advice: Advice | None, document: Document, folder: Path) -> None:
    """No other op gains more."""
    document["features"]["sparse"]["hist"] = []


def _shorten(advice: Advice | None, document: Document, folder: Path) -> None:
    assert advice is not None
    most = int(advice.change.partition("first_x: ")[2].partition("}")[0])
    document["features"]["sparse"]["hist"].insert(0, {"first_x": most})


def _rewrite(advice: Advice | None, document: Document, folder: Path) -> None:
    assert advice is not None
    goal = "decode" if advice.kind == "decode" else "balanced"
    rows = int(advice.change.rpartition(" ")[2])
    Table(document["source"]["table"]).optimize(str(folder / "rewritten"), goal=goal, row_group_rows=rows)
    document["source"]["table"] = str(folder / "rewritten")


def _with_cache(advice: Advice | None, document: Document, folder: Path) -> None:
    document["cache"] = {"dir": str(folder / "cache"), "mode": "features"}


def fill_cache(path: Path) -> None:
    """Run an epoch, so that the next run finds everything in its cache."""
    command = [sys.executable, "-m", "feedline", "run", str(path), "--sink", "null", "--set", "epochs=1", "--json"]
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def _slow_store(folder: Path, tiny: bool) -> Iterator[Staged]:
    """Each read of the store takes 0.2 s; the trainer takes a block of 8 steps in 0.1 s."""
    with slow_store(write_table(folder / "table", _narrow, 65_536, 8_192, tiny=tiny), 0.2) as store:
        yield Staged(
            document=narrow_pipeline(folder, store.uri), limits=("threads",), stages=("store wait",), step_s=0.012,
            kind="threads", apply=set_keys,
        )  # fmt: skip


@contextmanager
def _locked_threads(folder: Path, tiny: bool) -> Iterator[Staged]:
    """The same store and nobody who waits: threads, until they use up the interpreter's lock."""
    table = write_table(folder / "table", _narrow, 524_288, 8_192, tiny=tiny)
    with slow_store(table, 0.2) as store:
        yield Staged(
            document=narrow_pipeline(folder, store.uri, cluster={"threads": 2, "dashboard": False}),
            limits=("threads",), stages=("store wait",), kind="threads", apply=set_keys,
        )  # fmt: skip


@contextmanager
def _slow_trainer(folder: Path, tiny: bool) -> Iterator[Staged]:
    """Nothing helps a trainer of 20 ms per step: twice the threads gain nothing."""
    document = narrow_pipeline(folder, write_table(folder / "table", _narrow, 65_536, 8_192, tiny=tiny))
    yield Staged(
        document=document, limits=("trainer",), stages=("trainer",), step_s=0.02, kind=None, apply=_twice_the_threads
    )


def _starved(kind: str, **changes: Any) -> Callable[[Path, bool], Any]:
    """A worker takes 0.4 s per block, the trainer could take one in 0.16 s."""

    @contextmanager
    def stage(folder: Path, tiny: bool) -> Iterator[Staged]:
        table = write_table(folder / "table", _narrow, 65_536, 8_192, tiny=tiny)
        own = {"cache": {"dir": str(folder / "cache"), "mode": "features"}} if kind == "cache" else {}
        yield Staged(
            document=narrow_pipeline(folder, table, waits_s=0.4, **changes, **own), limits=("threads",),
            stages=("ops",), step_s=0.02, kind=kind, apply=_nothing if kind == "cache" else set_keys,
            fill=kind == "cache",
        )  # fmt: skip

    return stage


@contextmanager
def _one_core(folder: Path, tiny: bool) -> Iterator[Staged]:
    """Feeder, blocks and trainer on one core; the advice is cores of other hosts, for which another one stands.

    Windows of two blocks: those of half a million rows come in bursts, of which few are within a run.
    """
    table = write_table(folder / "table", _narrow, 262_144, 32_768, tiny=tiny)
    document = narrow_pipeline(folder, table, batch={"size": 8192}, shuffle={"seed": 1, "window_rows": 65_536})
    ops: list[Any] = [{"fill_null": 0}, "log1p"]
    document["source"] = {"table": str(table)}
    document["features"] = {
        "dense": {f"x{number}": {"column": "x", "ops": [*ops, {"clip": {"max": 1 + number}}]} for number in range(64)},
        "sparse": {"ids": [{"first_x": 8}, {"modulo": 997}]},
        "label": {"y": []},
    }
    yield Staged(
        document=document, limits=("cores",), stages=("decoding", "ops", "encoding"), kind="workers", cores=1,
        cores_after=2, apply=_two_processes,
    )  # fmt: skip


def _costly(
    columns: Columns,
    stages: tuple[str, ...],
    kind: str,
    words: tuple[str, ...],
    apply: Callable[[Advice | None, Document, Path], object],
    *ops: Any,
    advised: str = "",
    row_group: int = 32_768,
    rows: int = 65_536,
    fill: bool = False,
    **changes: Any,
) -> Callable[[Path, bool], Any]:
    """Blocks take CPU, and one thing of them most."""

    @contextmanager
    def staged(folder: Path, tiny: bool) -> Iterator[Staged]:
        table = write_table(folder / "table", columns, rows, row_group, tiny=tiny)
        yield Staged(
            document=listed_pipeline(folder, table, *ops, **changes), limits=("threads", "cores"), stages=stages,
            words=words, kind=kind, advised=advised, gain="CPU-s", apply=apply, fill=fill,
        )  # fmt: skip

    return staged


_HASH, _MODULO = {"hash_bucket": 1000}, {"modulo": 1000}
_SIGRID = {"sigrid_hash": {"salt": 1, "max_value": 1000}}
_HIST = ("hist",)
_CLUSTER = {"cluster": {"workers": 1, "threads": 1, "dashboard": False}}
# The eight first, by the names that `--only` finds.
SITUATIONS: dict[str, Callable[[Path, bool], Any]] = {
    "slow store": _slow_store,
    "heavy list decode": _costly(listed_columns(80), ("decoding",), "feature", _HIST, _drop, _MODULO, advised="remove"),
    "heavy op": _costly(listed_columns(40, 10**6), ("ops",), "op", ("sigrid_hash of `hist`",), _without_op, _SIGRID),
    "slow trainer": _slow_trainer,
    "one core": _one_core,
    "starved cluster": _starved("workers", **_CLUSTER),
    "tiny row groups": _costly(
        listed_columns(3),
        ("decoding",),
        "row_groups",
        ("row groups of 256 rows",),
        _rewrite,
        _HASH,
        row_group=256,
        rows=32_768,
    ),
    "cold cache": _starved("cache"),
    "starved threads": _starved("threads"),
    "locked threads": _locked_threads,
    "rewritten lists": _costly(listed_columns(80), ("decoding",), "decode", _HIST, _rewrite, _MODULO),
    "long tails": _costly(
        listed_columns(4, tail=600), ("decoding", "ops"), "feature", _HIST, _shorten, _SIGRID, advised="first_x"
    ),
    "filled cache": _costly(listed_columns(40), ("decoding",), "cache", _HIST, _with_cache, _MODULO, fill=True),
    "repeated lists": _costly(
        _sessions, ("decoding", "ops"), "dedup", _HIST, set_keys, _SIGRID, shuffle={"rows": False, "window_rows": 8_192}
    ),
}
EIGHT = tuple(SITUATIONS)[:8]
