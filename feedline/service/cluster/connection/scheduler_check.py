"""Check a scheduler that was just connected to: the host that its certificate names, and its version of Dask.

Runs in: every process that computes on a cluster by address.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from distributed import Client

from feedline.errors import ClusterError
from feedline.service.tls.refused_connection import check_scheduler_host

_ANSWER_S = 5.0


def check_scheduler(client: Client, address: str) -> None:
    """Raise ClusterError where the certificate names other hosts, or the scheduler has another version of Dask.

    A scheduler that is lost meanwhile is looked for later, and checked then.
    """
    connection: Any = client.scheduler_comm
    if connection is not None:
        check_scheduler_host(address, connection.comm.extra_info.get("peercert") or {})
    scheduler: Any = client.scheduler
    try:
        versions: Mapping[str, Any] = client.sync(scheduler.versions, callback_timeout=_ANSWER_S)
    except (OSError, TimeoutError):
        return
    theirs, ours = versions.get("packages", {}).get("distributed"), importlib.metadata.version("distributed")
    if theirs != ours:
        raise ClusterError(
            f"the scheduler at {address} has another distributed: got {theirs}, expected {ours} as in the feeder. "
            f"Install the same versions of dask and distributed everywhere"
        )
