"""How do ranks that start one after the other read the same snapshot, though the table changes in between?

Runs in: the feeder of each rank. The first rank of a start writes which snapshot it took to `work_dir/runs`; the others
find it there and load it. A rank that is named there already starts over, and so begins a new entry. Where a launcher
names the start (torchrun, Slurm), the entry is the launcher's; else an entry may be joined for a few minutes, so that
yesterday's half start is not taken for today's. A single rank needs no agreement, and neither do ranks that
torch.distributed connects: rank 0 tells them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from feedline.errors import TableError, TableNotFoundError
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate

# Ranks of one start come up within this time, slow image pulls included.
_JOIN_S = 600.0


def agree_on_snapshot(
    work_dir: str,
    job: str,
    *,
    rank: int,
    world_size: int,
    take: Callable[[], str],
    environment: Mapping[str, str],
    now_s: Callable[[], float] = time.time,
) -> str:
    """The id of the snapshot that all ranks of this start read; `take` makes and saves one."""
    if world_size == 1:
        return take()
    launch = launch_name(environment)
    entry = _AgreementFile(work_dir, f"runs/{job[:16]}-{world_size}{'-' + launch if launch else ''}.json")
    with content_store.exclusive(entry.place, entry.name):
        found = entry.read()
        fresh = found is not None and (launch is not None or now_s() - found["created_s"] < _JOIN_S)
        if found is not None and fresh and rank not in found["ranks"]:
            entry.write({**found, "ranks": sorted([*found["ranks"], rank])})
            return str(found["snapshot"])
        snapshot = take()
        entry.write({"snapshot": snapshot, "ranks": [rank], "created_s": now_s()})
        return snapshot


def launch_name(environment: Mapping[str, str]) -> str | None:
    """What the launcher calls this start, restarts told apart; None without a launcher that names one."""
    for keys in (("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [environment[key] for key in keys if key in environment]
        if values and values[0] != "none":
            return "".join(character if character.isalnum() else "_" for character in "-".join(values))
    return None


class _AgreementFile:
    """One small JSON file below a local folder or a URI."""

    def __init__(self, work_dir: str, name: str) -> None:
        self.place = locate(absolute(work_dir))
        self.name = name

    def read(self) -> dict[str, Any] | None:
        """What was agreed on; None where nothing was, or where the file does not say it."""
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
