"""Lightning trains on the planned rows, validates on the held-out ones, and says which ranks share batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pipelines import Place, furnished

from feedline import Batch, Pipeline

# Imported by a test that runs, not by each run's collection of tests: it takes five seconds.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs the extra frameworks"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated"),
]
HELD_OUT = {"source.where": 'ds == "2026-01-01"', "batch.tail": "pad", "shuffle": "off"}


def recorder() -> Any:
    """A model that records the rows that it trains and validates on."""
    from lightning import LightningModule

    class Recorder(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.top = torch.nn.Linear(2, 1)
            self.trained: list[tuple[int, int, list[int]]] = []
            self.validated: list[list[int]] = []

        def training_step(self, batch: Batch) -> torch.Tensor:
            self.trained.append((batch.epoch, batch.step, batch["request_id"].tolist()))
            return self.top(batch.dense).mean()

        def validation_step(self, batch: Batch, batch_idx: int) -> None:
            self.validated[-1].extend(batch["request_id"][batch.valid].tolist())

        def on_validation_start(self) -> None:
            self.validated.append([])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Recorder()


@pytest.fixture
def place(clicks: Path, tmp_path: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def test_a_fit_trains_on_the_plan_and_validates_on_all_held_out_rows(place: Place):
    from lightning import Trainer

    from feedline.loader import lightning_data

    path = place.write(batch={"size": 2048})
    model, data = recorder(), lightning_data.FeedlineDataModule(path, validation=HELD_OUT)
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(max_epochs=2, accelerator="cpu", enable_model_summary=False, **options)
    trainer.fit(model, data)
    plan = Pipeline.from_yaml(path)
    planned = [(b.epoch, b.step, b["request_id"].tolist()) for epoch in range(2) for b in plan.batches(epoch)]
    assert model.trained == planned
    held_out = Pipeline.from_yaml(path, HELD_OUT)
    expected = [row for batch in held_out.batches() for row in batch["request_id"][batch.valid].tolist()]
    assert len(expected) == len(set(expected)) > 5_000
    sanity_check, *validations = model.validated
    assert sanity_check == expected[: len(sanity_check)]
    assert validations == [expected, expected]
    assert data.state_dict() == {}, "its datasets are closed"


def opened(strategy: object, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """What a data module under this strategy opens its training data with."""
    from feedline.loader import lightning_data

    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(lightning_data, "FeedlineDataset", lambda path, **given: calls.append({"path": path, **given}))
    data = lightning_data.FeedlineDataModule("p.yaml", **options)
    data.trainer = SimpleNamespace(strategy=strategy)
    data.train_dataloader()
    [call] = calls
    return call


def test_model_parallel_ranks_get_the_data_parallel_mesh(monkeypatch: pytest.MonkeyPatch):
    from lightning.pytorch.strategies import ModelParallelStrategy, SingleDeviceStrategy

    strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)
    strategy._device_mesh = {"data_parallel": "of two"}
    assert opened(strategy, monkeypatch) == {"path": "p.yaml", "set": {}, "mesh": "of two"}
    assert opened(strategy, monkeypatch, mesh="own")["mesh"] == "own"
    given = opened(SingleDeviceStrategy(), monkeypatch, set={"shuffle": "off"}, timeout=9.0)
    assert given == {"path": "p.yaml", "set": {"shuffle": "off"}, "timeout": 9.0}
