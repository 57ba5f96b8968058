"""Rank the candidates of an impression, over HTTP: `POST /rank` with a reader's history and the news to choose from.

Runs in: a serving process, without the table of impressions, Dask or a feeder. It needs pipeline.yaml, the folder of
artifacts that `feedline fit` wrote, news.parquet, in which the pipeline looks categories up, and the model that
train.py saved.

    {"user_id": "U7", "history": ["N3", "N14"], "candidates": ["N5", "N8", "N9"]}

is answered by `{"ranked": ["N8", "N5", "N9"], "scores": [0.31, 0.12, 0.07]}`: the candidates, best first, and the
probability of a click on each. Users and news that the training days did not have are ranked, too. A request that
cannot be ranked is answered by status 400 and `{"error": "..."}`.

It listens on the loopback interface, which is open to the machine's other users.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model import NewsModel

from feedline import Pipeline
from feedline.errors import FeedlineError

HERE = Path(__file__).resolve().parent
MAX_BYTES = 1 << 20  # of a request


class Ranker:
    """The features of a fitted pipeline, and a model of them; any number of threads may ask it."""

    def __init__(self, pipeline: Path, model: Path) -> None:
        self._pipeline = Pipeline.from_yaml(pipeline)
        self._model = NewsModel.load(self._pipeline.schema, model)
        self.rank({"user_id": "", "history": [], "candidates": [""]})  # reads artifacts and news before a request does

    def scores(self, rows: Mapping[str, Sequence[Any]]) -> np.ndarray:
        """The probability of a click, for each row of the columns user_id, history and news_id."""
        with torch.no_grad():
            return torch.sigmoid(self._model(self._pipeline.transform(dict(rows)).to_batch())).numpy()

    def rank(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request. Raises ValueError or FeedlineError for one that cannot be ranked."""
        if not isinstance(request, dict) or set(request) != {"user_id", "history", "candidates"}:
            raise ValueError("a request has user_id, history and candidates, and nothing else")
        candidates = request["candidates"]
        if not isinstance(candidates, list) or not candidates:
            raise ValueError(f"candidates are a list of at least one news: got {candidates!r}")
        repeated = {name: [request[name]] * len(candidates) for name in ("user_id", "history")}
        score = self.scores({**repeated, "news_id": candidates})
        best = np.argsort(-score, kind="stable")
        return {"ranked": [candidates[place] for place in best], "scores": score[best].tolist()}


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /rank`."""

    def __init__(self, ranker: Ranker, *arguments: Any) -> None:
        self._ranker = ranker
        super().__init__(*arguments)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/rank" or not 0 < length <= MAX_BYTES:
            self._answer(404 if self.path != "/rank" else 413, {"error": f"POST /rank takes 1 to {MAX_BYTES:,} bytes"})
            return
        try:
            self._answer(200, self._ranker.rank(json.loads(self.rfile.read(length))))
        except (FeedlineError, ValueError, RecursionError) as error:  # of JSON that nests too deeply
            self._answer(400, {"error": str(error)})

    def _answer(self, status: int, answer: Mapping[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log no request."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process is ended; print the address first."""
    parser = argparse.ArgumentParser(description="Rank news over HTTP.")
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--model", type=Path, default=Path("mind.pt"))
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    handler = partial(Handler, Ranker(options.pipeline, options.model))
    with ThreadingHTTPServer(("127.0.0.1", options.port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/rank", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
