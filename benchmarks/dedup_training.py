"""Training steps per second of the example DLRM, on deduplicated batches compared with the same batches expanded.

The model is examples/clicks/dlrm.py, with a layer of self-attention over two histories and the others pooled, and with
all of them pooled. Batches come from the example's pipeline over a generated table, with groups and without, and lie in
memory: nothing but training is timed. All four trainings alternate, a step each; medians of their seconds are printed.

    python benchmarks/dedup_training.py [--rounds 15] [--json FILE]     `--tiny` is for tests

The share of FLOPs that are deduplicated is that of the encoders in a forward pass over an expanded batch
(torch.utils.flop_counter, which counts lookups, sums and element-wise work as none).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from feedline import Batch, Pipeline
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "clicks"
sys.path.insert(0, str(EXAMPLE))

from dlrm import Dlrm  # noqa: E402
from train import ATTENTION, PLAIN, Trainer  # noqa: E402

RECIPE: Mapping[str, Any] = {"sessions_mean": 16.5, "keep_probability": 0.95, "user_share": 0.5, "joint_changes": True}
WAYS = ("deduplicated", "expanded")
MODELS = {"attention over 2 of 6 histories": ATTENTION, "all histories pooled": ()}


def batches_of(folder: Path, *, size: int, count: int, buckets: int | None = None) -> dict[str, list[Batch]]:
    """The first batches of the example's pipeline, with groups and without, over a table of its own in `folder`.

    buckets: rows of each embedding table (default: as the example has them).
    """
    generate_clicks(str(folder / "clicks"), ClickRecipe(rows=size * (count + 1), days=1, **RECIPE))
    text = (EXAMPLE / "pipeline.yaml").read_text()
    path = folder / "pipeline.yaml"
    path.write_text(text if buckets is None else re.sub(r"hash_bucket: \d+", f"hash_bucket: {buckets}", text))
    common = {"source.table": str(folder / "clicks"), "batch.size": size}
    found = {}
    for way, overrides in zip(WAYS, ({}, PLAIN), strict=True):
        pipeline = Pipeline.from_yaml(path, {**common, **overrides})
        found[way] = [batch.clone() for batch in islice(pipeline.batches(), count)]
    return found


def factor_of(batches: Sequence[Batch]) -> float:
    """Rows divided by unique rows of the group."""
    return sum(batch.rows for batch in batches) / sum(batch.groups["user"].unique_rows for batch in batches)


def trainer_of(batch: Batch, attention: Sequence[str]) -> Trainer:
    torch.manual_seed(0)
    return Trainer(Dlrm(batch.schema, attention=attention))


def flops_of(batch: Batch, attention: Sequence[str]) -> tuple[int, float]:
    """(FLOPs of a step, share of the encoders in those of its forward pass)."""
    trainer = trainer_of(batch, attention)
    step, forward = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with forward, torch.no_grad():
        trainer.model(batch)
    with step:
        trainer.step(batch)
    counts = {name: sum(flops.values()) for name, flops in forward.get_flop_counts().items()}
    encoders = sum(counts[f"Dlrm.encoders.{name}"] for name in attention)
    return step.get_total_flops(), encoders / forward.get_total_flops()


def time_steps(batches: Mapping[str, Sequence[Batch]], *, rounds: int) -> dict[tuple[str, str], float]:
    """Median seconds of a step by model and way; the first step of each is not counted.

    Raises ValueError if the losses of the two ways differ.
    """
    trainers = {
        (model, way): trainer_of(batches[way][0], attention) for model, attention in MODELS.items() for way in WAYS
    }
    seconds: dict[tuple[str, str], list[float]] = {key: [] for key in trainers}
    for number in range(rounds + 1):
        losses = {}
        for key, trainer in trainers.items():
            batch = batches[key[1]][number % len(batches[key[1]])]
            began = time.perf_counter()
            losses[key] = trainer.step(batch)
            seconds[key].append(time.perf_counter() - began)
        for model in MODELS:
            one, other = (losses[model, way] for way in WAYS)
            if abs(one - other) > 1e-3:
                raise ValueError(f"the losses of step {number} differ: got {one} and {other}")
    return {key: statistics.median(values[1:]) for key, values in seconds.items()}


def measure(folder: Path, *, size: int, count: int, rounds: int, buckets: int | None = None) -> dict[str, Any]:
    """All figures; arguments as of `batches_of` and `time_steps`."""
    batches = batches_of(folder, size=size, count=count, buckets=buckets)
    times = time_steps(batches, rounds=rounds)
    results: dict[str, Any] = {
        **RECIPE,
        "batch_size": size,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "factor": factor_of(batches["deduplicated"]),
        "models": {},
    }
    for model, attention in MODELS.items():
        (fewer, _), (flops, share) = (flops_of(batches[way][0], attention) for way in WAYS)
        results["models"][model] = {
            **{f"{way}_steps_per_s": 1 / times[model, way] for way in WAYS},
            "ratio": times[model, "expanded"] / times[model, "deduplicated"],
            "flops_expanded": flops,
            "flops_deduplicated": fewer,
            "deduplicated_share": share,
        }
    return results


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small batches, two rounds: for tests")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tiny = {"size": 64, "count": 2, "rounds": 2, "buckets": 100}
    sizes = tiny if options.tiny else {"size": 4096, "count": 6, "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), **sizes)
    print(
        f"S = {RECIPE['sessions_mean']}, d = {RECIPE['keep_probability']}, {RECIPE['user_share']:.0%} of the scalars "
        f"repeat, {results['factor']:.1f} rows per unique row; batches of {sizes['size']:,} rows in memory, "
        f"{results['threads']} threads, medians of {sizes['rounds']} interleaved steps"
    )
    print("| model | deduplicated, steps/s | expanded, steps/s | ratio | FLOPs deduplicated | FLOPs of a step, G |")
    print("|---|---|---|---|---|---|")
    for model, one in results["models"].items():
        print(
            f"| {model} | {one['deduplicated_steps_per_s']:.2f} | {one['expanded_steps_per_s']:.2f} | "
            f"{one['ratio']:.2f} | {one['deduplicated_share']:.0%} | "
            f"{one['flops_deduplicated'] / 1e9:.1f} instead of {one['flops_expanded'] / 1e9:.1f} |"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
