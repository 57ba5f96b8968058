"""Learn which flights arrive more than 15 minutes late, and evaluate on two held-out months.

Runs in: the trainer's process; `FeedlineDataset` starts a feeder beside it, or finds one that `feedline run` started.

Training and evaluation read the same pipeline.yaml. Evaluation overrides three keys: the months (`source.where`), the
tail (`pad`, so that no flight is dropped; `valid` marks the padding) and the shuffle (`off`). The AUC is printed next
to that of the best rule on a single column: a model that cannot beat it has learnt nothing.

Every `--checkpoint-every` steps model, optimizer and the dataset's state are saved to one file. `--resume` continues
from it, in the middle of an epoch, and ends with the same parameters as an uninterrupted run.

Under torchrun the ranks train together (DistributedDataParallel over gloo); rank 0 saves, and evaluates at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from feedline import Batch, FeedlineDataset, Table
from feedline.config import PipelineSpec, load_spec
from feedline.config.features import OpCall
from feedline.config.overrides import parse_overrides

HERE = Path(__file__).resolve().parent
HELD_OUT = "arr_delay is not None and month > 10"
HOURS = 24
PRIOR_FLIGHTS = 20  # flights at which a rule weighs a value's own late rate like the overall one


class LateModel(nn.Module):
    """The logit of arriving late: embeddings of the ids, the mean embedding of the history, then a small network."""

    def __init__(self, spec: PipelineSpec, width: int = 8) -> None:
        super().__init__()
        sizes = {feature.name: table_size(feature.ops) for feature in spec.features}
        names = {group: [f.name for f in spec.features if f.group == group] for group in ("dense", "categorical")}
        self.ids = nn.ModuleList(nn.Embedding(sizes[name], width) for name in names["categorical"])
        self.history = nn.EmbeddingBag(sizes["history"], width, mode="mean", include_last_offset=True)
        for embedding in (*self.ids, self.history):
            nn.init.normal_(embedding.weight, std=0.05)
        inputs = len(names["dense"]) + width * (len(self.ids) + 1)
        self.network = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch: Batch) -> Tensor:
        """Return one logit per row, float32 [B]."""
        history = batch.sparse["history"]
        ids = [embedding(batch.categorical[:, k]) for k, embedding in enumerate(self.ids)]
        bag = self.history(history.values, history.offsets)
        return self.network(torch.cat([batch.dense, *ids, bag], dim=1)).squeeze(1)


def table_size(ops: Sequence[OpCall]) -> int:
    """Return the rows of an embedding table: the buckets of the feature's last op, or the hours of a day."""
    return int(ops[-1].value[""]) if ops and ops[-1].op == "hash_bucket" else HOURS


def auc(score: np.ndarray, label: np.ndarray) -> float:
    """Return the exact area under the ROC curve: the share of ordered (late, punctual) pairs; ties count half."""
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    late = int(np.count_nonzero(label))
    return float((rank[label > 0].sum() - late * (late + 1) / 2) / (late * (len(label) - late)))


def best_rule(table: Table, train: str, held_out: str) -> tuple[str, float]:
    """Return the column whose late rates in the training months order the held-out flights best, and its AUC."""

    def columns(where: str) -> tuple[dict[str, pa.Array], np.ndarray]:
        read = table.read(columns=[*plain, "sched_dep", "sched_arr_time", "arr_delay"], where=where).combine_chunks()
        values = {name: read[name].combine_chunks() for name in plain}
        values["hour"] = pc.hour(read["sched_dep"]).combine_chunks()
        values["departure"] = pc.strftime(read["sched_dep"], "%H:%M").combine_chunks()
        values["arrival hour"] = pc.divide(read["sched_arr_time"], 100).combine_chunks()
        values["weekday"] = pc.day_of_week(read["sched_dep"]).combine_chunks()
        return values, pc.greater(read["arr_delay"], 15).to_numpy().astype(np.float64)

    plain = ["carrier", "origin", "dest", "tailnum", "distance"]
    known, late = columns(train)
    unseen, late_unseen = columns(held_out)
    scores = {}
    for name, values in known.items():
        distinct = pc.unique(values)
        place = pc.index_in(values, distinct).to_numpy()
        rate = np.bincount(place, late, minlength=len(distinct)) + PRIOR_FLIGHTS * late.mean()
        rate = np.append(rate / (np.bincount(place, minlength=len(distinct)) + PRIOR_FLIGHTS), late.mean())
        place = pc.fill_null(pc.index_in(unseen[name], distinct), len(distinct)).to_numpy()
        scores[name] = auc(rate[place], late_unseen)
    best = max(scores, key=scores.__getitem__)
    return best, scores[best]


