"""Save with torch.distributed.checkpoint while training goes on; the dataset is one of its `Stateful` objects.

torchrun --nproc-per-node 2 examples/frameworks/train_dcp.py
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, device_of_rank, loss_of
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from feedline import FeedlineDataset

CHECKPOINTS = Path("checkpoints/dcp")


def main() -> None:
    device, saving = device_of_rank(), None
    distributed.init_process_group()
    savers = distributed.new_group(backend="gloo")  # the thread that saves must not share the training's group
    with FeedlineDataset(PIPELINE) as dataset:
        model = DistributedDataParallel(Clicks(dataset.schema).to(device))
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
                    if saving is not None:
                        saving.result()  # of the one before
                    weights, moments = get_state_dict(model, optimizer)
                    state = {"model": weights, "optimizer": moments, "data": dataset}  # its position now
                    saving = dcp.async_save(state, checkpoint_id=CHECKPOINTS / f"{step:08}", process_group=savers)
    if saving is not None:
        saving.result()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
