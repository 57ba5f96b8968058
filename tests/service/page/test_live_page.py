"""What a viewer's document has, and what of it changes from second to second; charts."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from bokeh.document import Document
from hypothesis import given
from hypothesis import strategies as st
from page_statuses import START_S, status_at
from served_page import served_page

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.dask_patches import versions
from feedline.service.page.charts import CHARTS, Charts, axis_end, point_columns
from feedline.service.page.live_page import LivePage
from feedline.service.page.status_history import POINTS, JobPoint


class Served:
    """A page of statuses that a test makes, at a time that it sets."""

    def __init__(self, *statuses: FeederStatus) -> None:
        self.statuses, self.now_s, self.asked = list(statuses), START_S, 0
        self.page = LivePage(self._ask, scheduler="tcp://10.0.0.1:8786", clock=lambda: self.now_s)

    def _ask(self) -> list[FeederStatus]:
        self.asked += 1
        return self.statuses

    def open(self, job: str = "") -> Document:
        document: Any = SimpleNamespace(session_context=None)
        document = Document()
        request = SimpleNamespace(arguments={"job": [job.encode()]} if job else {})
        document._session_context = lambda: SimpleNamespace(request=request)
        self.page.open(document)
        return document  # type: ignore[no-any-return]

    def pass_second(self, *statuses: FeederStatus) -> None:
        self.now_s += 1
        self.statuses = list(statuses)


def update(document: Document) -> list[str]:
    """Run a document's callback of each second; returns the names of the models that it changed."""
    changed: list[str] = []
    document.on_change(lambda event: changed.append(getattr(getattr(event, "model", None), "name", "") or "series"))
    (callback,) = document.session_callbacks
    callback.callback()
    return changed


def text(document: Document, name: str) -> str:
    model: Any = document.get_model_by_name(name)
    return str(model.text) if model.visible else ""


def test_the_only_job_is_shown_at_once():
    document = Served(status_at(5)).open()
    assert text(document, "jobs") == ""
    assert "job-a ranking" in text(document, "verdict")
    assert "rank</span> 1" in text(document, "ranks")
    assert document.get_model_by_name("rows").visible  # type: ignore[union-attr]


def test_without_a_job_the_page_waits_for_one_and_shows_it_when_it_comes():
    served = Served()
    document = served.open()
    assert "tcp://10.0.0.1:8786" in text(document, "jobs")
    assert not document.get_model_by_name("rows").visible  # type: ignore[union-attr]
    served.pass_second(status_at(1))
    update(document)
    assert text(document, "jobs") == ""
    assert "job-a ranking" in text(document, "verdict")
    assert document.get_model_by_name("rows").visible  # type: ignore[union-attr]


def test_the_address_chooses_one_of_several_jobs():
    served = Served(status_at(5), status_at(5, job="job-b"))
    assert text(served.open(), "verdict") == ""
    assert "job-b ranking" in text(served.open("job-b"), "verdict")
    assert "job not found" in text(served.open("job-c"), "jobs")


def test_the_sentence_and_the_details_are_sent_only_when_they_change():
    served = Served(status_at(5))
    document = served.open()
    for second in (6, 7):
        served.pass_second(status_at(second))
        update(document)
    served.pass_second(status_at(8))
    changed = update(document)
    assert {"now", "ranks", "series"} <= set(changed)
    assert "details" not in changed
    served.pass_second(status_at(8))
    served.now_s -= 0.5  # in the same second
    assert update(document) == []


def test_two_viewers_ask_for_statuses_once_and_see_the_same():
    served = Served(status_at(5))
    first, second = served.open(), served.open()
    assert served.asked == 1
    served.pass_second(status_at(6))
    update(first)
    served.now_s += 0.4
    update(second)
    assert served.asked == 2
    assert text(first, "now") == text(second, "now")


def test_many_ranks_are_put_together_every_two_seconds():
    served = Served(status_at(5, ranks=17))
    document = served.open()
    served.pass_second(status_at(6, ranks=17))
    assert update(document) == []
    served.pass_second(status_at(7, ranks=17))
    assert {"now", "ranks"} <= set(update(document))
    assert served.asked == 2


def test_the_browser_is_told_what_to_do_when_the_server_is_gone():
    (callback,) = Served(status_at(5)).open().callbacks.js_event_callbacks["connection_lost"]
    assert "location.reload()" in callback.code


def test_a_version_of_dask_that_is_not_supported_has_no_tab(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(versions, "INSTALLED", "2030.1.0")
    with served_page(list) as address:
        urlopen(address, timeout=60).close()
        with urlopen(address.replace("feedline", "status"), timeout=60) as answer:
            assert b'<a href="feedline">' not in answer.read()


POINT = JobPoint(
    at_s=1000, rows_per_s=4e5, trainer=0.25, slots=0.5, blocks=3, window=4, ring=0.75, workers=2, threads=8
)


def points(count: int, *, first_s: float = 1000) -> list[JobPoint]:
    return [replace(POINT, at_s=first_s + each) for each in range(count)]


@given(values=st.lists(st.floats(0, 1e12) | st.just(math.nan)))
def test_an_axis_shows_all_values_and_is_not_much_longer(values: list[float]):
    most = max((value for value in values if not math.isnan(value)), default=0)
    assert most <= axis_end(values) <= max(1.2, 2.5 * most)


def test_shares_are_percentages_and_the_unknown_is_a_gap():
    columns = point_columns([POINT, replace(POINT, rows_per_s=None, trainer=None, window=0, ring=None)])
    assert [columns[name][0] for name in ("trainer", "slots", "ring", "window")] == [25, 50, 75, 75]
    assert all(math.isnan(columns[name][1]) for name in ("rows", "trainer", "ring", "window"))
    assert set(columns) == {"at", *(line.column for chart in CHARTS for line in chart.lines)}


def test_points_are_drawn_once():
    charts = Charts()
    charts.show(points(3))
    charts.add(points(5))
    charts.add(points(5))
    source = charts.figures[0].renderers[0].data_source
    assert list(source.data["at"]) == [1000, 1001, 1002, 1003, 1004]


def test_no_more_is_kept_than_the_series_has():
    charts = Charts()
    charts.show(points(POINTS))
    charts.add(points(POINTS, first_s=1010))
    source = charts.figures[0].renderers[0].data_source
    assert len(source.data["at"]) == POINTS
    assert source.data["at"][-1] == 1009 + POINTS


@pytest.mark.parametrize(("count", "start"), [(2, 1001 - 60), (100, 1000), (500, 1499 - 300)])
def test_the_time_axis_grows_to_five_minutes(count: int, start: float):
    charts = Charts()
    charts.show(points(count))
    times = charts.figures[0].x_range
    assert (times.start, times.end) == (start, 999 + count)
    assert charts.figures[0].y_range.end == 6e5
