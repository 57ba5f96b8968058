"""Pipelines over small tables in folders of their own, and their expected batches, by `Pipeline.batches`."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from feedline import Pipeline
from feedline.loader.batch import Batch

PATIENCE_S = 60.0

CLICKS: dict[str, Any] = {
    "version": 1,
    "name": "clicks",
    "work_dir": "work",
    "source": {"split_rows": 1024},
    "features": {
        "dense": {"dense_0": [{"fill_null": 0}], "dense_1": [{"fill_null": 0}, "log1p"]},
        "categorical": {"id_0": [{"modulo": 1000}], "str_0": [{"hash_bucket": 100}]},
        "sparse": {"hist_0": [], "hist_1": [{"first_x": 3}]},
        "label": {"clicked": []},
        "extra": {"request_id": [], "ts": [], "word": {"column": "str_0"}},
    },
    "batch": {"size": 256, "tail": "drop"},
    "shuffle": {"seed": 3, "window_rows": 2048},
    "cluster": {"threads": 1},
    "memory": "64MiB",
}


@dataclass(frozen=True)
class Place:
    """A folder with a table, pipelines, and its own TMPDIR and runtime folder."""

    folder: Path
    table: Path

    @property
    def temporary(self) -> Path:
        return self.folder / "t"

    @property
    def sockets(self) -> Path:
        return self.folder / "r" / "feedline"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def write(self, file: str = "p.yaml", /, **changes: Any) -> Path:
        """Write pipeline.yaml with some keys changed: `batch={"size": 8}` changes one key, None removes a section.

        Workers of a cluster by address compute as this process does, with whatever its processor has. Other clusters
        have no dashboard, a fifth of a small feeder's CPU time.
        """
        whole = ("features", "cluster")  # never merged
        document = {**CLICKS, "source": {**CLICKS["source"], "table": str(self.table)}}
        for key, value in changes.items():
            merge = isinstance(value, dict) and isinstance(document.get(key), dict) and key not in whole
            document[key] = {**document[key], **value} if merge else value
        if cluster := document.get("cluster"):  # `cpu: None` leaves it at the default
            usual = {"cpu": "native"} if "scheduler" in cluster else {"dashboard": False}
            document["cluster"] = {**usual, **cluster}
        path = self.folder / file
        path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}, indent=1))
        return path

    def left(self) -> list[str]:
        """Return what is in TMPDIR and the runtime folder; what goes meanwhile is not."""
        found = []
        for root in (self.temporary, self.sockets):
            for folder, folders, files in os.walk(root):  # passes over folders that are gone
                found += [os.path.relpath(os.path.join(folder, name), self.folder) for name in (*folders, *files)]
        return sorted(found)


@contextmanager
def furnished(folder: Path, table: Path) -> Iterator[Place]:
    """Yield a place whose TMPDIR and runtime folder this process uses, too; both must be empty at the end."""
    place = Place(folder=folder, table=table)
    place.temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(place.temporary))
        patch.setenv("XDG_RUNTIME_DIR", str(folder / "r"))
        patch.setattr(tempfile, "tempdir", str(place.temporary))
        yield place
        assert eventually(lambda: not place.left(), within_s=10), f"files left behind: {place.left()}"


def eventually(condition: Callable[[], Any], *, within_s: float = PATIENCE_S) -> Any:
    """Wait until a condition holds; return its value, which is false after a timeout."""
    deadline = time.monotonic() + within_s
    while not (value := condition()) and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    return value


def image(batch: Batch) -> bytes:
    """Return all bytes of a batch's slot: tensors, extras, masks, epoch and step."""
    return bytes(batch._bytes().numpy())


def oracle(
    path: Path,
    *,
    set: Mapping[str, object] | None = None,
    epoch: int = 0,
    rank: int = 0,
    world_size: int = 1,
    step: int = 0,
    **options: Any,
) -> list[bytes]:
    """Return the images of an epoch, computed in this process without ring, Dask or feeder."""
    batches = Pipeline.from_yaml(path, set).batches(epoch, rank, world_size, step=step, **options)
    return [image(batch) for batch in batches]


def descendants(pid: int | None = None) -> list[int]:
    """Return the descendants of a process (default: this one), without zombies."""
    import psutil
    import zygote

    found = []
    for process in psutil.Process(pid or os.getpid()).children(recursive=True):
        try:
            if process.status() != psutil.STATUS_ZOMBIE and not zygote.is_server(process):
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found
