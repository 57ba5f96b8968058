"""Train one model in two processes: an embedding server reads ids and lists, a dense tower numbers and labels.

    torchrun --nproc-per-node 2 train.py [PIPELINE.YAML]

Both read the same rows in the same step. The server sends their embeddings, the tower sends back the gradients.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

from feedline import Batch, FeedlineDataset

TOWER, SERVER = 0, 1  # ranks
GROUPS = {TOWER: ["dense", "label"], SERVER: ["categorical", "sparse"]}
WIDTH = 8


class Embeddings(torch.nn.Module):
    """An embedding per id, and the mean of those of each list, side by side."""

    def __init__(self, schema) -> None:
        super().__init__()
        self.ids = [column.name for column in schema if column.group == "categorical"]
        self.lists = [column.name for column in schema if column.group == "sparse"]
        sizes = {name: schema[name].num_embeddings for name in (*self.ids, *self.lists)}
        self.width = WIDTH * len([*self.ids, *self.lists])
        self.tables = torch.nn.ModuleDict({name: torch.nn.Embedding(sizes[name], WIDTH) for name in self.ids})
        self.bags = torch.nn.ModuleDict(
            {name: torch.nn.EmbeddingBag(sizes[name], WIDTH, include_last_offset=True) for name in self.lists}
        )

    def forward(self, batch: Batch) -> torch.Tensor:
        ids = [self.tables[name](batch[name]) for name in self.ids]
        lists = [batch.sparse[name] for name in self.lists]
        pooled = [self.bags[name](one.values, one.offsets) for name, one in zip(self.lists, lists, strict=True)]
        return torch.cat([*ids, *pooled], dim=1)


class Tower(torch.nn.Module):
    def __init__(self, dense: int, embedded: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(dense + embedded, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, batch: Batch, embedded: torch.Tensor) -> torch.Tensor:
        logits = self.layers(torch.cat([batch.dense, embedded], dim=1))
        return torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)


def serve(dataset: FeedlineDataset, epochs: int) -> None:
    embeddings = Embeddings(dataset.schema)
    distributed.send(torch.tensor(embeddings.width), dst=TOWER)
    optimizer = torch.optim.SGD(embeddings.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in dataset:
            embedded = embeddings(batch)
            distributed.send(embedded.detach(), dst=TOWER)
            gradient = torch.empty_like(embedded)
            distributed.recv(gradient, src=TOWER)
            optimizer.zero_grad()
            embedded.backward(gradient)
            optimizer.step()


def train(dataset: FeedlineDataset, epochs: int) -> Iterator[float]:
    """The loss of each step."""
    dense = sum(column.group == "dense" for column in dataset.schema)  # both agree on the plan here, before any message
    width = torch.tensor(0)
    distributed.recv(width, src=SERVER)
    tower = Tower(dense, int(width))
    optimizer = torch.optim.SGD(tower.parameters(), lr=0.1)
    for _ in range(epochs):
        for batch in dataset:
            inputs = torch.empty(batch.rows, int(width))
            distributed.recv(inputs, src=SERVER)
            loss = tower(batch, inputs.requires_grad_())
            optimizer.zero_grad()
            loss.backward()
            distributed.send(inputs.grad, dst=SERVER)
            optimizer.step()
            yield loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", nargs="?", default=Path(__file__).with_name("pipeline.yaml"))
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    distributed.init_process_group("gloo", timeout=timedelta(seconds=300))
    torch.manual_seed(0)
    rank = distributed.get_rank()
    # Both are rank 0 of 1: each reads all rows, of its own columns.
    with FeedlineDataset(options.pipeline, features=GROUPS[rank], data_rank=0, data_world_size=1) as dataset:
        if rank == SERVER:
            serve(dataset, options.epochs)
        else:
            for step, loss in enumerate(train(dataset, options.epochs)):
                print(f"step {step}: loss {loss:.6f}", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
