"""Train a small HSTU on the benchmark's samples: from late rows, from fat rows, or from both, with the same losses.

    python examples/mlperf_dlrm_v4/train.py --steps 200
    python examples/mlperf_dlrm_v4/train.py --steps 20 --compare

Runs in: the trainer's process; `FeedlineDataset` starts a feeder beside it, or finds one that `feedline run` started.
`--compare` trains from pipeline.yaml, whose histories are joined while it reads, and from fat.yaml, and fails unless
each step has the same loss, bit by bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from model import Ranker
from tensors import candidate, history
from torch import nn

from feedline import FeedlineDataset
from feedline.config.overrides import parse_overrides

HERE = Path(__file__).resolve().parent


def train(options: argparse.Namespace, pipeline: Path, overrides: Sequence[str]) -> list[float]:
    """Train; return the loss of each step."""
    torch.manual_seed(options.seed)
    model, losses = Ranker(positions=options.positions), list[float]()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    with FeedlineDataset(pipeline, set=parse_overrides(overrides)) as dataset:
        for batch in islice(dataset, options.steps):
            logits = model(history(batch), candidate(batch))
            loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["listen_plus"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) % options.every == 0:
                print(f"step {len(losses)}: loss {fmean(losses[-options.every :]):.4f}", flush=True)
    return losses


def compare(options: argparse.Namespace) -> dict[str, list[float]]:
    """Train from late rows and from fat rows. Raises SystemExit where a loss differs."""
    late = train(options, options.pipeline, options.set)
    fat = train(options, options.fat, options.set_fat)
    differ = [step for step, (one, other) in enumerate(zip(late, fat, strict=True), 1) if one != other]
    if differ:
        raise SystemExit(f"{len(differ)} of {len(late)} losses differ, the first in step {differ[0]}")
    print(f"{len(late)} losses, all equal")
    return {"late": late, "fat": fat}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--fat", type=Path, default=HERE / "fat.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of --pipeline")
    parser.add_argument("--set-fat", action="append", default=[], metavar="KEY=VALUE", help="override a key of --fat")
    parser.add_argument("--compare", action="store_true", help="from both: fail if a loss differs")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--positions", type=int, default=128, help="events of a history that the model sees")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--every", type=int, default=20, metavar="STEPS", help="print the mean loss (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the model")
    parser.add_argument("--json", type=Path, help="write the losses here, too")
    options = parser.parse_args(arguments)
    torch.use_deterministic_algorithms(True)
    losses = compare(options) if options.compare else {"late": train(options, options.pipeline, options.set)}
    if options.json is not None:
        options.json.write_text(json.dumps(losses, indent=2) + "\n")


if __name__ == "__main__":
    main()
