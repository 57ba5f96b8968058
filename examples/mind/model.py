"""A two-tower model of news: a reader's history and a candidate become vectors, whose product is the score.

Runs in: the trainer's process, and in that of serving, where the schema comes from the pipeline without its table.

The reader's tower attends over the history, as in Wu et al., "Neural News Recommendation with Multi-Head
Self-Attention" (2019), with ids and categories of the news in place of their titles. It is computed once per
impression: the history is in a deduplicated group, and the modules of `feedline.modules` look at their input. In
serving the same model takes plain rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from feedline import Batch
from feedline.loader.encoding.layout import BatchSchema
from feedline.modules import DedupEmbedding, DedupSequenceEncoder, expand_rows


class NewsModel(nn.Module):
    """The logit of a click.

    schema: of the batches. The candidate's and the history's news share an embedding table of `width` numbers, as do
    their categories.
    """

    def __init__(self, schema: BatchSchema, *, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        rows = {column.name: int(column.num_embeddings or 0) for column in schema}
        self.users = DedupEmbedding(rows["user"], width)
        self.news = DedupEmbedding(rows["news"], width)
        self.categories = DedupEmbedding(rows["category"], width)
        self.quality = nn.Embedding(rows["news"], 1)  # of a news, whoever reads it
        for embedding in (self.users, self.news, self.categories, self.quality):
            nn.init.normal_(embedding.weight, std=0.1)
        self.encoder = DedupSequenceEncoder(width, heads, dim_feedforward=2 * width, dropout=0.0)
        self.reader = nn.Linear(2 * width, width)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, batch: Batch) -> Tensor:
        """Return one logit per row, float32 [B]."""
        reader = self.read(batch)
        candidate = self.news(batch["news"]) + self.categories(batch["category"])
        affinity = (expand_rows(reader, batch.sparse["history"]) * candidate).sum(dim=1)
        return affinity + self.quality(batch["news"]).squeeze(1) + self.bias

    def read(self, batch: Batch) -> Tensor:
        """The reader's vector, once per unique row: [U, width]."""
        history, kinds = batch.sparse["history"], batch.sparse["history_category"]
        elements = self.news(history)  # lists of embeddings, still of unique rows
        elements.values = elements.values + self.categories(kinds.values)
        user = self.users(batch["user"], expand=False)
        return self.reader(torch.cat([self.encoder(elements, expand=False), user], dim=1))

    def save(self, path: Path) -> None:
        torch.save(self.state_dict(), path)

    @classmethod
    def load(cls, schema: BatchSchema, path: Path) -> NewsModel:
        """Return the model of a file, for evaluation; its sizes must be those of the schema, and so of the same fit."""
        model = cls(schema)
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
