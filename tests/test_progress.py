"""Progress reaches the listener of its thread, or the log every few seconds."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from feedline import progress as module
from feedline.progress import LOG_S, Progress, on_progress, report_progress, track


def test_the_innermost_listener_of_the_thread_hears_progress():
    outer: list[Progress] = []
    inner: list[Progress] = []
    with on_progress(outer.append):
        report_progress("listing", 1, None, "files")
        with on_progress(inner.append):
            report_progress("counting", 1, 2, "rows")
            other = threading.Thread(target=report_progress, args=("counting", 2, 2, "rows"))
            other.start()
            other.join()
        report_progress("listing", 2, None, "files")
    report_progress("listing", 3, None, "files")
    assert [each.done for each in outer] == [1, 2]
    assert inner == [Progress(phase="counting", done=1, total=2, unit="rows")]


def test_a_phase_that_lasts_is_logged_every_few_seconds(caplog: pytest.LogCaptureFixture, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with caplog.at_level("INFO", logger="feedline.progress"):
        for second in range(12):
            now[0] = float(second)
            report_progress("counting", 1_000 * second, 11_000, "rows")
        report_progress("writing", 0, 3_500_000_000, "bytes")
        now[0] += LOG_S
        report_progress("writing", 2_000_000, 3_500_000_000, "bytes")
    assert caplog.messages == [
        "counting: 5,000 of 11,000 rows",
        "counting: 10,000 of 11,000 rows",
        "writing: 2.0 MB of 3.5 GB",
    ]


def test_results_are_tracked_as_they_come():
    heard: list[Progress] = []
    with on_progress(heard.append):
        results = track(iter("abc"), "writing", [5, 1, 4], "rows")
        assert next(results) == "a"
        assert [each.done for each in heard] == [0, 5]
        assert list(results) == ["b", "c"]
    assert [(each.done, each.total) for each in heard] == [(0, 10), (5, 10), (6, 10), (10, 10)]


def test_an_error_of_a_listener_ends_the_work(tmp_path: Path):
    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), on_progress(stop):
        report_progress("listing", 0, None, "files")
    report_progress("listing", 0, None, "files")  # the listener has left
