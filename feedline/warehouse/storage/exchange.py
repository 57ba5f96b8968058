"""Exchange two folders of one disk in a single step, so that each path always names one of the two.

Runs where partitions land. Linux offers it (`renameat2`, `RENAME_EXCHANGE`: ext4, XFS, Btrfs, tmpfs, overlayfs); Python
and pyarrow do not, hence the C library's function. Other systems, NFS and most file systems in user space lack it.
"""

from __future__ import annotations

import ctypes
import os
import sys

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE


def exchange(one: str, other: str) -> bool:
    """Whether both paths now name what the other one named. False: they were not exchanged, and nothing was changed.

    The reason is not reported: a caller that renames them instead meets the same one if it holds for renames, too.
    """
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):  # a C library without it: glibc before 2.28, some others
        return False
    return bool(renameat2(_HERE, os.fsencode(one), _HERE, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0)
