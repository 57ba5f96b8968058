"""Feedline feeds PyTorch trainers of recommendation models from a Hive-partitioned Parquet warehouse.

    from feedline import FeedlineDataset
    with FeedlineDataset("pipeline.yaml") as dataset:
        for batch in dataset:
            ...

Names are loaded on first use, so that `import feedline` is cheap: no torch, no Dask.
"""

from __future__ import annotations

import gc
import importlib
from typing import TYPE_CHECKING, Any

from feedline import errors
from feedline.version import VERSION

if TYPE_CHECKING:
    from feedline.loader.batch import Batch
    from feedline.loader.dataset import FeedlineDataset
    from feedline.loader.encoding.layout import SparseFeatures
    from feedline.loader.tensors.slot_tensors import Sparse
    from feedline.pipeline import Pipeline
    from feedline.transforms.registry.user_op import user_op
    from feedline.warehouse.table import Table

__all__ = [
    "Batch",
    "FeedlineDataset",
    "Pipeline",
    "Sparse",
    "SparseFeatures",
    "Table",
    "__version__",
    "errors",
    "user_op",
]

__version__ = VERSION

_MODULES = {
    "Batch": "feedline.loader.batch",
    "FeedlineDataset": "feedline.loader.dataset",
    "Pipeline": "feedline.pipeline",
    "Sparse": "feedline.loader.tensors.slot_tensors",
    "SparseFeatures": "feedline.loader.encoding.layout",
    "Table": "feedline.warehouse.table",
    "user_op": "feedline.transforms.registry.user_op",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'feedline' has no attribute {name!r}")
    collects = gc.isenabled()
    gc.disable()  # what imports create stays: collections on the way took a third of their time
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
