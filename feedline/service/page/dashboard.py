"""Dask's dashboard and Feedline's page in it, loaded when one of their pages is opened.

Runs in: the process of a scheduler, on its Dask event loop. Loading the pages takes 0.4 to 0.8 s of CPU time, and
memory, which most processes need not spend: nobody looks at them. See
docs/decisions/0078-metrics-beside-the-status.md.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from distributed import Scheduler
from tornado.ioloop import IOLoop
from tornado.web import Application, HTTPError, RequestHandler

from feedline.errors import FeedlineError
from feedline.extras import extra
from feedline.loader.wire.run_status import FeederStatus
from feedline.service.dask_patches.versions import allow
from feedline.service.page.page_server import PAGE, import_quietly


class DashboardOnDemand(Application):
    """Answers requests for pages that the scheduler's HTTP server does not have: it adds those of the dashboard, and
    Feedline's, to the server, in its own place, and has the request repeated.

    statuses: the last one of each feeder of the scheduler, asked for on its event loop once a second while somebody
    looks.
    """

    def __init__(self, scheduler: Scheduler, statuses: Callable[[], Sequence[FeederStatus]]) -> None:
        super().__init__([(r"/.*", _FirstRequest, {"load": self._load})])
        self._scheduler: Any = scheduler
        self._statuses = statuses
        self._loading: asyncio.Task[None] | None = None

    async def _load(self) -> None:
        if self._loading is None:
            self._loading = asyncio.create_task(self._add_pages())
        await asyncio.shield(self._loading)

    async def _add_pages(self) -> None:
        pages, live_page = await asyncio.to_thread(_import_pages)
        scheduler = self._scheduler
        server = scheduler.http_application
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not any(isinstance(each, live_page.BokehTornado) for each in server.applications):
                pages.connect(server, scheduler.http_server, scheduler, prefix="")
            tabs, tab = pages.template_variables(scheduler)["pages"], PAGE.strip("/")  # all its pages share the list
            if tab not in tabs and allow("a tab of its page in Dask's dashboard"):
                tabs.insert(0, tab)
            page = live_page.LivePage(self._statuses, scheduler=scheduler.address)
            functions = {PAGE: lambda _scheduler, _variables, document: page.open(document)}
            application = pages.BokehApplication(functions, scheduler, prefix="")
            server.add_application(application)
            application.initialize(IOLoop.current())
            application.start()
        server.applications.remove(self)


class _FirstRequest(RequestHandler):
    """A request that arrives before the pages are there."""

    def initialize(self, load: Any) -> None:
        self._load_pages = load

    def prepare(self) -> None:
        if self.request.method != "GET":
            raise HTTPError(404)

    async def get(self, *_: str) -> None:
        try:
            await self._load_pages()
        except FeedlineError as error:
            raise HTTPError(501, reason=str(error)) from None
        self.redirect(self.request.uri or "/")


def _import_pages() -> tuple[Any, Any]:
    with extra("dashboard", "the dashboard"):
        return import_quietly("distributed.dashboard.scheduler"), import_quietly("feedline.service.page.live_page")
