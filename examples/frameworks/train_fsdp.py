"""Train with fully_shard (FSDP2) and tensor parallelism over a DeviceMesh; the checkpoint is sharded, too.

    torchrun --nproc-per-node 4 examples/frameworks/train_fsdp.py

Ranks that share the tensor-parallel layers must see the same batch: the dataset gets the mesh's data-parallel part.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, device_of_rank, loss_of
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from feedline import FeedlineDataset

CHECKPOINTS = Path("checkpoints/fsdp")


def main() -> None:
    device, ranks = device_of_rank(), int(os.environ["WORLD_SIZE"])
    shape = (ranks // 2, 2) if ranks >= 4 else (ranks, 1)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp", "tp"))
    with FeedlineDataset(PIPELINE, mesh=mesh["dp"]) as dataset:
        model = Clicks(dataset.schema).to(device)
        parallelize_module(model.top, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        optimizer = torch.optim.Adam(model.parameters())
        if saved := sorted(CHECKPOINTS.glob("*/.metadata")):  # written last
            weights, moments = get_state_dict(model, optimizer)
            dcp.load({"model": weights, "optimizer": moments, "data": dataset}, checkpoint_id=saved[-1].parent)
            set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

        for epoch in range(dataset.state_dict()["epoch"], EPOCHS):
            for batch in dataset:
                batch = batch.to(device, non_blocking=True)
                loss = loss_of(model(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                step = epoch * len(dataset) + batch.step + 1
                if step % SAVE_EVERY == 0:
                    weights, moments = get_state_dict(model, optimizer)
                    state = {"model": weights, "optimizer": moments, "data": dataset}
                    dcp.save(state, checkpoint_id=CHECKPOINTS / f"{step:08}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
