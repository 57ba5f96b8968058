"""The live page in a real browser: of a running job, of a scheduler alone, of several jobs."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import BrowserPage, browser, needs_chromium
from page_statuses import status_at
from pipelines import Place, furnished
from processes import feedline
from served_page import served_page

from feedline import FeedlineDataset

pytestmark = [pytest.mark.nightly, needs_chromium]

_ROWS = r"([\d,]+) rows so far"


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    (tmp_path / "d").mkdir()
    with furnished(tmp_path / "d", clicks) as place:
        yield place


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BrowserPage]:
    with browser(tmp_path) as page:
        yield page
        assert page.console == []
        assert page.failed == []
        assert page.hosts() == {"127.0.0.1"}


def rows(page: BrowserPage) -> int:
    return int(page.wait_for_text(_ROWS)[1].replace(",", ""))


@pytest.mark.parametrize("through_dask", [False, True], ids=["of the feeder", "of Dask"])
def test_the_page_of_a_running_job_moves(place: Place, page: BrowserPage, through_dask: bool):
    """Also through the menu of Dask's pages; the trainer's steps are those that the page counts."""
    cluster = {"workers": 1, "threads": 1} if through_dask else {"threads": 1}
    path = place.write(epochs=1000, batch={"size": 64}, cluster={**cluster, "dashboard": True})
    with feedline("run", path) as run:
        found = run.line(r"live page: (http://\S+/feedline)(?:, Dask dashboard: (http://\S+)/status)?")
        with FeedlineDataset(path) as dataset:
            batches = iter(dataset)
            next(batches)
            page.resize(1400, 900)
            if through_dask:
                page.open(f"{found[2]}/tasks")
                page.wait_for_text("Feedline Status Workers")
                page.evaluate("document.querySelector('a[href=feedline]').click()")
            else:
                page.open(found[1])
            page.wait_for_text("What the plan reads")
            before = rows(page)
            for _ in range(40):
                next(batches)
            moved = page.wait_for_text(r"epoch 1 of 1,?000, step (\d+) of")
            assert int(moved[1]) >= 1
            while rows(page) < before + 40 * 64 / 2:  # a ring was ahead of the trainer
                page.listen(0.1)
            page.wait_for_text(r"trainer waits \d+ %")
            assert "clicks" in page.text()
            assert page.evaluate("Bokeh.documents[0].get_model_by_name('rows').visible")
            page.resize(420, 900)
            assert page.evaluate("document.documentElement.scrollWidth") <= 420
        run.send(signal.SIGINT)
        run.wait()


def test_a_scheduler_alone_says_that_it_has_no_job(page: BrowserPage):
    with feedline("scheduler", "--port", "0", "--dashboard", "127.0.0.1:0") as run:
        scheduler = run.line(r"scheduler at (\S+)")[1]
        page.open(run.line(r"live page at (\S+)")[1])
        page.wait_for_text("No job is connected to this scheduler")
        assert f"scheduler: {scheduler}" in page.text()


def test_several_jobs_lead_to_each_and_names_are_harmless(page: BrowserPage):
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    jobs = [status_at(5), replace(status_at(5), job=evil, feeder="b", name=evil, host=evil)]
    with served_page(lambda: jobs) as address:
        page.open(address)
        page.wait_for_text("2 jobs on this scheduler")
        page.evaluate(
            "Bokeh.index.roots.flatMap(view => [...view.el.shadowRoot.querySelectorAll('a')])"
            ".find(link => link.textContent.includes('script')).click()"
        )
        page.wait_for_text("shown below")
        text = page.text()
        assert text.count(evil) >= 3
        assert "What the plan reads" in text


def test_a_page_whose_server_is_gone_says_so_and_comes_back_with_it(tmp_path: Path):
    """Its console has what the browser says of a server that does not answer."""
    port = 0
    with browser(tmp_path) as page:
        for _ in range(2):
            with served_page(lambda: [status_at(5)], port=port) as address:
                port = int(address.split(":")[2].split("/")[0])
                if not page.requests:
                    page.open(address)
                page.wait_for_text("What the plan reads")
                while not page.evaluate("document.getElementById('feedline-lost')?.hidden"):
                    page.listen(0.1)
            while page.evaluate("document.getElementById('feedline-lost').hidden"):
                page.listen(0.1)
            since = page.evaluate("document.querySelector('#feedline-lost b').textContent")
            assert re.fullmatch(r"\d\d:\d\d:\d\d", since)
