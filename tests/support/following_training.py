"""A training that follows a growing table, for tests that kill it.

    python following_training.py PIPELINE.YAML LOG EPOCHS [RANK WORLD_SIZE [STORE]]

Appends a line of JSON to LOG per batch: its epoch and step, the ids of its rows, the state after it, and its receipt;
and continues at the last one there. STORE: a file by which the ranks connect over gloo.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from receipts import receipt_of

from feedline import FeedlineDataset


def last_state(log: Path) -> dict[str, Any] | None:
    """The state in the last whole line; a kill may have cut off the one after."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    log.write_text("".join(f"{line}\n" for line in lines))
    return json.loads(lines[-1])["state"] if lines else None


def main(path: str, log: Path, epochs: int, rank: int, world_size: int) -> None:
    state = last_state(log)
    with FeedlineDataset(path, rank=rank, world_size=world_size) as dataset, log.open("a") as lines:
        if state is not None:
            dataset.load_state_dict(state)
        while len(dataset):
            for batch in dataset:
                ids = batch["id"][batch.valid].tolist()
                message = {"epoch": batch.epoch, "step": batch.step, "ids": ids, "receipt": receipt_of(dataset, batch)}
                lines.write(json.dumps({**message, "state": dataset.state_dict(after=batch)}) + "\n")
                lines.flush()
            if batch.epoch + 1 == epochs:
                break


if __name__ == "__main__":
    rank, world_size = (int(each) for each in (*sys.argv[4:6], "0", "1")[:2])
    if len(sys.argv) > 6:
        from torch import distributed

        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
        distributed.init_process_group("gloo", init_method=f"file://{sys.argv[6]}", rank=rank, world_size=world_size)
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), rank, world_size)
    if len(sys.argv) > 6:
        distributed.destroy_process_group()
