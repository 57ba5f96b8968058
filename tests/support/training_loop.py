"""A training loop as a program, for tests that kill it: prints what it receives, and saves its state.

    python training_loop.py PIPELINE.YAML STATE.PT [--epochs N] [--stop-after BATCHES]

Prints "made" once there is a dataset, "feeder PID attached|own" once it is served, and then "EPOCH STEP DIGEST" per
batch. Resumes from STATE.PT if that exists; the state is saved after each batch, before its line is printed. With
--stop-after it then waits to be ended.
"""

from __future__ import annotations

import argparse
import signal
from hashlib import sha256
from pathlib import Path

import torch
from pipelines import image

from feedline import FeedlineDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline")
    parser.add_argument("state", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--stop-after", type=int, default=-1)
    arguments = parser.parse_args()
    with FeedlineDataset(arguments.pipeline) as dataset:
        print("made", flush=True)
        first = 0
        if arguments.state.exists():
            state = torch.load(arguments.state, weights_only=True)
            dataset.load_state_dict(state)
            first = state["epoch"]
        print("feeder", dataset.facts["feeder"], "attached" if dataset._feed.attached else "own", flush=True)
        taken = 0
        for _ in range(first, arguments.epochs):
            for batch in dataset:
                draft = arguments.state.with_suffix(".draft")
                torch.save(dataset.state_dict(after=batch), draft)
                draft.replace(arguments.state)
                print(batch.epoch, batch.step, sha256(image(batch)).hexdigest(), flush=True)
                taken += 1
                if taken == arguments.stop_after:
                    signal.pause()


if __name__ == "__main__":
    main()
