"""Let one run at a time write a folder in which the tasks of several may write: its claim, and the files of its own.

Runs in the process of the run, which takes the claim and moves files into place; tasks look whether it is held. No task
can be stopped from outside: that of a run that was killed computes on, and writes what it has. So tasks write below a
hidden folder that is named by their run, which readers skip, and only the run itself moves their files out of it. It
looks at the claim before each: a run that was stopped and replaced meanwhile changes nothing of its successor's. Stores
have no locks, so a request that is under way when another run takes the claim is not held back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import field
from typing import TypeVar

import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, StoreError, TableError
from feedline.warehouse.storage.content_store import OBJECT_STORES, get, put
from feedline.warehouse.storage.locations import Location, delete_folder, join, list_folder, locate, redact
from feedline.warehouse.storage.parallel import interruptible
from feedline.warehouse.storage.retry import is_local, retry_transient, with_retries

_THREADS = 16
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A run's claim on a folder. uri: the folder. hidden: the name of the folder below it that readers skip.

    file: the name of the claim in it, which holds the run that has the folder. name: the folder, for messages.
    """

    uri: str
    hidden: str
    file: str
    name: str
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def location(self) -> Location:
        return locate(self.uri)

    def own(self, *names: str) -> Location:
        """A folder of the run's own files."""
        location = self.location
        return Location(location.uri, location.filesystem, join(location.path, "/".join([self._own, *names])))

    def take(self) -> None:
        """Have the folder: a run that had it loses it, and its files below the hidden folder are deleted."""
        location = self.location
        put(location, self._claim, [self.run.encode()])
        paths = {join(location.path, each) for each in (self._claim, self._own)}
        for info in list_folder(location.filesystem, join(location.path, self.hidden)):
            if info.path not in paths:
                with suppress(FileNotFoundError):  # its tasks may end meanwhile
                    delete(location.filesystem, info)

    def holder(self) -> str:
        """The run that has the folder; empty: none. Raises StoreError where the store keeps failing."""
        try:
            return bytes(memoryview(get(self.location, self._claim))).decode()
        except (FileNotFoundError, TableError) as error:
            if isinstance(error, StoreError) and not isinstance(error, FileNotFoundError):
                raise
            return ""

    def check(self) -> None:
        """Raise TableError where another run has the folder."""
        holder = self.holder()
        if holder != self.run:
            owner = f"that of {holder}" if holder else "none"
            raise TableError(
                f"{self.name} is no longer this run's: got {owner}, expected the claim of {self.run}. Another "
                "run began there, or its files were deleted. Let one run at a time write there"
            )

    def move(self, files: Iterable[tuple[str, str]]) -> None:
        """Move files (path, and path of the same filesystem) into place. Raises as `check`, before each."""
        filesystem = self.location.filesystem

        def move(paths: tuple[str, str]) -> None:
            self.check()
            source, target = paths
            if filesystem.type_name not in OBJECT_STORES:
                filesystem.create_dir(target.rpartition("/")[0], recursive=True)
            if is_local(filesystem):
                filesystem.move(source, target)
            else:  # what is left is deleted with the run's folder
                with_retries(lambda: filesystem.copy_file(source, target), filesystem, redact(self.uri), verb="written")

        _in_threads(move, files)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files that may be missing. Raises as `check`, before each, and StoreError despite retries."""
        filesystem = self.location.filesystem

        def remove(path: str) -> None:
            self.check()
            with suppress(FileNotFoundError):
                retry_transient(lambda: filesystem.delete_file(path), redact(self.uri), "deleted")

        _in_threads(remove, paths)

    def release(self) -> None:
        """Delete the run's own files, and the claim with the hidden folder where the run has it, as far as possible."""
        filesystem, root = self.location.filesystem, self.location.path
        hidden = join(root, self.hidden)
        with suppress(OSError, FeedlineError):
            if self.holder() == self.run:
                delete_folder(filesystem, hidden)
                return
        with suppress(OSError, FeedlineError):
            delete_folder(filesystem, join(root, self._own))
        with suppress(OSError, FeedlineError):
            if not list_folder(filesystem, hidden, allow_not_found=True):
                delete_folder(filesystem, hidden)

    @property
    def _claim(self) -> str:
        return f"{self.hidden}/{self.file}"

    @property
    def _own(self) -> str:
        return f"{self.hidden}/{self.run}"


def delete(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> None:
    """Delete a file, or a folder with all that it holds."""
    if info.type == pafs.FileType.Directory:
        delete_folder(filesystem, info.path)
    else:
        filesystem.delete_file(info.path)


def _in_threads(function: Callable[[T], None], tasks: Iterable[T]) -> None:
    with interruptible(_THREADS, "feedline-claim") as pool:
        for _ in pool.map(function, tasks):
            pass
