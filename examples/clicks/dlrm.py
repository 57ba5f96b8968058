"""A DLRM with attention over histories, of modules that compute repeated features once per unique row.

Runs in: the trainer's process. One model takes batches with deduplicated groups and plain ones: the modules look at
their input. What depends on one feature alone is computed for its U unique rows, then expanded to the B rows of the
batch; the interaction and the top layers mix features, and are computed for all rows.

The architecture is that of Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems" (2019), with a layer of self-attention over some of the histories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from feedline import Batch
from feedline.loader.encoding.layout import BatchSchema
from feedline.modules import DedupEmbedding, DedupEmbeddingBag, DedupSequenceEncoder

TOP = (256, 64)


class Dlrm(nn.Module):
    """The logit of a click.

    schema: of the batches; every categorical and sparse feature gets an embedding table of `num_embeddings` rows.
    attention: the sparse features that a self-attention layer encodes; the others are summed up. width: of embeddings.
    """

    def __init__(self, schema: BatchSchema, *, attention: Sequence[str] = (), heads: int = 2, width: int = 64) -> None:
        super().__init__()
        self.dense = [column.name for column in schema if column.group == "dense"]
        rows = {
            column.name: int(column.num_embeddings) for column in schema if column.group in ("categorical", "sparse")
        }
        ids = [column.name for column in schema if column.group == "categorical"]
        pooled = [name for name in rows if name not in (*ids, *attention)]
        self.ids = nn.ModuleDict({name: DedupEmbedding(rows[name], width, sparse=True) for name in ids})
        self.items = nn.ModuleDict({name: DedupEmbedding(rows[name], width, sparse=True) for name in attention})
        self.encoders = nn.ModuleDict(
            {name: DedupSequenceEncoder(width, heads, dim_feedforward=width, dropout=0.0) for name in attention}
        )
        bag = {"mode": "sum", "include_last_offset": True, "sparse": True}
        self.bags = nn.ModuleDict({name: DedupEmbeddingBag(rows[name], width, **bag) for name in pooled})
        for table in self.tables():
            nn.init.normal_(table, std=0.1)
        vectors = 1 + len(rows)
        pairs = torch.tril_indices(vectors, vectors, -1)
        self.register_buffer("pairs", pairs[0] * vectors + pairs[1], persistent=False)
        self.bottom = nn.Sequential(*_layers(len(self.dense), width, width), nn.ReLU())
        self.top = _layers(width + len(self.pairs), *TOP, 1)

    def tables(self) -> Iterator[nn.Parameter]:
        """The embedding tables, whose gradients are sparse."""
        yield from (module.weight for modules in (self.ids, self.items, self.bags) for module in modules.values())

    def layers(self) -> Iterator[nn.Parameter]:
        """All other parameters."""
        yield from (each for part in (self.encoders, self.bottom, self.top) for each in part.parameters())

    def forward(self, batch: Batch) -> Tensor:
        """One logit per row, [B]."""
        dense = torch.stack([_expanded(batch[name]) for name in self.dense], dim=1)
        bottom = self.bottom(dense.to(self.top[0].weight.dtype))
        vectors = torch.stack([bottom, *self._embedded(batch)], dim=1)  # [B, F, width]
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        interactions = products.index_select(1, self.pairs)
        return self.top(torch.cat([bottom, interactions], dim=1)).squeeze(1)

    def _embedded(self, batch: Batch) -> Iterator[Tensor]:
        """A vector per row and feature, [B, width]: computed per unique row where the feature is deduplicated."""
        for name, table in self.ids.items():
            yield table(batch[name])
        for name, encoder in self.encoders.items():
            yield encoder(self.items[name](batch.sparse[name]))
        for name, bag in self.bags.items():
            yield bag(batch.sparse[name])


def _expanded(values: Any) -> Tensor:
    """A scalar feature of all rows, [B]."""
    return values if isinstance(values, Tensor) else values.expand()


def _layers(*sizes: int) -> nn.Sequential:
    """Linear layers of these sizes with ReLU in between."""
    layers: list[nn.Module] = []
    for size, width in pairwise(sizes):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(size, width))
    return nn.Sequential(*layers)
