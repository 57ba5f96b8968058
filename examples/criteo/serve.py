"""Score rows that come as lines of JSON on standard input; the answers go to standard output, in their order.

Runs in: a serving process, without the table, Dask or a feeder. It needs pipeline.yaml, the folder of artifacts that
`feedline fit` wrote, and the model that train.py saved.

A line is one row, an object of columns, or a list of rows; its answer is `{"scores": [...]}`, one probability per row.
A column that is absent is null, and other columns are ignored. A line that cannot be scored is answered by
`{"error": "..."}`, and the next one is read. Rows of one line are scored together, which costs less than one line each.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from model import DeepCross

from feedline import Pipeline
from feedline.errors import FeedlineError

HERE = Path(__file__).resolve().parent
COLUMNS = [f"I{number}" for number in range(1, 14)] + [f"C{number}" for number in range(1, 27)]


class Scorer:
    """The features of a fitted pipeline, and a model of them."""

    def __init__(self, pipeline: Path, model: Path) -> None:
        self._pipeline = Pipeline.from_yaml(pipeline)
        self._model = DeepCross.load(self._pipeline.schema, model)
        self.scores([{}])  # reads the artifacts, so that the first request is not slower than others

    def scores(self, rows: Sequence[dict[str, Any]]) -> list[float]:
        """The probability of a click, for each row. Raises FeedlineError for values that training could not have."""
        columns = {name: [row.get(name) for row in rows] for name in COLUMNS}
        with torch.no_grad():
            return torch.sigmoid(self._model(self._pipeline.transform(columns).to_batch())).tolist()

    def answer(self, line: str) -> dict[str, Any]:
        """The answer to one line."""
        try:
            request = json.loads(line)
            rows = request if isinstance(request, list) else [request]
            if not rows or not all(isinstance(row, dict) for row in rows):
                return {"error": f"a request is a row or a list of rows: got {line.strip()[:80]}"}
            return {"scores": self.scores(rows)}
        except (FeedlineError, ValueError, RecursionError) as error:  # of JSON that nests too deeply
            return {"error": str(error)}


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer each line of standard input."""
    parser = argparse.ArgumentParser(description="Score rows of JSON.")
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--model", type=Path, default=Path("criteo.pt"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    scorer = Scorer(options.pipeline, options.model)
    for line in sys.stdin:
        print(json.dumps(scorer.answer(line)), flush=True)


if __name__ == "__main__":
    main()
