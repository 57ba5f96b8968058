"""Run one contender as several ranks of a host, which `cores.py` starts and measures.

    python benchmarks/rank_trainers.py NAME JOB.json STARTED BUSY_UNITS RANKS    prints one line of JSON

Each rank is a `trainer.py` with a launcher's variables, so that Feedline's ranks share a feeder; the other loaders read
their share of the row groups with their share of the threads or workers. The rate is that of all ranks together between
the last rank's first batch and the first rank's last batch.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from contenders import Job

HERE = Path(__file__).resolve().parent


def main() -> int:
    name, path, started, units, count = sys.argv[1:]
    ranks, folder = int(count), Path(path).parent
    whole = Job(**json.loads(Path(path).read_text()))
    trainers = []
    for rank in range(ranks):
        job = replace(
            whole,
            rank=rank,
            ranks=ranks,
            threads=max(1, whole.threads // ranks),
            arrivals=str(folder / f"arrivals-{rank}.npy"),
            sample=str(folder / f"ids-{rank}.npy"),
            measurer=os.getppid(),
        )
        own = folder / f"job-{rank}.json"
        own.write_text(json.dumps(asdict(job)))
        command = [sys.executable, str(HERE / "trainer.py"), name, str(own), started, units]
        environment = os.environ | launcher_variables(rank, ranks)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        trainers.append(subprocess.Popen(command, env=environment, **pipes))
    for trainer in trainers:
        trainer.stdout.readline()  # it has imported everything
    for trainer in trainers:
        with contextlib.suppress(BrokenPipeError):
            trainer.stdin.write("begin\n")
            trainer.stdin.flush()
    outputs = [trainer.communicate()[0] for trainer in trainers]
    if any(trainer.returncode for trainer in trainers):
        return 1
    found = [json.loads(output.splitlines()[-1]) for output in outputs]
    arrivals = [np.load(folder / f"arrivals-{rank}.npy") for rank in range(ranks)]
    print(json.dumps(together(found, arrivals)))
    return 0


def launcher_variables(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun sets for a rank of one host."""
    size = str(ranks)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": f"cores-{os.getpid()}",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


def together(found: Sequence[Mapping[str, Any]], arrivals: Sequence[np.ndarray]) -> dict[str, Any]:
    """The result of all ranks as that of one. arrivals: of each rank [2, batches], times and rows."""
    begin_s, end_s = max(times[0] for times, _ in arrivals), min(times[-1] for times, _ in arrivals)
    between = [rows[(times > begin_s) & (times <= end_s)].sum() for times, rows in arrivals]
    later = [rows[times > begin_s].sum() for times, rows in arrivals]
    rows = sum(each["rows"] for each in found)
    run_s = max(each["run_s"] for each in found)
    return {
        "import_s": max(each["import_s"] for each in found),
        "import_cpu_s": sum(each["import_cpu_s"] for each in found),
        "first_batch_s": max(each["first_batch_s"] for each in found),
        "first_batch_rows": rows - int(sum(later)),  # those before all ranks had one
        "first_batch_cpu_s": max(each["first_batch_cpu_s"] for each in found),
        "run_s": run_s,
        "rows": rows,
        "steps": max(each["steps"] for each in found),
        "rows_per_s": rows / run_s,
        "after_first_rows_per_s": float(sum(between)) / (end_s - begin_s) if end_s > begin_s else None,
        "steady_rows_per_s": None,
        "batch_bytes_per_row": found[0]["batch_bytes_per_row"],
        "parts_cpu_s": found[0]["parts_cpu_s"],
        "parts_rows": len(found) * found[0]["parts_rows"],  # steps are as long on all ranks
        "checksums": summed([each["checksums"] for each in found]),
        "hashes": {},
    }


def summed(totals: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The checksums of all ranks' rows."""
    return {name: np.sum([each[name] for each in totals], axis=0).tolist() for name in totals[0]}


if __name__ == "__main__":
    raise SystemExit(main())
