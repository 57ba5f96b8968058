"""Modules of a model that compute repeated features once per unique row, beside torch's own of the same parameters.

Runs in: the trainer. They take the features of a `Batch`, deduplicated or plain, with the same results and gradients.
"""

from feedline.modules.embedding_tables import DedupEmbedding, DedupEmbeddingBag
from feedline.modules.row_features import expand_rows
from feedline.modules.sequence_encoder import DedupSequenceEncoder

__all__ = ["DedupEmbedding", "DedupEmbeddingBag", "DedupSequenceEncoder", "expand_rows"]
