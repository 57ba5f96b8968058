"""The ops and the pass that applies them: frames of source columns in, one finished column per feature out.

Importing the package declares all ops.
"""

from feedline.transforms import (
    crossings,
    dense,
    embeddings,
    fitted_dense,
    generated,
    group_statistics,
    joins,
    scores,
    sparse,
    target_encoding,
    vectors,
    vocabulary,
    weighted,
)
from feedline.transforms.catalogue import document, op_schema
from feedline.transforms.compile import CompiledFeatures, Output, compile_features
from feedline.transforms.registry import OPS, OpError, resolve

__all__ = [
    "OPS",
    "CompiledFeatures",
    "OpError",
    "Output",
    "compile_features",
    "crossings",
    "dense",
    "document",
    "embeddings",
    "fitted_dense",
    "generated",
    "group_statistics",
    "joins",
    "op_schema",
    "resolve",
    "scores",
    "sparse",
    "target_encoding",
    "vectors",
    "vocabulary",
    "weighted",
]
