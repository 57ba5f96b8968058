"""What the programs of this folder share: where the pipeline is, how long to train, the model and its loss."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor, nn

from feedline import Batch
from feedline.loader.encoding.layout import BatchSchema

PIPELINE = Path(__file__).with_name("pipeline.yaml")
EPOCHS = 2
SAVE_EVERY = 5  # steps


class Clicks(nn.Module):
    """The logit of a click: the embeddings of the ids, the mean embedding of the history, then a small network."""

    def __init__(self, schema: BatchSchema, width: int = 8) -> None:
        super().__init__()
        self.ids = nn.ModuleList(nn.Embedding(c.num_embeddings, width) for c in schema if c.group == "categorical")
        self.history = nn.EmbeddingBag(schema["hist_0"].num_embeddings, width, include_last_offset=True)
        inputs = sum(c.width for c in schema if c.group == "dense") + width * (len(self.ids) + 1)
        self.top = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return one logit per row, float32 [B, 1]."""
        ids = [embedding(batch.categorical[:, k]) for k, embedding in enumerate(self.ids)]
        history = self.history(batch.sparse["hist_0"].values, batch.sparse["hist_0"].offsets)
        return self.top(torch.cat([batch.dense, *ids, history], dim=1))


def loss_of(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss of a batch's rows."""
    return nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)


def device_of_rank() -> torch.device:
    """Return this rank's GPU, made current, or the CPU where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return torch.device("cuda", torch.cuda.current_device())
