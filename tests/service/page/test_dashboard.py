"""The pages of a scheduler's server: loaded when one is opened, Feedline's among Dask's."""

from __future__ import annotations

import subprocess
import sys
import time
from urllib.request import urlopen

import pytest
from page_statuses import status_at
from pipelines import eventually
from served_page import served_page


def test_the_page_needs_nothing_from_elsewhere_and_is_in_the_menu_of_dask():
    asked = []

    def statuses() -> list[object]:
        asked.append(1)
        return []

    with served_page(statuses) as address:  # type: ignore[arg-type]
        assert not asked
        with urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
        assert asked
        loaded = [part.split('"')[0] for part in page.split('src="')[1:] + page.split('rel="stylesheet" href="')[1:]]
        assert loaded
        assert not [each for each in loaded if "//" in each]  # from this server
        root = address.rpartition("/")[0]
        for name in ("status", "feedline"):
            with urlopen(f"{root}/{name}", timeout=60) as answer:
                assert b'<a href="feedline">Feedline</a>' in answer.read()


def test_statuses_are_asked_for_once_a_second_for_all_viewers(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def statuses() -> list[object]:
        asked.append(1)
        return [status_at(len(asked))]

    monkeypatch.setattr("feedline.service.page.live_page._FRESH_S", 1e9)
    with served_page(statuses) as address:  # type: ignore[arg-type]
        for _ in range(3):
            urlopen(address, timeout=60).close()
        assert len(asked) == 1


@pytest.mark.nightly  # a session lives for 15 s without a viewer
def test_without_viewers_nothing_is_asked():
    asked: list[float] = []

    def statuses() -> list[object]:
        asked.append(time.monotonic())
        return []

    with served_page(statuses) as address:  # type: ignore[arg-type]
        urlopen(address, timeout=60).close()
        eventually(lambda: len(asked) > 5)
        eventually(lambda: time.monotonic() - asked[-1] > 5)


def test_nothing_is_loaded_before_a_page_is_opened():
    code = (
        "import sys, feedline.service.page.dashboard, feedline.service.scheduler.extension; "
        "print(sorted({'bokeh', 'jinja2'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "bokeh" not in run.stdout
