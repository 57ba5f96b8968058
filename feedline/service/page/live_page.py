"""The live page as a Bokeh application: what runs now, updated once a second while somebody looks.

Runs in: a feeder, in the thread of its page's server; the process of a scheduler, on its event loop. What viewers see
is put together once a second, whoever asks first; each of them is sent what has changed since.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.core.properties import without_property_validation
from bokeh.document import Document
from bokeh.models import CustomJS, InlineStyleSheet
from bokeh.models.widgets import Div
from bokeh.protocol.exceptions import ProtocolError
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream
from tornado.netutil import add_accept_handler
from tornado.web import RedirectHandler, RequestHandler

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.page.charts import CHARTS, Charts
from feedline.service.page.job_view import view_job
from feedline.service.page.page_parts import (
    FOLDER,
    ChosenJob,
    choose_job,
    details_html,
    headline_html,
    headline_of,
    jobs_html,
    now_html,
    page_template,
    ranks_html,
)
from feedline.service.page.page_server import PAGE
from feedline.service.page.status_history import StatusHistory

_PERIOD_MS = 1000
_FRESH_S = 0.9  # viewers whose second begins a little apart are shown the same
# Of more ranks than these, feeders send their statuses every two seconds; putting them together takes 0.1 ms per rank.
_MANY_RANKS, _FRESH_OF_MANY_S = 16, 1.9
_PARTS = ("jobs", "verdict", "now", "ranks", "details")
# In the browser, when the server does not answer: say so, and load the page anew once it does. Bokeh's own
# attempts end after a minute, and another process does not know the page's session.
_ON_LOST = """
const note = document.getElementById("feedline-lost")
if (note.hidden) {
  note.hidden = false
  note.querySelector("b").textContent = new Date().toTimeString().slice(0, 8)
  setInterval(() => fetch(location.href).then(answer => answer.ok && location.reload(), () => {}), 5000)
}
"""
# Of a feeder's own server: the names by which a browser on this host, or at the end of a tunnel to it, has the page.
_ORIGINS = ("127.0.0.1:*", "localhost:*")
_CONNECTIONS = 128  # at a time: descriptors are for rings and files
_IDLE_S, _BODY_S, _BODY_BYTES = 60.0, 10.0, 65_536  # of a connection without a request; of a request


def serve_page(
    statuses: Callable[[], Sequence[FeederStatus]], listener: socket.socket, end: concurrent.futures.Future[None]
) -> None:
    """Serve the page of a feeder on a socket that listens, until `end` has a result; see `PageServer`."""
    asyncio.run(_serve(statuses, listener, end))


async def _serve(
    statuses: Callable[[], Sequence[FeederStatus]], listener: socket.socket, end: concurrent.futures.Future[None]
) -> None:
    logging.getLogger("bokeh").setLevel(logging.ERROR)  # it warns of viewers that leave
    application = BokehTornado(
        {PAGE: Application(FunctionHandler(LivePage(statuses).open))},
        use_index=False,
        absolute_url="",  # addresses are relative: a proxy may have the page in a folder
        extra_patterns=[(r"/", RedirectHandler, {"url": PAGE.strip("/"), "permanent": False})],
        extra_websocket_origins=_ORIGINS,
        check_unused_sessions_milliseconds=_PERIOD_MS,
        default_handler_class=_NotFound,
        log_function=lambda handler: None,
    )
    server = HTTPServer(application, idle_connection_timeout=_IDLE_S, body_timeout=_BODY_S, max_body_size=_BODY_BYTES)
    streams: set[IOStream] = set()

    def receive(connection: socket.socket, address: Any) -> None:
        streams.difference_update([each for each in streams if each.closed()])
        if len(streams) >= _CONNECTIONS:
            connection.close()
        else:
            streams.add(stream := IOStream(connection))
            server.handle_stream(stream, address)

    application.initialize(IOLoop.current())
    application.start()
    stop = add_accept_handler(listener, receive)
    await asyncio.wrap_future(end)
    application.stop()
    stop()
    for stream in streams:
        stream.close()


class _NotFound(RequestHandler):
    def prepare(self) -> None:
        """Answer whatever is asked for. Tornado calls this."""
        self.set_status(404)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.finish(f"There is no such page here: the live page is at {PAGE}.\n")


def _is_news(record: logging.LogRecord) -> bool:
    """Not a viewer that left while Bokeh answered it: its ping and its websocket notice, and whichever comes second
    asserts that there still is a session, which is logged with 25 lines of traceback. Nor a client that is no page of
    this server."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ProtocolError):
        return False
    if not isinstance(error, AssertionError) or error.__traceback__ is None:
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) != ("bokeh.server.connection", "session")


