"""Train in a plain PyTorch loop, with a progress bar and TensorBoard.

python examples/frameworks/train_plain.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, device_of_rank, loss_of
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from feedline import FeedlineDataset

CHECKPOINT = Path("checkpoints/plain.pt")


def main() -> None:
    device = device_of_rank()
    with FeedlineDataset(PIPELINE) as dataset, SummaryWriter("runs/plain") as writer:
        model = Clicks(dataset.schema).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        if CHECKPOINT.exists():
            saved = torch.load(CHECKPOINT, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            dataset.load_state_dict(saved["data"])

        for epoch in range(dataset.state_dict()["epoch"], EPOCHS):
            for batch in tqdm(dataset, f"epoch {epoch}", initial=dataset.state_dict()["step"]):
                batch = batch.to(device, non_blocking=True)
                loss = loss_of(model(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                step = epoch * len(dataset) + batch.step
                writer.add_scalar("loss", loss, step)
                writer.add_scalar("data/wait_fraction", dataset.stats().wait_fraction, step)
                if (step + 1) % SAVE_EVERY == 0:
                    CHECKPOINT.parent.mkdir(exist_ok=True)
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**state, "data": dataset.state_dict(after=batch)}, CHECKPOINT.with_suffix(".new"))
                    CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)


if __name__ == "__main__":
    main()
