"""One rank of a training that writes receipts, for tests that kill it: resumes from its state, ends after an epoch.

    RANK=0 WORLD_SIZE=2 python receipt_trainer.py PIPELINE.YAML FOLDER

Appends a receipt per batch to FOLDER/RANK.jsonl and then saves the state in FOLDER/RANK.state; the steps of each epoch
that it begins, to FOLDER/RANK.steps. Ends after the epoch whose number is in FOLDER/last; without that file it trains
on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from receipts import receipt_of

from feedline import FeedlineDataset

STEP_S = 0.01  # as if it computed something


def next_epoch(dataset: FeedlineDataset) -> int:
    """The epoch of the next batch. Of a followed table, a state stays behind its epoch's last step."""
    state = dataset.state_dict()
    return int(state["epoch"]) + (state["step"] >= dataset.facts["steps"])


def main() -> None:
    pipeline, folder = sys.argv[1], Path(sys.argv[2])
    rank = os.environ["RANK"]
    receipts, state, last = folder / f"{rank}.jsonl", folder / f"{rank}.state", folder / "last"
    steps = folder / f"{rank}.steps"
    with FeedlineDataset(pipeline) as dataset, open(receipts, "ab", buffering=0) as log:
        if state.exists():
            dataset.load_state_dict(json.loads(state.read_text()))
        while not last.exists() or next_epoch(dataset) <= int(last.read_text()):
            for number, batch in enumerate(dataset):
                if not number:
                    with open(steps, "ab", buffering=0) as known:
                        known.write(json.dumps([batch.epoch, dataset.facts["steps"]]).encode() + b"\n")
                log.write(json.dumps(receipt_of(dataset, batch)).encode() + b"\n")
                draft = state.with_suffix(".draft")
                draft.write_text(json.dumps(dataset.state_dict(after=batch)))
                draft.replace(state)
                time.sleep(STEP_S)


if __name__ == "__main__":
    main()
