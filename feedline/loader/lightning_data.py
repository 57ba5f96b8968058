"""A data module for Lightning: the batches of a pipeline, resumed in mid-epoch from Lightning's checkpoints.

Runs in: the trainer. Imported by name only, since it needs the package `lightning`.

Lightning saves the state of a dataset that is its dataloader, too, but loads it only if its counters say that an epoch
is unfinished. After a resume from a checkpoint of an epoch's last step they do not (Lightning 2.6.6), and a second
resume would start at the first epoch again. A data module's state is always loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lightning import LightningDataModule
from lightning.pytorch.strategies import ModelParallelStrategy

from feedline.loader.dataset import FeedlineDataset


class FeedlineDataModule(LightningDataModule):
    """Training and validation data: `trainer.fit(model, FeedlineDataModule("pipeline.yaml"))`.

    `pipeline` and `options` are the arguments of `FeedlineDataset`. `validation`: overrides that select the rows to
    validate on, beside those of `set`: `{"source.where": …, "batch.tail": "pad", "shuffle": "off"}`; without it there
    is no validation. The datasets are made when Lightning has made its process group, and closed at the end of a fit.
    With `ModelParallelStrategy` they get its data-parallel mesh: tensor-parallel ranks see the same batches.

    `dataset`: the training data, from `setup` on; a model's `setup` finds its schema by
    `self.trainer.datamodule.dataset.schema`.
    """

    def __init__(
        self,
        pipeline: str | os.PathLike[str] | Mapping[str, object],
        *,
        validation: Mapping[str, object] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._options = options
        self._open: dict[str, FeedlineDataset] = {}
        if validation is not None:  # Lightning validates if this method is overridden
            self.val_dataloader = lambda: self._dataset("validation", validation)  # type: ignore[method-assign]

    @property
    def dataset(self) -> FeedlineDataset:
        """The training data; opened on first use."""
        return self._dataset("training", {})

    def setup(self, stage: str) -> None:
        """Open the training data of a fit."""
        if stage == "fit":
            self.dataset.state_dict()  # on every rank: the ranks agree here

    def train_dataloader(self) -> FeedlineDataset:
        """The training data: a dataset is its own dataloader."""
        return self.dataset

    def state_dict(self) -> dict[str, Any]:
        """The state of the training data."""
        return self.dataset.state_dict() if "training" in self._open else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the training data at a state; a validation alone has none."""
        if "training" in self._open:
            self.dataset.load_state_dict(state_dict)

    def teardown(self, stage: str) -> None:
        """Close the datasets."""
        while self._open:
            self._open.popitem()[1].close()

    def _dataset(self, name: str, overrides: Mapping[str, object]) -> FeedlineDataset:
        if name not in self._open:
            options = {**self._options, "set": {**(self._options.get("set") or {}), **overrides}}
            strategy = self.trainer.strategy if self.trainer is not None else None
            if isinstance(strategy, ModelParallelStrategy):
                options = {"mesh": strategy.device_mesh["data_parallel"], **options}
            self._open[name] = FeedlineDataset(self._pipeline, **options)
        return self._open[name]
