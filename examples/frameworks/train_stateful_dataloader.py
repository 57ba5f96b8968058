"""Train with torchdata's StatefulDataLoader, for code that saves its loader: it saves and loads the dataset's state.

python examples/frameworks/train_stateful_dataloader.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, device_of_rank, loss_of
from torchdata.stateful_dataloader import StatefulDataLoader

from feedline import FeedlineDataset

CHECKPOINT = Path("checkpoints/stateful.pt")


def main() -> None:
    device, first = device_of_rank(), 0
    with FeedlineDataset(PIPELINE) as dataset:
        loader = StatefulDataLoader(dataset, batch_size=None)
        model = Clicks(dataset.schema).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        if CHECKPOINT.exists():
            saved = torch.load(CHECKPOINT, weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            first = saved["epoch"]

        for _ in range(first, EPOCHS):
            for batch in loader:
                batch = batch.to(device, non_blocking=True)
                loss = loss_of(model(batch), batch)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                if (batch.step + 1) % SAVE_EVERY == 0:
                    CHECKPOINT.parent.mkdir(exist_ok=True)
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    position = {"loader": loader.state_dict(), "epoch": dataset.state_dict()["epoch"]}
                    torch.save({**state, **position}, CHECKPOINT.with_suffix(".new"))
                    CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)


if __name__ == "__main__":
    main()
