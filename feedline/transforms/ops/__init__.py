"""The ops, a family per module. Importing the package declares those that most pipelines call, and names the modules of
the others; look calls up through its names, of which OPS declares all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feedline.transforms.ops import crosses, dense, generated, id_lists
from feedline.transforms.registry import op
from feedline.transforms.registry.calls import resolve
from feedline.transforms.registry.user_code import bind

if TYPE_CHECKING:
    from feedline.transforms.registry.op import OPS as OPS

__all__ = ["OPS", "bind", "crosses", "dense", "generated", "id_lists", "resolve"]

_FAMILIES = (
    "embeddings",
    "fitted_dense",
    "group_statistics",
    "joins",
    "list_scores",
    "target_encoding",
    "vectors",
    "vocabulary",
    "weighted",
)
op.FURTHER.extend(f"{__name__}.{family}" for family in _FAMILIES)


def __getattr__(name: str) -> Any:
    if name != "OPS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    op.declare_all()
    return op.OPS
