"""The live page of a real run, in every mode of its cluster."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pipelines import PATIENCE_S, Place, furnished
from processes import Program, all_gone, feedline
from served_page import viewer, wait_for

from feedline import FeedlineDataset


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    (tmp_path / "d").mkdir()
    with furnished(tmp_path / "d", clicks) as place:
        yield place


def addresses(run: Program) -> tuple[str, str | None]:
    """The addresses of the live page and of Dask's dashboard, as a run prints them."""
    found = run.line(r"live page: (http://127\.0\.0\.1:\d+/feedline)(?:, Dask dashboard: (http://\S+/status))?$")
    return found[1], found[2]


@pytest.mark.parametrize("cluster", [{"threads": 1}, {"workers": 1, "threads": 1}], ids=str)
def test_every_mode_has_the_page_and_names_the_setting_for_dasks(place: Place, cluster: dict[str, Any]):
    """While a trainer trains, and Ctrl-C ends the run, whoever looks. The default mode has the test below."""
    path = place.write(epochs=1000, batch={"size": 64}, cluster={**cluster, "dashboard": True})
    with feedline("run", path) as run:
        page, dashboard = addresses(run)
        assert (dashboard is not None) == ("workers" in cluster)
        with FeedlineDataset(path) as dataset:
            for _, _ in zip(range(5), dataset, strict=False):
                pass
            assert (dataset.facts["live_page"], dataset.facts["dashboard"]) == (page, dashboard)
            with viewer(page) as looking:
                text = wait_for(looking, "What the plan reads")
                assert "clicks" in text
                if dashboard is None:
                    assert "write <code>cluster: {workers: N}</code>" in text
                else:
                    assert dashboard in text
                    with urlopen(dashboard, timeout=PATIENCE_S) as answer:
                        assert b'<a href="feedline">Feedline</a>' in answer.read()
                processes = run.descendants()
                run.send(signal.SIGINT)
                run.wait()
        assert all_gone(processes)
    assert "Traceback" not in run.text


def test_a_feeder_imports_bokeh_for_a_viewer_and_never_dask(place: Place, plain_starts: None):
    path = place.write(epochs=1000, batch={"size": 64}, cluster={"dashboard": True})
    with feedline("run", path, env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}) as run:
        page, dashboard = addresses(run)
        assert dashboard is None
        before = set(re.findall(r"\| +(\w+)$", run.text, re.MULTILINE))
        with FeedlineDataset(path) as dataset:
            for _, _ in zip(range(5), dataset, strict=False):
                pass
            assert (dataset.facts["live_page"], dataset.facts["dashboard"]) == (page, None)
            with viewer(page) as looking:
                text = wait_for(looking, "What the plan reads")
                assert "About this job" in text
                assert "write <code>cluster: {workers: N}</code>" in text
                processes = run.descendants()
                run.send(signal.SIGINT)
                run.wait()
        assert all_gone(processes)
    assert "Traceback" not in run.text
    imported = set(re.findall(r"\| +(\w+)$", run.text, re.MULTILINE))
    assert "polars" in before
    assert "bokeh" in imported - before
    assert not imported & {"distributed", "dask"}
