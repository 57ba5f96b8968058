"""One of two ranks connected by torch.distributed (gloo), for tests of their agreement.

    python ranked.py RANK MEETING_FILE FOLDER

Prints one JSON object per scene: this rank's result or error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from feedline import FeedlineDataset
from feedline.errors import FeedlineError


def report(scene: str, act: Callable[[], Any]) -> Any:
    """Print the outcome of a scene and return it."""
    try:
        outcome = act()
    except FeedlineError as error:
        outcome = {"error": type(error).__name__, "message": str(error)}
    print(json.dumps({"scene": scene, "outcome": outcome}), flush=True)
    return outcome


def main() -> None:
    rank, meeting, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=200)
    )
    torch.distributed.barrier()
    # Far less than the start of a feeder takes, as if a table took longer than NCCL's timeout of ten minutes.
    torch.distributed.distributed_c10d._set_pg_timeout(timedelta(milliseconds=200))
    with FeedlineDataset(folder / "p.yaml") as dataset:

        def epoch() -> dict[str, Any]:
            ids = [each for batch in dataset for each in batch.extra["request_id"].tolist()]
            return {"ids": ids, "state": dataset.state_dict(), "source": dataset._ranks.source}

        report("an epoch", epoch)
        state = dataset.state_dict()
        report("resumed", lambda: dataset.load_state_dict({**state, "epoch": 0, "step": 30}) or epoch())
        behind = {**state, "epoch": 0, "step": 10 - 6 * rank}
        report("another step on rank 1", lambda: dataset.load_state_dict(behind))
        broken = {**state, "plan": "0" * 32} if rank == 1 else state
        report("another state on rank 1", lambda: dataset.load_state_dict(broken))
    for scene, overrides in (
        ("another seed on rank 1", {"shuffle.seed": 3 + rank}),
        ("an error on rank 0", {"batch.size": 256 if rank else 100_000}),
    ):
        with FeedlineDataset(folder / "p.yaml", set=overrides) as dataset:
            report(scene, lambda dataset=dataset: len(dataset))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
