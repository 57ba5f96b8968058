"""Make the ranks of a start agree on one value: the snapshot that they read, the artifact set, the rebase.

Runs in: the feeder of each rank. The first rank of a start writes its choice to `work_dir/runs`; the others read it
there. A rank that the file already lists has restarted, and begins a new agreement. Where a launcher names the
start (torchrun, Slurm), the file's name contains it; otherwise ranks may join for a few minutes only, so that
yesterday's agreement is not mistaken for today's. A single rank needs no agreement, and neither do ranks that
torch.distributed connects: rank 0 sends them its choice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from feedline.errors import TableError, TableNotFoundError
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate

# The ranks of one start come up within this time, slow image pulls included.
_JOIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One rank of a start. `job`: a digest, the same for all ranks, that names what they agree on."""

    job: str
    rank: int
    world_size: int


def agree(
    start: RunStart,
    work_dir: str,
    choose: Callable[[], str],
    *,
    environment: Mapping[str, str] = os.environ,
    now_s: Callable[[], float] = time.time,
) -> str:
    """The value that all ranks of this start use. The first rank calls `choose`, which saves what the value names."""
    if start.world_size == 1:
        return choose()
    launch = launch_name(environment)
    suffix = f"-{launch}" if launch else ""
    file = _AgreementFile(work_dir, f"runs/{start.job[:16]}-{start.world_size}{suffix}.json")
    with content_store.lock_file(file.location, file.name):
        agreement = file.read()
        open_to_ranks = agreement is not None and (launch is not None or now_s() - agreement["created_s"] < _JOIN_S)
        if agreement is not None and open_to_ranks and start.rank not in agreement["ranks"]:
            file.write({**agreement, "ranks": sorted([*agreement["ranks"], start.rank])})
            return str(agreement["snapshot"])
        value = choose()
        file.write({"snapshot": value, "ranks": [start.rank], "created_s": now_s()})
        return value


def launch_name(environment: Mapping[str, str]) -> str | None:
    """The launcher's name of this start, different after a restart; None without a launcher."""
    for keys in (
        ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),  # the last is set once a job has been requeued
    ):
        values = [environment[key] for key in keys if key in environment]
        if values and values[0] != "none":
            return "".join(character if character.isalnum() else "_" for character in "-".join(values))
    return None


class _AgreementFile:
    """An agreement as a JSON file in `work_dir`. Its key `snapshot` holds the value, whatever it names."""

    def __init__(self, work_dir: str, name: str) -> None:
        self.location = locate(absolute(work_dir))
        self.name = name

    def read(self) -> dict[str, Any] | None:
        """The agreement; None where there is none or the file is damaged."""
        try:
            content: dict[str, Any] = json.loads(bytes(content_store.get(self.location, self.name)))
            return {
                "snapshot": str(content["snapshot"]),
                "ranks": [int(rank) for rank in content["ranks"]],
                "created_s": float(content["created_s"]),
            }
        except TableError as error:
            if isinstance(error, TableNotFoundError):
                return None
            raise  # a store that cannot be read may still hold an agreement
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, content: dict[str, Any]) -> None:
        content_store.put(self.location, self.name, [json.dumps(content).encode()])
