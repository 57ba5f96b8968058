"""The ops, a family per module. Importing the package declares all of them; look calls up through its names."""

from feedline.transforms.ops import (
    crosses,
    dense,
    embeddings,
    fitted_dense,
    generated,
    group_statistics,
    id_lists,
    joins,
    list_scores,
    target_encoding,
    vectors,
    vocabulary,
    weighted,
)
from feedline.transforms.registry.calls import resolve
from feedline.transforms.registry.op import OPS
from feedline.transforms.registry.user_code import bind

__all__ = [
    "OPS",
    "bind",
    "crosses",
    "dense",
    "embeddings",
    "fitted_dense",
    "generated",
    "group_statistics",
    "id_lists",
    "joins",
    "list_scores",
    "resolve",
    "target_encoding",
    "vectors",
    "vocabulary",
    "weighted",
]
