"""Train with Lightning, whose checkpoints hold the state of the data, too.

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

from feedline import Batch
from feedline.loader.lightning_data import FeedlineDataModule

CHECKPOINTS = Path("checkpoints/lightning")


class ClicksModule(lightning.LightningModule):
    def setup(self, stage: str) -> None:
        self.dataset = self.trainer.datamodule.dataset
        self.clicks = Clicks(self.dataset.schema)

    def training_step(self, batch: Batch) -> Tensor:
        loss = loss_of(self.clicks(batch), batch)
        waited = self.dataset.stats().wait_fraction
        self.log_dict({"loss": loss, "data/wait_fraction": waited}, prog_bar=True, batch_size=batch.rows)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def main() -> None:
    checkpoints = ModelCheckpoint(CHECKPOINTS, every_n_train_steps=SAVE_EVERY, save_last=True)
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # as torchrun sets it: on a CPU, Lightning's own guess is 1
    trainer = lightning.Trainer(devices=ranks, max_epochs=EPOCHS, callbacks=[checkpoints], default_root_dir="runs")
    trainer.fit(ClicksModule(), FeedlineDataModule(PIPELINE), ckpt_path="last")


if __name__ == "__main__":
    main()
