"""Train a DLRM whose embedding tables torchrec divides among the ranks, in torchrec's pipeline; it resumes.

    torchrun --nproc-per-node 2 examples/torchrec/train.py

Runs in: the trainer's process of each rank, on GPUs if there are any; `FeedlineDataset` starts a feeder beside them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter

from feedline import Batch, FeedlineDataset
from feedline.config.overrides import parse_overrides

HERE = Path(__file__).resolve().parent
DIM, RATE = 16, 0.05


class Dlrm(nn.Module):
    """Returns the loss, and for the loop the loss and the batch that it is of."""

    def __init__(self, columns: object, device: torch.device) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(
                name=column.name,
                embedding_dim=DIM,
                num_embeddings=column.num_embeddings,
                feature_names=[column.name],
            )
            for column in columns
            if column.group in ("sparse", "categorical")
        ]
        self.names = [table.name for table in tables]
        width = sum(column.width for column in columns if column.group == "dense")
        self.embeddings = EmbeddingBagCollection(tables=tables, device=device)
        self.bottom = nn.Sequential(nn.Linear(width, DIM), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(DIM * (len(tables) + 1), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, Batch]]:
        embedded = self.embeddings(batch.sparse_features)  # a property: the pipeline reads it ahead of the step
        vectors = [embedded[name] for name in self.names]  # embedded.values() has them in the order of the sharding
        logits = self.top(torch.cat([self.bottom(batch.dense_features), *vectors], dim=1))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), batch)


def sharded(columns: object, device: torch.device) -> tuple[DistributedModelParallel, CombinedOptimizer]:
    """The model with its tables divided among the ranks, and its optimizers: tables learn in the backward pass."""
    torch.manual_seed(0)
    module = Dlrm(columns, torch.device("meta") if device.type == "cuda" else device)
    apply_optimizer_in_backward(torch.optim.SGD, module.embeddings.parameters(), {"lr": RATE})
    model = DistributedModelParallel(module, device=device)
    dense = dict(in_backward_optimizer_filter(model.named_parameters()))
    optimizer = KeyedOptimizerWrapper(dense, lambda parameters: torch.optim.SGD(parameters, lr=RATE))
    return model, CombinedOptimizer([model.fused_optimizer, optimizer])


def epochs(dataset: FeedlineDataset, last: int) -> Iterator[Batch]:
    """The batches up to an epoch, in one stream, so that the pipeline does not run empty between epochs."""
    for _ in range(dataset.state_dict()["epoch"], last):
        yield from dataset


def load(model: DistributedModelParallel, checkpoint: Path, **values: object) -> dict[str, object]:
    """Load a checkpoint into the model; return the values that it has beside it."""
    state = {"model": model.state_dict(), **values}
    # Without this, torch 2.13 drops tables of other ranks, and takes the checkpoint for one of torch 2.3.
    planner = DefaultLoadPlanner(flatten_sharded_tensors=False)
    dcp.load(state, checkpoint_id=checkpoint, planner=planner)
    model.load_state_dict(state["model"])
    return state


def train(options: argparse.Namespace, device: torch.device) -> list[tuple[int, int, float]]:
    """Train until the last epoch, or for `--steps`; return epoch, step and loss of each step."""
    with FeedlineDataset(options.pipeline, set=options.set) as dataset:
        model, optimizer = sharded(dataset.schema, device)
        if options.checkpoint.exists():
            dataset.load_state_dict(load(model, options.checkpoint, data=dataset.state_dict())["data"])
        pipeline = TrainPipelineSparseDist(model, optimizer, device)
        batches, steps, batch = epochs(dataset, options.epochs), [], None
        while len(steps) != options.steps:
            try:
                loss, batch = pipeline.progress(batches)
            except StopIteration:
                break
            steps.append((batch.epoch, batch.step, loss.item()))
            if batch.step % 10 == 0 and distributed.get_rank() == 0:
                print(f"epoch {batch.epoch} step {batch.step}: loss {steps[-1][2]:.4f}", flush=True)
        if batch is not None:  # `after`: the pipeline has taken more batches than the model
            state = {"model": model.state_dict(), "data": dataset.state_dict(after=batch)}
            dcp.save(state, checkpoint_id=options.checkpoint)
    return steps


def main() -> None:
    """Join the ranks that torchrun started, and train."""
    parser = argparse.ArgumentParser(description="Train a sharded DLRM on clicks.")
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--checkpoint", type=Path, default=HERE / "checkpoint", help="continued if it is there")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, help="stop after so many, with a checkpoint")
    parser.add_argument("--json", metavar="FOLDER", type=Path, help="write epoch, step and loss of each step")
    options = parser.parse_args()
    options.set = parse_overrides(options.set)
    cuda = torch.cuda.is_available()
    distributed.init_process_group("nccl" if cuda else "gloo")
    device = torch.device("cuda", distributed.get_node_local_rank()) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    try:
        steps = train(options, device)
        if options.json:
            (options.json / f"{distributed.get_rank()}.json").write_text(json.dumps(steps))
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
