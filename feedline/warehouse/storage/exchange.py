"""Exchange two folders of one disk atomically, so that each path always names one of the two.

Runs where `optimize` replaces partitions. Linux offers it (`renameat2`, `RENAME_EXCHANGE`: ext4, XFS, Btrfs, tmpfs,
overlayfs); Python and pyarrow do not, so the C library's function is called. Other systems, NFS and most FUSE file
systems lack it.
"""

from __future__ import annotations

import ctypes
import os
import sys

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
