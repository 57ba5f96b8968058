"""Train a DLRM on clicks, with repeated features computed once per run of equal rows, or once per row.

Runs in: the trainer's process; `FeedlineDataset` starts a feeder beside it, or finds one that `feedline run` started.

`--plain` reads the same pipeline without its groups: the same rows, batches and losses. `--compare` trains both ways
from the same seed, in float64, and fails if a loss differs by more than 1e-6.

Under torchrun the ranks train together (DistributedDataParallel over gloo); a rank's unique rows are its own matter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from dlrm import Dlrm
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from feedline import Batch, FeedlineDataset
from feedline.config.overrides import parse_overrides

HERE = Path(__file__).resolve().parent
PLAIN = {"dedup": {}}  # an override: no group
ATTENTION = ("hist_0", "hist_1")
TOLERANCE = 1e-6  # between losses in float64, whose sums are added up in another order


class Trainer:
    """A model with its optimizers: Adam for dense parameters, plain SGD for the tables, whose gradients are sparse."""

    def __init__(self, model: Dlrm) -> None:
        self.model = DistributedDataParallel(model) if distributed.is_initialized() else model
        self.optimizers = (
            torch.optim.Adam(model.layers(), lr=1e-3),
            torch.optim.SGD(model.tables(), lr=0.1),
        )

    def step(self, batch: Batch) -> float:
        """Train on a batch; return its loss."""
        logits = self.model(batch)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch["clicked"].to(logits.dtype))
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

    def losses(self, batches: Iterable[Batch]) -> Iterator[float]:
        """Train on each batch, and yield its loss."""
        return map(self.step, batches)


class Factors:
    """Rows divided by unique rows, of each group of the batches seen."""

    def __init__(self) -> None:
        self.rows, self.unique = 0, dict[str, int]()

    def count(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.rows += batch.rows
            for name, group in batch.groups.items():
                self.unique[name] = self.unique.get(name, 0) + group.unique_rows
            yield batch

    def of_groups(self) -> dict[str, float]:
        return {name: self.rows / unique for name, unique in self.unique.items()}


def train(options: argparse.Namespace, overrides: Mapping[str, object]) -> dict[str, object]:
    """Train `options.steps` steps, or `options.epochs` epochs; return the losses and the speed."""
    torch.manual_seed(options.seed)
    factors, losses = Factors(), list[float]()
    with FeedlineDataset(options.pipeline, set={**options.set, **overrides}) as dataset:
        model = Dlrm(dataset.schema, attention=options.attention).to(getattr(torch, options.dtype))
        trainer = Trainer(model)
        steps = options.steps or options.epochs * len(dataset)
        while len(losses) < steps:
            batches = islice(factors.count(dataset), steps - len(losses))
            for loss in trainer.losses(batches):
                losses.append(loss)
                if len(losses) % options.every == 0:
                    print(f"step {len(losses)} of {steps}: loss {fmean(losses[-options.every :]):.4f}", flush=True)
        speed = dataset.stats()
    print(f"{speed.rows_per_s:,.0f} rows/s, the trainer waited {speed.wait_fraction:.0%} of the time")
    factor = factors.of_groups()
    print("rows per unique row: " + (", ".join(f"{name} {each:.1f}" for name, each in factor.items()) or "no group"))
    return {
        "losses": losses,
        "factors": factor,
        "rows_per_s": speed.rows_per_s,
        "wait_fraction": speed.wait_fraction,
    }


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Train with groups and without, and raise SystemExit if the losses differ."""
    results = {}
    for name, overrides in (("deduplicated", {}), ("plain", PLAIN)):
        print(f"{name}:", flush=True)
        results[name] = train(options, overrides)
    pairs = list(zip(*(result["losses"] for result in results.values()), strict=True))
    apart = max(abs(one - other) for one, other in pairs)
    print(f"{len(pairs)} losses, the largest difference is {apart:.1e}")
    if not apart <= TOLERANCE:
        raise SystemExit(f"the losses differ by {apart:.1e}: expected at most {TOLERANCE:.0e}")
    return {**results, "largest_difference": apart}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; `set` becomes a mapping of overrides."""
    parser = argparse.ArgumentParser(description="Train a DLRM on clicks.")
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--plain", action="store_true", help="without the pipeline's groups")
    parser.add_argument("--compare", action="store_true", help="both, in float64: fail if the losses differ")
    parser.add_argument("--attention", nargs="*", default=ATTENTION, metavar="FEATURE", help="histories with attention")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="so many steps instead of epochs")
    parser.add_argument("--every", type=int, default=10, metavar="STEPS", help="print the mean loss (default: 10)")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--seed", type=int, default=0, help="of the model; the pipeline has its own")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    options = parser.parse_args(arguments)
    options.set = parse_overrides(options.set)
    options.dtype = "float64" if options.compare else options.dtype
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print, compare."""
    options = parse(arguments)
    torch.use_deterministic_algorithms(True)
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    try:
        results = compare(options) if options.compare else train(options, PLAIN if options.plain else {})
        first = not distributed.is_initialized() or distributed.get_rank() == 0
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    if first and options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
