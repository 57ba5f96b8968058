"""Find the files that two snapshots share, whatever names their tables were given.

Runs where a plan or a fit is made. Local files are the same by their real path, those of a store by store and path: a
table may be named as a folder, a list, a glob, a `file://` URI or through a link, and its root may lie above another's.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import absolute, join, locate, split_options
from feedline.warehouse.storage.retry import is_local

Int64s = npt.NDArray[np.int64]


def same_files(one: Snapshot, other: Snapshot) -> Int64s:
    """int64 [files of `other`]: the index of the same file in `one`, -1 without one."""
    mine, theirs = contiguous(one.files["path"]), contiguous(other.files["path"])
    if absolute(one.uri) == absolute(other.uri):
        return _filled(pc.index_in(theirs, value_set=mine))
    found = np.full(len(theirs), -1, np.int64)
    places_of_one, places = _with_footers_of(one, other), _with_footers_of(other, one)  # a file has one footer
    names = _real_names(other, theirs.take(pa.array(places)))
    index = _filled(pc.index_in(names, value_set=_real_names(one, mine.take(pa.array(places_of_one)))))
    found[places[index >= 0]] = places_of_one[index[index >= 0]]
    return found


def _with_footers_of(snapshot: Snapshot, other: Snapshot) -> Int64s:
    """int64: the files with a footer that files of another snapshot have."""
    footers = (contiguous(each.files["footer_digest"]) for each in (snapshot, other))
    return np.flatnonzero(pc.is_in(next(footers), value_set=next(footers)).to_numpy(zero_copy_only=False))


def _real_names(snapshot: Snapshot, paths: pa.Array) -> pa.Array:
    """Names that are equal only for the same file."""
    location = locate(absolute(snapshot.uri))
    full = [join(location.path, path) for path in paths.to_pylist()]
    if is_local(location.filesystem):
        real_folder = cache(os.path.realpath)  # of thousands of files

        def real(path: str) -> str:
            folder, _, name = path.rpartition("/")
            return os.path.realpath(path) if Path(path).is_symlink() else f"{real_folder(folder)}/{name}"

        return pa.array(map(real, full), pa.string())
    options = parse_qs(split_options(snapshot.uri)[1].removeprefix("?"))
    store = [location.filesystem.type_name, *options.get("endpoint_override", ())]
    return pa.array([" ".join([*store, path]) for path in full], pa.string())


def _filled(index: pa.Array) -> Int64s:
    filled: Int64s = index.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return filled
