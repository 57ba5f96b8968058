"""Embedding tables that look up the ids of unique rows once.

Runs in: the trainer. Both are torch's own modules, with their arguments, parameters and states, that take a feature of
a batch besides tensors. V ids of the unique rows are looked up in a table of width D in O(V D), and pooled rows are
expanded in O(B D).
"""

from __future__ import annotations

from typing import Any

import torch

from feedline.modules.row_features import (
    RaggedFeature,
    check_ids,
    check_ragged,
    expand_rows,
    inverse_of,
    refuse_outside,
)


class DedupEmbeddingBag(torch.nn.EmbeddingBag):
    """`torch.nn.EmbeddingBag` over the lists of a feature: pooled embeddings [B, D], computed once per unique row.

    Constructor, parameters and states are torch's; so is a call with tensors. An empty list gives zeros. A weighted
    feature's weights are the `per_sample_weights`, which need mode="sum". With `expand=False` the result is that of
    the feature's own rows, [U, D], for `expand_rows` after further layers. scale_grad_by_freq counts an id as often as
    the batch holds it, which unique rows do not know: it is refused for them.

    Examples:
        >>> lists = Sparse(torch.tensor([7, 8, 9]), torch.tensor([2, 0, 1]), torch.tensor([0, 2, 2, 3]))
        >>> DedupEmbeddingBag(10, 4, mode="sum")(lists).shape
        torch.Size([3, 4])
    """

    def forward(
        self,
        input: torch.Tensor | RaggedFeature,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
        *,
        expand: bool = True,
    ) -> torch.Tensor:
        """Pool the lists of a feature; offsets and per_sample_weights belong to an input that is a tensor.

        TypeError: the input is no feature of ids. ValueError: weights with another mode than "sum". IndexError: an id
        has no row in the table.
        """
        if isinstance(input, torch.Tensor):
            return super().forward(input, offsets, per_sample_weights)
        feature = check_ragged(input, "DedupEmbeddingBag")
        if offsets is not None or per_sample_weights is not None:
            raise TypeError(
                "DedupEmbeddingBag has offsets and weights of a feature from itself: got others beside it. Pass the "
                "feature alone, or its values as a tensor."
            )
        _refuse_frequencies(self, feature)
        ids, weights = feature.values, feature.weights
        check_ids(ids, "DedupEmbeddingBag")
        if weights is not None:
            if self.mode != "sum":
                raise ValueError(
                    f"DedupEmbeddingBag(mode={self.mode!r}) has no use for weights: got a weighted feature. "
                    'Make it with mode="sum", or pass feature.values and feature.offsets[:-1] for plain pooling.'
                )
            weights = weights.to(self.weight.dtype)
        starts = feature.offsets if self.include_last_offset else feature.offsets[:-1]
        starts = starts.to(ids.dtype)  # torch wants both of one type
        try:
            pooled = super().forward(ids, starts, weights)
        except (IndexError, RuntimeError):
            refuse_outside(ids, self.num_embeddings, "DedupEmbeddingBag")
            raise
        return expand_rows(pooled, feature) if expand else pooled


class DedupEmbedding(torch.nn.Embedding):
    """`torch.nn.Embedding` over a feature, computed once per unique row.

    Constructor, parameters and states are torch's; so is a call with a tensor. Of a scalar feature (`InverseColumn`,
    values [U] or [U, K]) the result is [B, D] or [B, K, D], with `expand=False` [U, D] or [U, K, D]. Of a feature of
    lists it is a feature of the same type whose values are the embeddings [V, D] of the ids: of unique rows if it is
    deduplicated, for `DedupSequenceEncoder` or for `.expand()`.

    Examples:
        >>> batch = next(Pipeline.from_yaml("pipeline.yaml", set={"batch.size": 512}).batches())
        >>> DedupEmbedding(batch.schema["item"].num_embeddings, 4)(batch["item"]).shape
        torch.Size([512, 4])
    """

    def forward(self, input: Any, *, expand: bool = True) -> Any:
        """Look up the ids of a feature.

        TypeError: the input is no feature of ids. IndexError: an id has no row in the table.
        """
        if isinstance(input, torch.Tensor):
            return super().forward(input)
        if not hasattr(input, "values"):
            raise TypeError(
                f"DedupEmbedding takes ids: got {type(input).__name__}. "
                "Pass a tensor, batch[name] or batch.sparse[name]."
            )
        _refuse_frequencies(self, input)
        check_ids(input.values, "DedupEmbedding")
        try:
            embedded = super().forward(input.values)
        except (IndexError, RuntimeError):
            refuse_outside(input.values, self.num_embeddings, "DedupEmbedding")
            raise
        if not hasattr(input, "lengths"):
            return expand_rows(embedded, input) if expand else embedded
        inverse = inverse_of(input)
        shape = (input.lengths, input.offsets, input.weights)
        return type(input)(embedded, *shape) if inverse is None else type(input)(embedded, *shape, inverse)


def _refuse_frequencies(module: torch.nn.EmbeddingBag | torch.nn.Embedding, feature: Any) -> None:
    if module.scale_grad_by_freq and inverse_of(feature) is not None:
        raise ValueError(
            f"{type(module).__name__}(scale_grad_by_freq=True) needs every row of the batch: got the unique rows of a "
            "deduplicated feature. Leave it out, or pass feature.expand()."
        )
