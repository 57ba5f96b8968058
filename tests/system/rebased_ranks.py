"""One of two ranks connected by torch.distributed (gloo): both rebase a state whose table rank 0 has rewritten.

    python rebased_ranks.py RANK MEETING_FILE PIPELINE.YAML FILE SMALLER_FILE

Prints one JSON object: the ids before and after, the state, and the length of the dataset.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from itertools import islice
from pathlib import Path

import torch.distributed

from feedline import FeedlineDataset

STEPS = 9


def main() -> None:
    rank, meeting, pipeline, file, smaller = int(sys.argv[1]), *sys.argv[2:]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    with FeedlineDataset(pipeline) as dataset:
        before = [each for batch in islice(dataset, STEPS) for each in batch.extra["id"].tolist()]
        state = dataset.state_dict()
        torch.distributed.barrier()
        if rank == 0:
            Path(smaller).replace(file)
        torch.distributed.barrier()
        dataset.load_state_dict(state, snapshot="rebase")
        after = [each for batch in dataset for each in batch.extra["id"].tolist()]
        steps = len(dataset)
    torch.distributed.destroy_process_group()
    print(json.dumps({"before": before, "after": after, "state": dataset.state_dict(), "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