def save(path: Path, contents: Mapping[str, object]) -> None:
    """Write a checkpoint atomically."""
    unfinished = path.with_suffix(".unfinished")
    torch.save(dict(contents), unfinished)
    unfinished.replace(path)


def train(model: LateModel, spec: PipelineSpec, options: argparse.Namespace) -> dict[str, float]:
    """Train `options.epochs` epochs; return the last one's mean loss, rows/s and the share of time spent waiting."""
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, weight_decay=1e-4)
    together = distributed.is_initialized()
    forward = DistributedDataParallel(model) if together else model
    is_first = not together or distributed.get_rank() == 0
    loss_sum, step = 0.0, 0
    with FeedlineDataset(options.pipeline, set=options.set) as dataset:
        if options.resume:
            checkpoint = torch.load(options.checkpoint, weights_only=True)
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            dataset.load_state_dict(checkpoint["dataset"])
            loss_sum, step = checkpoint["loss_sum"], checkpoint["step"]
            print(f"resumed at step {step}", flush=True)
        steps = len(dataset)
        print(f"{options.epochs} x {steps} steps of {spec.batch.size} rows", flush=True)
        while step < options.epochs * steps:
            for batch in dataset:  # one epoch, or the rest of it
                loss_sum = 0.0 if step % steps == 0 else loss_sum
                loss = nn.functional.binary_cross_entropy_with_logits(forward(batch), batch["late"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss_sum += loss.item()
                step += 1
                if is_first and options.checkpoint is not None and step % options.checkpoint_every == 0:
                    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                    save(options.checkpoint, state | {"loss_sum": loss_sum, "dataset": dataset.state_dict(after=batch)})
                    print(f"checkpoint at step {step}", flush=True)
            print(f"epoch {step // steps}: loss {loss_sum / steps:.4f}", flush=True)
        speed = dataset.stats()
    share = {"rows_per_s": speed.rows_per_s, "wait_fraction": speed.wait_fraction}
    return {"loss": loss_sum / steps, "steps": step, **share}


def evaluate(model: LateModel, options: argparse.Namespace) -> tuple[float, int]:
    """Return the AUC on the held-out months and the number of flights there."""
    overrides = {**options.set, "source.where": options.held_out, "batch.tail": "pad", "shuffle": "off"}
    scores, labels = [], []
    with FeedlineDataset(options.pipeline, set=overrides, rank=0, world_size=1) as dataset, torch.no_grad():
        for batch in dataset:
            scores.append(model(batch)[batch.valid].numpy())
            labels.append(batch["late"][batch.valid].numpy())
    label = np.concatenate(labels)
    return auc(np.concatenate(scores), label), len(label)


def digest(model: LateModel) -> str:
    """Return a digest of all parameters, equal only if they are bit-identical."""
    parameters = hashlib.sha256()
    for value in model.state_dict().values():
        parameters.update(value.numpy().tobytes())
    return parameters.hexdigest()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; `set` becomes a mapping of overrides."""
    parser = argparse.ArgumentParser(description="Train on ten months of flights, evaluate on the last two.")
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the pipeline"
    )
    parser.add_argument("--held-out", default=HELD_OUT, metavar="WHERE", help="the flights to evaluate on")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the model; the pipeline has its own")
    parser.add_argument("--checkpoint", type=Path, help="the file to save to and to resume from")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--resume-if-saved", action="store_true", help="the same, if there is one")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    options = parser.parse_args(arguments)
    if (options.resume or options.resume_if_saved) and options.checkpoint is None:
        parser.error("--resume needs --checkpoint FILE")
    options.resume = options.resume or (options.resume_if_saved and options.checkpoint.exists())
    options.set = parse_overrides(options.set)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, evaluate, compare, print."""
    options = parse(arguments)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the model is small, and the feeder uses the other cores
    spec = load_spec(options.pipeline, options.set)
    model = LateModel(spec)
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("gloo")
    results: dict[str, object] = {**train(model, spec, options)}
    if distributed.is_initialized():
        rank = distributed.get_rank()
        distributed.destroy_process_group()
        if rank > 0:
            return
    results["auc"], results["held_out_rows"] = evaluate(model, options)
    results["rule"], results["rule_auc"] = best_rule(Table(spec.source.table), spec.source.where, options.held_out)
    results["parameters"] = digest(model)
    print(
        "loss {loss:.4f}; {rows_per_s:,.0f} rows/s, the trainer waited {wait_fraction:.0%} of the time\n"
        "AUC {auc:.4f} on {held_out_rows:,} flights of held-out months; "
        "the best rule of one column, {rule}: {rule_auc:.4f}".format(**results)
    )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
