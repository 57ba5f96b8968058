"""Train with Lightning: the dataset itself is the dataloader, and its state is in Lightning's checkpoints.

    python examples/frameworks/train_lightning.py        # or torchrun, or srun
"""

from __future__ import annotations

import os
from pathlib import Path

import lightning
import torch
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, loss_of
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from feedline import Batch, FeedlineDataset

CHECKPOINTS = Path("checkpoints/lightning")


class ClicksModule(lightning.LightningModule):
    def setup(self, stage: str) -> None:
        self.dataset = FeedlineDataset(PIPELINE)  # here: Lightning has made the process group by now
        self.clicks = Clicks(self.dataset.schema)

    def train_dataloader(self) -> FeedlineDataset:
        return self.dataset

    def training_step(self, batch: Batch) -> Tensor:
        loss = loss_of(self.clicks(batch), batch)
        waited = self.dataset.stats().wait_fraction
        self.log_dict({"loss": loss, "data/wait_fraction": waited}, prog_bar=True, batch_size=batch.rows)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())

    def teardown(self, stage: str) -> None:
        self.dataset.close()


def main() -> None:
    checkpoints = ModelCheckpoint(CHECKPOINTS, every_n_train_steps=SAVE_EVERY, save_last=True)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # as torchrun sets it: on a CPU, Lightning's own guess is 1
    trainer = lightning.Trainer(devices=ranks, max_epochs=EPOCHS, callbacks=[checkpoints], log_every_n_steps=1)
    trainer.fit(ClicksModule(), ckpt_path="last")


if __name__ == "__main__":
    main()
