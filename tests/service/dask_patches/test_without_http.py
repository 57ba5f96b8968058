"""Schedulers and workers without an HTTP server open no port for it; Dask's own do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from distributed import Scheduler, Worker
from distributed.node import ServerNode

from feedline.errors import ClusterError
from feedline.service.dask_patches import versions
from feedline.service.dask_patches.without_http import scheduler_class, worker_class


@pytest.mark.parametrize("http", [True, False])
def test_nodes_have_an_http_server_if_they_shall(http: bool):
    assert "start_http_server" in vars(ServerNode)
    options: dict[str, Any] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}

    async def start() -> list[bool]:
        async with (
            scheduler_class(http=http)(protocol="tcp://", host="127.0.0.1", port=0, **options) as scheduler,
            worker_class(http=http)(scheduler.address, nthreads=1, memory_limit=0, **options) as worker,
        ):
            return [getattr(node, "http_server", None) is not None for node in (scheduler, worker)]

    assert asyncio.run(start()) == [http, http]


def test_another_version_of_dask_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2027.3.0")
    assert (scheduler_class(http=True), worker_class(http=True)) == (Scheduler, Worker)
    for choose in (scheduler_class, worker_class):
        with pytest.raises(ClusterError, match="open no port for HTTP"):
            choose(http=False)
