"""Write a local file that appears whole, or not at all.

Runs in every process. While it is written, the file has no name, so that a process that is killed leaves nothing
behind; where the file system has no such files (NFS, FUSE before Linux 6.2), it has a hidden, temporary name.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import sys
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


# --------------------------------------------------------------------------------------------------------------------
# Exchange two folders of one disk atomically, so that each path always names one of the two. Runs where `optimize`
# replaces partitions. Linux offers it (`renameat2`, `RENAME_EXCHANGE`: ext4, XFS, Btrfs, tmpfs, overlayfs); Python
# and pyarrow do not, so the C library's function is called. Other systems, NFS and most FUSE file systems lack it.

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


def exchange(one: str, other: str) -> bool:
    """Exchange two paths. False: not possible here, and nothing was changed.

    The reason is not reported: a caller that falls back to renames gets the same error if it applies to renames, too.
    """
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):  # a C library without it: glibc before 2.28, some others
        return False
    return bool(renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0)
