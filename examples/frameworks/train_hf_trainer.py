"""Train with the Trainer of Hugging Face's transformers; the dataset's state is in its trainer_state.json.

python examples/frameworks/train_hf_trainer.py        # or torchrun, or accelerate launch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from clicks import EPOCHS, PIPELINE, SAVE_EVERY, Clicks, loss_of
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import get_last_checkpoint

from feedline import Batch, FeedlineDataset

CHECKPOINTS = Path("checkpoints/hf")


class DatasetState(TrainerCallback, ExportableState):
    """Keeps the dataset's state in the Trainer's checkpoints: the Trainer's own way is to read and drop batches."""

    dataset: FeedlineDataset | None = None
    saved: dict[str, Any] | None = None

    def on_train_begin(self, *_: Any, train_dataloader: FeedlineDataset, **__: Any) -> None:
        self.dataset = train_dataloader
        if self.saved is not None:
            self.dataset.load_state_dict(self.saved)

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": None if self.dataset is None else self.dataset.state_dict()}}


class ClicksTrainer(Trainer):
    def get_train_dataloader(self) -> FeedlineDataset:
        return self.train_dataset  # as it is: it delivers the batches of this rank

    def compute_loss(self, model: nn.Module, batch: Batch, *_: Any, **__: Any) -> Tensor:
        batch = batch.to(self.args.device, non_blocking=True)
        return loss_of(model(batch), batch)


def main() -> None:
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)  # on every rank: get_last_checkpoint lists it
    arguments = TrainingArguments(
        str(CHECKPOINTS),
        use_cpu=not torch.cuda.is_available(),
        num_train_epochs=EPOCHS,
        save_steps=SAVE_EVERY,
        ignore_data_skip=True,
        restore_callback_states_from_checkpoint=True,
        report_to="tensorboard",
        logging_steps=1,
    )
    with FeedlineDataset(PIPELINE) as dataset:  # after TrainingArguments, which makes the process group
        trainer = ClicksTrainer(Clicks(dataset.schema), arguments, train_dataset=dataset, callbacks=[DatasetState()])
        trainer.train(resume_from_checkpoint=get_last_checkpoint(CHECKPOINTS))


if __name__ == "__main__":
    main()
