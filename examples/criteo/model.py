"""A small deep and cross network over the dense and categorical features of a pipeline.

Runs in: the trainer's process, and in that of serving, where the schema comes from the pipeline without its table.

The architecture is that of Wang et al., "DCN V2: Improved Deep & Cross Network" (2021), the stacked form.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from feedline import Batch
from feedline.loader.encoding.layout import BatchSchema


class DeepCross(nn.Module):
    """The logit of a click: embeddings and numbers, crossed with themselves, then two layers.

    schema: of the batches; a categorical feature gets an embedding of `num_embeddings` rows of `width` numbers.
    """

    def __init__(self, schema: BatchSchema, *, width: int = 8, crosses: int = 2) -> None:
        super().__init__()
        columns = [column for column in schema if column.group == "categorical"]
        dense = sum(column.width for column in schema if column.group == "dense")
        self.embeddings = nn.ModuleList(
            nn.Embedding(int(column.num_embeddings), width, sparse=True) for column in columns
        )
        for embedding in self.embeddings:
            nn.init.normal_(embedding.weight, std=0.05)
        size = dense + width * len(columns)
        self.crosses = nn.ModuleList(nn.Linear(size, size) for _ in range(crosses))
        self.top = nn.Sequential(nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return one logit per row, float32 [B]."""
        embedded = [embedding(batch.categorical[:, k]) for k, embedding in enumerate(self.embeddings)]
        first = crossed = torch.cat([batch.dense, *embedded], dim=1)
        for layer in self.crosses:
            crossed = crossed + first * layer(crossed)
        return self.top(crossed).squeeze(1)

    def save(self, path: Path) -> None:
        torch.save(self.state_dict(), path)

    @classmethod
    def load(cls, schema: BatchSchema, path: Path) -> DeepCross:
        """Return the model of a file, for evaluation; its sizes must be those of the schema, and so of the same fit."""
        model = cls(schema)
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
