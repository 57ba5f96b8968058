"""Trainings of a sharded model in torchrec's pipelines, for torchrun: stopped in mid-epoch and resumed.

    torchrun torchrec_training.py FOLDER KIND=PIPELINE.YAML...

KIND is `base`, `sparse`, `freed`, whose ids are freed early (on a GPU), or `deduplicated`, which is not resumed. Writes
FOLDER/KIND-RANK.json (epoch, step and loss of each step, the types of the modules that were pipelined, warnings of the
tracing) and the checkpoint FOLDER/KIND-initial.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.distributed.types import ShardingType

from feedline import Batch, FeedlineDataset, SparseFeatures

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "torchrec"))

import train

EPOCHS, STOP = 3, 14
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
FREED = {"free_features_storage_early": True, "clear_data_dist_inputs": True, "enable_inplace_copy_batch": True}


class Warnings(logging.Handler):
    """What torchrec says of modules that it cannot pipeline."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        logging.getLogger("torchrec.distributed.train_pipeline").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def steps(kind: str, dataset: FeedlineDataset, pipeline: Any) -> Iterator[tuple[torch.Tensor, Batch]]:
    """The output of each step, up to the last epoch."""
    if kind != "base":
        batches = train.epochs(dataset, EPOCHS)
        while (output := step_of(pipeline, batches)) is not None:
            yield output
        return
    for _ in range(dataset.state_dict()["epoch"], EPOCHS):
        pipeline.reset()  # TrainPipelineBase stays at the end of its first iterator
        batches = iter(dataset)
        while (output := step_of(pipeline, batches)) is not None:
            yield output


def table_wise() -> None:
    """Have the default plan divide whole tables among the ranks, instead of copying small ones to all."""
    kinds = [ShardingType.TABLE_WISE.value]
    EmbeddingBagCollectionSharder.sharding_types = lambda self, compute_device_type: kinds  # type: ignore[method-assign]


def step_of(pipeline: Any, batches: Iterator[Batch]) -> tuple[torch.Tensor, Batch] | None:
    try:
        output: tuple[torch.Tensor, Batch] = pipeline.progress(batches)
    except StopIteration:
        return None
    return output


def part(kind: str, path: str, checkpoint: Path, state: dict[str, Any] | None, most: int | None) -> dict[str, Any]:
    """Train from a checkpoint and a state for some steps, with everything made anew."""
    choice = SparseFeatures(expand=False) if kind == "deduplicated" else None
    taken: list[tuple[int, int, float]] = []
    with FeedlineDataset(path, sparse_features=choice) as dataset:
        if kind == "deduplicated":  # torchrec 1.8 misreads unique rows on a CPU in tables that are not table-wise
            table_wise()
        model, optimizer = train.sharded(dataset.schema, DEVICE)
        if state is None:
            dcp.save({"model": model.state_dict()}, checkpoint_id=checkpoint)
        else:
            train.load(model, checkpoint)
            dataset.load_state_dict(state)
        pipeline_type = TrainPipelineBase if kind == "base" else TrainPipelineSparseDist
        pipeline: Any = pipeline_type(model, optimizer, DEVICE, **(FREED if kind == "freed" else {}))
        for loss, batch in steps(kind, dataset, pipeline):
            taken.append((batch.epoch, batch.step, loss.item()))
            state = dataset.state_dict(after=batch)
            del batch
            if len(taken) == most:
                break
        modules = [type(module).__name__ for module in getattr(pipeline, "_pipelined_modules", [])]
        dcp.save({"model": model.state_dict()}, checkpoint_id=checkpoint.with_name(f"{kind}-last"))
        return {"steps": taken, "state": state, "modules": modules}


def main() -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo" if DEVICE.type == "cpu" else "nccl", timeout=timedelta(seconds=100))
    folder, warnings = Path(sys.argv[1]), Warnings()
    for argument in sys.argv[2:]:
        kind, _, path = argument.partition("=")
        first = part(kind, path, folder / f"{kind}-initial", None, STOP)
        second = {**first, "steps": []}
        if kind != "deduplicated":
            second = part(kind, path, folder / f"{kind}-last", first["state"], None)
        outcome = {"steps": first["steps"] + second["steps"], "modules": second["modules"]}
        outcome["warnings"], warnings.messages = warnings.messages, []
        (folder / f"{kind}-{distributed.get_rank()}.json").write_text(json.dumps(outcome))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
