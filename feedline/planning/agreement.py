"""Agree on one value between the ranks of a start: the snapshot that they read, the artifact set, the rebase.

Runs in: the feeder of each rank. The first rank of a start writes its choice to `work_dir/runs`; the others read it
there. A rank that the file lists already is starting again, and begins a new agreement. Where a launcher names the
start (torchrun, Slurm), so does the file; otherwise ranks may join for a few minutes, so that an agreement of yesterday
is not taken for today's. A single rank needs no agreement, and neither do ranks that torch.distributed connects: rank 0
sends them its choice.
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

# Ranks of one start come up within this time, slow image pulls included.
_JOIN_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One rank of a start. `job`: a digest that is the same for all ranks and names what they agree on."""

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
    """The value that all ranks of this start use. The first rank calls `choose`, which saves what it then names."""
    if start.world_size == 1:
        return choose()
    launch = launch_name(environment)
    suffix = f"-{launch}" if launch else ""
    file = _AgreementFile(work_dir, f"runs/{start.job[:16]}-{start.world_size}{suffix}.json")
    with content_store.lock_file(file.place, file.name):
        found = file.read()
        fresh = found is not None and (launch is not None or now_s() - found["created_s"] < _JOIN_S)
        if found is not None and fresh and start.rank not in found["ranks"]:
            file.write({**found, "ranks": sorted([*found["ranks"], start.rank])})
            return str(found["snapshot"])
        chosen = choose()
        file.write({"snapshot": chosen, "ranks": [start.rank], "created_s": now_s()})
        return chosen


def launch_name(environment: Mapping[str, str]) -> str | None:
    """The launcher's name of this start, different after a restart; None without a launcher."""
    for keys in (("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [environment[key] for key in keys if key in environment]
        if values and values[0] != "none":
            return "".join(character if character.isalnum() else "_" for character in "-".join(values))
    return None


class _AgreementFile:
    """An agreement as a JSON file of `work_dir`. Its key `snapshot` holds the value, whatever that names."""

    def __init__(self, work_dir: str, name: str) -> None:
        self.place = locate(absolute(work_dir))
        self.name = name

    def read(self) -> dict[str, Any] | None:
        """The agreement; None where there is none, or where the file is damaged."""
        try:
            found: dict[str, Any] = json.loads(bytes(content_store.get(self.place, self.name)))
            return {
                "snapshot": str(found["snapshot"]),
                "ranks": [int(rank) for rank in found["ranks"]],
                "created_s": float(found["created_s"]),
            }
        except TableError as error:
            if isinstance(error, TableNotFoundError):
                return None
            raise  # not being able to look is not the same as nothing being there
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def write(self, content: dict[str, Any]) -> None:
        content_store.put(self.place, self.name, [json.dumps(content).encode()])
