"""A scheduler in this process that serves the live page of statuses that a test makes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from distributed import Scheduler, SpecCluster

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.page.dashboard import PAGE, DashboardOnDemand


@contextlib.contextmanager
def served_page(statuses: Callable[[], Sequence[FeederStatus]], *, port: int = 0) -> Iterator[str]:
    """Serve the page; the value is its address. port: 0 for any."""
    options = {"dashboard": False, "dashboard_address": f"127.0.0.1:{port}", "protocol": "inproc://"}
    with SpecCluster(
        scheduler={"cls": Scheduler, "options": options}, worker={}, silence_logs=logging.ERROR
    ) as cluster:
        scheduler: Any = cluster.scheduler
        scheduler.http_application.add_application(DashboardOnDemand(scheduler, statuses))
        try:
            yield f"http://127.0.0.1:{scheduler.http_server.port}{PAGE}"
        finally:
            cluster.sync(scheduler.http_server.close_all_connections)
