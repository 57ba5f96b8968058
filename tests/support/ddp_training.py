"""A training with DistributedDataParallel over gloo, for torchrun: an epoch of each pipeline, then one on a mesh.

    torchrun ddp_training.py FOLDER PIPELINE.YAML...

Writes FOLDER/RANK.json: per pipeline the ids and steps that this rank received and the weights that it ended with; and
the digests of the batches of the first pipeline, read by groups of two ranks that see the same batch.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from receipts import receipt_of
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from feedline import FeedlineDataset


def train(path: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids: list[int] = []
    steps = 0
    with FeedlineDataset(path) as dataset:
        for batch in dataset:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                model(batch.dense), batch.labels, reduction="none"
            )
            (losses[:, 0] * batch.valid).mean().backward()  # waits for all ranks
            optimizer.step()
            optimizer.zero_grad()
            ids += batch.extra["id"][batch.valid].tolist()
            steps += 1
        weights = [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]
        outcome = {"ids": ids, "steps": steps, "len": len(dataset), "weights": weights, "state": dataset.state_dict()}
        return {**outcome, "rows": dataset.facts["rows"], "dropped": dataset.facts["rows_dropped"]}


def train_on_mesh(path: str) -> dict[str, Any]:
    size = distributed.get_world_size()
    mesh = init_device_mesh("cpu", (max(1, size // 2), min(2, size)), mesh_dim_names=("dp", "tp"))
    with FeedlineDataset(path, mesh=mesh["dp"]) as dataset:
        receipts = [receipt_of(dataset, batch) for batch in dataset]
        return {"receipts": receipts, "state": dataset.state_dict(), "source": dataset._ranks.source}


def main() -> None:
    distributed.init_process_group("gloo", timeout=timedelta(seconds=100))
    folder, *pipelines = sys.argv[1:]
    outcome = {path: train(path) for path in pipelines}
    outcome["mesh"] = train_on_mesh(pipelines[0])
    Path(folder, f"{distributed.get_rank()}.json").write_text(json.dumps(outcome))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
