"""Train with Accelerate, which saves and loads the dataset with model and optimizer.

    accelerate launch examples/frameworks/train_accelerate.py        # or torchrun, or python

The dataset shares the rows out among the ranks itself, so it is registered and not wrapped by `prepare`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, loss_of

from feedline import FeedlineDataset

CHECKPOINT = Path("checkpoints/accelerate")


def main() -> None:
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # before the dataset: it makes the process group
    with FeedlineDataset(PIPELINE) as dataset:
        model = Clicks(dataset.schema)
        model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
        accelerator.register_for_checkpointing(dataset)
        if CHECKPOINT.exists():
            accelerator.load_state(CHECKPOINT)

        for _ in range(dataset.state_dict()["epoch"], EPOCHS):
            for batch in dataset:
                batch = batch.to(accelerator.device, non_blocking=True)
                loss = loss_of(model(batch), batch)
                optimizer.zero_grad()
                accelerator.backward(loss)
                optimizer.step()

                if (batch.step + 1) % SAVE_EVERY == 0:
                    accelerator.save_state(CHECKPOINT)
    accelerator.end_training()


if __name__ == "__main__":
    main()
