"""Dask's dashboard, whose pages are loaded when one of them is opened.

Runs in: the feeder, on its Dask event loop. Loading the pages takes 0.8 s of CPU time and 150 MB, which most feeders
need not spend: nobody looks at them. See docs/decisions/0005-dashboard-when-it-is-opened.md.
"""

from __future__ import annotations

import asyncio
import importlib
import warnings
from typing import Any

from distributed import Scheduler
from tornado.web import Application, RequestHandler


class DashboardOnDemand(Application):
    """Answers requests for pages that the scheduler's HTTP server does not have: it adds those of the dashboard to the
    server, in its own place, and has the request repeated."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__([(r"/.*", _FirstRequest, {"load": self._load})])
        self._scheduler: Any = scheduler
        self._loading: asyncio.Task[None] | None = None

    async def _load(self) -> None:
        if self._loading is None:
            self._loading = asyncio.create_task(self._add_pages())
        await asyncio.shield(self._loading)

    async def _add_pages(self) -> None:
        pages = await asyncio.to_thread(_import_pages)
        scheduler = self._scheduler
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pages.connect(scheduler.http_application, scheduler.http_server, scheduler, prefix="")
        scheduler.http_application.applications.remove(self)


class _FirstRequest(RequestHandler):
    """A request that arrives before the pages are there."""

    def initialize(self, load: Any) -> None:
        self._load_pages = load

    async def get(self, *_: str) -> None:
        await self._load_pages()
        self.redirect(self.request.uri or "/")


def _import_pages() -> Any:
    with warnings.catch_warnings():
        # Bokeh and Tornado warn about what their next versions will do; not the user's concern.
        warnings.simplefilter("ignore")
        return importlib.import_module("distributed.dashboard.scheduler")
