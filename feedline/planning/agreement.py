"""Make the ranks of a start agree on one value: the snapshot that they read, the artifact set, the rebase.

Runs in: the feeder of each rank. The first rank of a start writes its choice to `work_dir/runs`; the others read it
there. A rank that the file already lists has restarted, and begins a new agreement. Ranks may join for a while only,
and for as long every rank looks again whether its value is still the one in the file, since it may have joined the
agreement of a start that had just failed: docs/decisions/0004-snapshots-ranks-agree-on.md.

The column groups of a job agree in the same way, whatever their launchers and world sizes: each has ranks of its own.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from feedline.dataclass import dataclass
from feedline.errors import PlanError, TableError, TableNotFoundError
from feedline.loader.launcher import launch_name
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate, redact

# The ranks of one start come up within this time, slow image pulls included; those of a launcher that names the start,
# queues of the cluster included.
_JOIN_S, _NAMED_JOIN_S = 600.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """One rank of a start.

    job: a digest, the same for all ranks, that names what they agree on. connected: torch.distributed connects the
    ranks, and rank 0 plans before the others. column_group: the name of the one that the rank reads; empty for all
    features. lanes: of the plan. agreed: what this rank has agreed on so far.
    """

    job: str
    rank: int
    world_size: int
    connected: bool = False
    column_group: str = ""
    lanes: int = 0
    agreed: list[Agreed] = field(default_factory=list, compare=False)

    @property
    def member(self) -> int | str:
        """The rank among those that agree: of column groups, each has a rank 0."""
        return f"{self.rank} of {self.column_group}" if self.column_group else self.rank

    def place(self, environment: Mapping[str, str]) -> tuple[str, float]:
        """The name of the file in which this start agrees, and for how many seconds ranks may join.

        Column groups may have launchers of their own, which name them differently, and other world sizes: one plan has
        one number of lanes.
        """
        if self.column_group:
            return f"runs/{self.job[:16]}-groups-{self.lanes}.json", _JOIN_S
        launch = launch_name(environment)
        suffix = f"-{launch}" if launch else ""
        return f"runs/{self.job[:16]}-{self.world_size}{suffix}.json", _NAMED_JOIN_S if launch else _JOIN_S


@dataclass(frozen=True, slots=True)
class Agreed:
    """A value that a rank took, the file's name, and until when other ranks may change it."""

    name: str
    value: str
    until_s: float


def choose_once(
    start: RunStart,
    work_dir: str,
    choose: Callable[[], str],
    *,
    environment: Mapping[str, str] = os.environ,
    now_s: Callable[[], float] = time.time,
) -> str:
    """The value that all ranks of this start use, of all column groups of the job. The first rank calls `choose`, which
    saves what the value names. Raises PlanError where nothing connects the ranks and `work_dir` has no locks."""
    if start.world_size == 1 and not start.column_group:
        return choose()
    name, join_s = start.place(environment)
    file = _AgreementFile(work_dir, name)
    if not (start.connected or content_store.has_locks(file.location)):
        ranks = "column groups" if start.column_group else f"{start.world_size} ranks"
        raise PlanError(
            f"{ranks} cannot agree on what they read: work_dir is {redact(file.location.uri)}, a "
            "store without locks, and torch.distributed does not connect them. Call init_process_group before the "
            "dataset's first use, or name a work_dir that all hosts mount"
        )
    with content_store.lock_file(file.location, file.name):
        agreement = file.read()
        if (
            agreement is not None
            and now_s() - agreement["created_s"] < join_s
            and start.member not in agreement["ranks"]
        ):
            file.write({**agreement, "ranks": sorted([*agreement["ranks"], start.member], key=str)})
            value = str(agreement["snapshot"])
        else:
            value = choose()
            file.write({"snapshot": value, "ranks": [start.member], "created_s": now_s()})
    if start.column_group or not start.connected:
        start.agreed.append(Agreed(file.name, value, now_s() + join_s))
    return value


def verify_agreement(start: RunStart, work_dir: str, *, now_s: Callable[[], float] = time.time) -> bool:
    """Whether this rank should look again later: other ranks of its start may still come. Raises PlanError, with both
    values, where they have agreed on another value without this rank."""
    for agreed in (open_agreements := [each for each in start.agreed if now_s() < each.until_s]):
        agreement = _AgreementFile(work_dir, agreed.name).read()
        if agreement is None or agreement["snapshot"] == agreed.value or start.member in agreement["ranks"]:
            continue
        others = ("; " if start.column_group else ", ").join(map(str, agreement["ranks"]))
        remedy = (
            "Restart all column groups of the job, or load one state in all of them"
            if start.column_group
            else "Restart all ranks. Ranks that torch.distributed connects, or that a launcher names anew at each "
            "start (torchrun --rdzv-id, Slurm), do not meet those of another start"
        )
        raise PlanError(
            f"the ranks of this start do not agree: got {agreed.value} on rank {start.member}, which joined what an "
            f"earlier start had agreed on, expected {agreement['snapshot']} as on rank {others} ({agreed.name} in "
            f"work_dir). {remedy}"
        )
    return bool(open_agreements)


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
                "ranks": [rank if isinstance(rank, str) else int(rank) for rank in content["ranks"]],
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
