"""Write a local file that appears whole, or not at all.

Runs in every process. While it is written, the file has no name, so that a process that is killed leaves nothing
behind; where the file system has no such files (NFS, FUSE before Linux 6.2), it has a hidden, temporary name.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """Yield a path to write to; what it holds replaces `target` when the body ends without an error.

    The folder must exist. Raises OSError as the file system does.
    """
    descriptor = _open_unnamed(target.parent)
    if descriptor is None:
        with _removed_on_error(_aside(target)) as path:
            yield path
            path.replace(target)
        return
    try:
        path = _path_of(descriptor)
        yield path
        try:
            _link(path, target)
        except FileExistsError:  # a link replaces nothing, a rename does
            with _removed_on_error(_aside(target)) as aside:
                _link(path, aside)
                aside.replace(target)
    finally:
        os.close(descriptor)


def _open_unnamed(folder: Path) -> int | None:
    """Open a file without a name; None where there is no such file, or no path to it."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
    if _path_of(descriptor).exists():
        return descriptor
    os.close(descriptor)
    return None


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}")


def _link(path: Path, name: Path) -> None:
    os.link(path, name, src_dir_fd=0)  # a folder, which absolute paths ignore: with one, Python follows /proc's link


def _aside(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[Path]:
    try:
        yield path
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
