"""The ops and the pass that applies them: frames of source columns in, one finished column per feature out.

Importing the package declares all ops.
"""

from feedline.transforms import dense, generated, sparse
from feedline.transforms.compile import CompiledFeatures, Output, compile_features
from feedline.transforms.registry import OPS, OpError, document, op_schema, resolve

__all__ = [
    "OPS",
    "CompiledFeatures",
    "OpError",
    "Output",
    "compile_features",
    "dense",
    "document",
    "generated",
    "op_schema",
    "resolve",
    "sparse",
]
