"""The ops and the pass that applies them: frames of source columns in, one finished column per feature out.

Importing the package declares all ops.
"""

from feedline.transforms import (
    crossings,
    dense,
    fitted_dense,
    generated,
    group_statistics,
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
    "fitted_dense",
    "generated",
    "group_statistics",
    "op_schema",
    "resolve",
    "scores",
    "sparse",
    "target_encoding",
    "vectors",
    "vocabulary",
    "weighted",
]
