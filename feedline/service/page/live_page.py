"""The live page as a Bokeh application: what runs now, updated once a second while somebody looks.

Runs in: the process of a scheduler, on its event loop. What viewers see is put together once a second, whoever asks
first; each of them is sent what has changed since.
"""

from __future__ import annotations

import importlib.resources
import logging
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bokeh.core.properties import without_property_validation
from bokeh.document import Document
from bokeh.models import CustomJS, InlineStyleSheet
from bokeh.models.widgets import Div
from bokeh.server.tornado import BokehTornado
from distributed import Scheduler
from distributed.dashboard.core import BokehApplication
from distributed.dashboard.scheduler import template_variables
from tornado.ioloop import IOLoop

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.dask_patches.versions import allow
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
_DASK_TEMPLATES = str(importlib.resources.files("distributed") / "http" / "templates")


def has_pages(scheduler: Scheduler) -> bool:
    application: Any = getattr(scheduler, "http_application")  # noqa: B009 -- not in Dask's annotations
    return any(isinstance(each, BokehTornado) for each in application.applications)


def add_page(scheduler: Scheduler, path: str, statuses: Callable[[], Sequence[FeederStatus]]) -> None:
    """Add the page to a scheduler's server, which has Dask's pages, and to their menu."""
    variables = template_variables(scheduler)
    tabs, tab = variables["pages"], path.strip("/")  # all pages of this scheduler share the list; no setting adds to it
    if tab not in tabs and allow("a tab of its page in Dask's dashboard"):
        tabs.insert(0, tab)
    for name in ("tornado.application", "bokeh.server.protocol_handler"):
        logging.getLogger(name).addFilter(_is_news)
    page = LivePage(statuses)
    application: Any = BokehApplication({path: page.open}, scheduler, prefix="", template_variables=variables)
    server: Any = scheduler
    server.http_application.add_application(application)
    application.initialize(IOLoop.current())
    application.start()


def _is_news(record: logging.LogRecord) -> bool:
    """Not a viewer that left while Bokeh answered it: its ping and its websocket notice, and whichever comes second
    asserts that there still is a session, which is logged with 25 lines of traceback."""
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, AssertionError) or error.__traceback__ is None:
        return True
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return (frame.f_globals.get("__name__"), frame.f_code.co_name) != ("bokeh.server.connection", "session")


class LivePage:
    """What all viewers of a scheduler's page see. statuses: of its feeders; clock: in seconds, for their history."""

    def __init__(
        self, statuses: Callable[[], Sequence[FeederStatus]], *, clock: Callable[[], float] = time.time
    ) -> None:
        self._statuses, self._clock = statuses, clock
        self._history = StatusHistory()
        self._fresh_s = _FRESH_S
        self._parts: dict[ChosenJob, dict[str, str]] = {}  # as of the last status

    def open(self, scheduler: Scheduler, extra: Mapping[str, Any], document: Document) -> None:
        """Fill the document of a new viewer. Bokeh calls this."""
        session: Any = document.session_context
        job = session.request.arguments.get("job", [b""])[0].decode(errors="replace")
        viewer = _Viewer(self, job, scheduler.address)
        document.title = "Feedline"
        document.template = page_template(_DASK_TEMPLATES)
        css = (FOLDER / "page.css").read_text(encoding="utf-8")
        document.template_variables.update({**extra, "page_css": css, "chart_names": [chart.name for chart in CHARTS]})
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
    """The document of one viewer. job: of the page's address; scheduler: its own."""

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
