"""Train with DistributedDataParallel: one program on each rank, one state for all.

torchrun --nproc-per-node 2 examples/frameworks/train_ddp.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, device_of_rank, loss_of
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from feedline import FeedlineDataset

CHECKPOINT = Path("checkpoints/ddp.pt")


def main() -> None:
    device = device_of_rank()
    distributed.init_process_group()  # before the dataset, which asks it for the rank
    with FeedlineDataset(PIPELINE) as dataset:
        model = DistributedDataParallel(Clicks(dataset.schema).to(device))
        optimizer = torch.optim.Adam(model.parameters())
        if CHECKPOINT.exists():
            saved = torch.load(CHECKPOINT, weights_only=True, map_location=device)
            model.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            dataset.load_state_dict(saved["data"])

        for _ in range(dataset.state_dict()["epoch"], EPOCHS):
            for batch in dataset:  # equally many on every rank: no join(), no padding
                batch = batch.to(device, non_blocking=True)
                loss = loss_of(model(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                if (batch.step + 1) % SAVE_EVERY == 0 and distributed.get_rank() == 0:  # any rank's state serves all
                    CHECKPOINT.parent.mkdir(exist_ok=True)
                    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "data": dataset.state_dict(after=batch)}, CHECKPOINT.with_suffix(".new"))
                    CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
