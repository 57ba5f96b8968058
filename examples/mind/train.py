"""Learn which news are clicked, and evaluate on the day that was held out.

Runs in: the trainer's process; `FeedlineDataset` starts a feeder beside it, or finds one that `feedline run` started.
Run `feedline fit` first: the vocabularies of news and categories are those of the training days.

The AUC is printed twice: over all pairs of rows, and as the mean over impressions, which is how MIND ranks models.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from model import NewsModel
from torch import nn

from feedline import Batch, FeedlineDataset
from feedline.config.overrides import parse_overrides

HERE = Path(__file__).resolve().parent
EVALUATION = {"batch.tail": "pad", "shuffle": "off", "lanes": 1}  # every row once, in the order of the table


def auc(score: np.ndarray, label: np.ndarray, group: np.ndarray | None = None) -> float:
    """Return the exact area under the ROC curve, or its mean over the groups that have both labels.

    It is the share of (clicked, not clicked) pairs, of one group, that the score has in order; ties count half.
    """
    _, group = np.unique(np.zeros_like(label) if group is None else group, return_inverse=True)
    _, place = np.unique(score, return_inverse=True)
    _, inverse, counts = np.unique(group * (place.max() + 1) + place, return_inverse=True, return_counts=True)
    rank = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # ascending by group, then by score
    rows, clicked = np.bincount(group), np.bincount(group, label > 0)
    before = np.cumsum(rows) - rows
    ranks = np.bincount(group, (rank - before[group]) * (label > 0))
    both = (clicked > 0) & (clicked < rows)
    pairs = (clicked * (rows - clicked))[both]
    return float(np.mean((ranks - clicked * (clicked + 1) / 2)[both] / pairs))


def train(options: argparse.Namespace) -> tuple[NewsModel, dict[str, float]]:
    """Train `options.epochs` epochs; return the model, its last epoch's mean loss, and the speed."""
    with FeedlineDataset(options.pipeline, set=options.set) as dataset:
        model = NewsModel(dataset.schema)
        optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
        for epoch in range(options.epochs):
            losses = []
            for batch in dataset:
                loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["clicked"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            print(f"epoch {epoch}: {len(losses)} steps, loss {np.mean(losses):.4f}", flush=True)
        speed = dataset.stats()
    return model.eval(), {"loss": float(np.mean(losses)), "rows_per_s": speed.rows_per_s, "wait": speed.wait_fraction}


def scores(model: NewsModel, batches: Iterable[Batch]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (probabilities, labels, impressions) of each batch, without padding."""

    def score(batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = (torch.sigmoid(model(batch)), batch["clicked"], batch.extra["impression_id"])
        return tuple(values[batch.valid].numpy() for values in found)

    with torch.no_grad():
        yield from map(score, batches)


def evaluate(model: NewsModel, pipeline: Path, held_out: str, overrides: Mapping[str, object]) -> dict[str, float]:
    """Return the AUC on the held-out rows, its mean over impressions, and the number of rows."""
    with FeedlineDataset(pipeline, set={**overrides, **EVALUATION, "source.where": held_out}) as dataset:
        score, label, impression = (np.concatenate(each) for each in zip(*scores(model, dataset), strict=True))
    return {
        "auc": auc(score, label),
        "impression_auc": auc(score, label, impression),
        "held_out_rows": len(label),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, evaluate, save."""
    parser = argparse.ArgumentParser(description="Train on all days but the last, evaluate on the last.")
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--held-out", default='ds == "2026-01-06"', metavar="WHERE", help="the rows to evaluate on")
    parser.add_argument("--model", type=Path, default=Path("mind.pt"), help="where the model is saved")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0, help="of the model; the pipeline has its own")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    options = parser.parse_args(arguments)
    options.set = parse_overrides(options.set)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the model is small, and the feeder uses the other cores
    model, results = train(options)
    model.save(options.model)
    results |= evaluate(model, options.pipeline, options.held_out, options.set)
    print(
        "{rows_per_s:,.0f} rows/s, the trainer waited {wait:.0%} of the time; AUC {auc:.4f}, "
        "{impression_auc:.4f} within impressions, on {held_out_rows:,} held-out rows".format(**results)
    )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
