"""Zarr arrays in every form that embeddings are read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

N, WIDTH = 1000, 6


DATA = np.random.default_rng(0).random((N, WIDTH), dtype=np.float32)


FORMS: dict[str, dict[str, Any]] = {
    "compressed": {},
    "bare": {"compressors": None},
    "bare, one chunk": {"compressors": None, "chunks": (N, WIDTH)},
    "version 2": {"zarr_format": 2},
    "version 2, bare": {"zarr_format": 2, "compressors": None},
    "version 2, columns first": {"zarr_format": 2, "compressors": None, "order": "F"},
    "sharded": {"shards": (512, WIDTH)},
    "columns apart": {"chunks": (64, 4), "compressors": None},
    "wide chunks": {"chunks": (64, 9), "compressors": None},
    "half": {"dtype": "f2", "compressors": None},
    "double": {"dtype": "f8"},
    "big-endian": {"zarr_format": 2, "dtype": ">f4", "compressors": None},
    "small integers": {"dtype": "i1", "compressors": None},
}


def made(path: Path, **options: Any) -> zarr.Array:
    array = zarr.create_array(store=str(path), shape=DATA.shape, **{"chunks": (64, WIDTH), "dtype": "f4", **options})
    array[:] = DATA * 100 if array.dtype.kind == "i" else DATA
    return array