class LivePage:
    """What all viewers of a page see. statuses: of its feeders; scheduler: the address of the one that has the page in
    its dashboard ("": the page is of one feeder); clock: in seconds, for their history."""

    def __init__(
        self,
        statuses: Callable[[], Sequence[FeederStatus]],
        *,
        scheduler: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name in ("tornado.application", "bokeh.server.protocol_handler"):
            logging.getLogger(name).addFilter(_is_news)
        self._statuses, self._scheduler, self._clock = statuses, scheduler, clock
        self._history = StatusHistory()
        self._fresh_s = _FRESH_S
        self._parts: dict[ChosenJob, dict[str, str]] = {}  # as of the last status

    def open(self, document: Document) -> None:
        """Fill the document of a new viewer. Bokeh calls this."""
        session: Any = document.session_context
        job = session.request.arguments.get("job", [b""])[0].decode(errors="replace")
        viewer = _Viewer(self, job, self._scheduler)
        document.title = "Feedline"
        document.template = page_template()
        document.template_variables.update(
            page_css=(FOLDER / "page.css").read_text(encoding="utf-8"),
            chart_names=[chart.name for chart in CHARTS],
            in_dask=bool(self._scheduler),
        )
        for root in viewer.roots:
            document.add_root(root)
        document.add_periodic_callback(viewer.update, _PERIOD_MS)
        document.js_on_event("connection_lost", CustomJS(code=_ON_LOST))

    def refresh(self) -> StatusHistory:
        """The history, with the statuses of this second, or of these two seconds if there are many ranks."""
        now_s = self._clock()
        if not 0 <= now_s - self._history.now_s < self._fresh_s:
            statuses = self._statuses()
            self._history.add(statuses, now_s)
            self._fresh_s = _FRESH_OF_MANY_S if sum(len(each.ranks) for each in statuses) > _MANY_RANKS else _FRESH_S
            self._parts = {}
        return self._history

    def parts(self, chosen: ChosenJob) -> dict[str, str]:
        made = self._parts.get(chosen)
        if made is None:
            made = self._parts[chosen] = _make_parts(self._history, chosen)
        return made


class _Viewer:
    """The document of one viewer. job: of the page's address; scheduler: that of the page."""

    def __init__(self, page: LivePage, job: str, scheduler: str) -> None:
        self._page, self._job, self._scheduler = page, job, scheduler
        sheet = InlineStyleSheet(css=(FOLDER / "parts.css").read_text(encoding="utf-8"))
        self._divs = {
            name: Div(name=name, stylesheets=[sheet], sizing_mode="stretch_width", disable_math=True, margin=0)
            for name in _PARTS
        }
        self._charts = Charts()
        self._charts.show(())
        self._shown: str | None = None
        self.update()

    @property
    def roots(self) -> list[Any]:
        return [*self._divs.values(), *self._charts.figures]

    @without_property_validation  # type: ignore[untyped-decorator]
    def update(self) -> None:
        """Send what has changed. Bokeh calls this once a second."""
        history = self._page.refresh()
        chosen = choose_job(self._job, history.jobs(), self._scheduler)
        for name, text in self._page.parts(chosen).items():
            div = self._divs[name]
            if div.text != text:
                div.text = text
            if div.visible != bool(text):
                div.visible = bool(text)
        points = () if chosen.shown is None else history.points(chosen.shown)
        if chosen.shown == self._shown:
            self._charts.add(points)
        else:
            self._shown = chosen.shown
            self._charts.show(points)


def _make_parts(history: StatusHistory, chosen: ChosenJob) -> dict[str, str]:
    views = [view for job in history.jobs() if (view := view_job(history, job)) is not None]
    view = next((view for view in views if view.job == chosen.shown), None)
    made = dict.fromkeys(_PARTS, "")
    made["jobs"] = jobs_html(views, chosen)
    if view is not None:
        made["verdict"] = headline_html(view, headline_of(view))
        made["now"], made["ranks"], made["details"] = now_html(view), ranks_html(view), details_html(view)
    return made
