"""Two feeders on one scheduler with the extension: whose blocks its worker computes first."""

from __future__ import annotations

import threading

import pytest
from job_reports import REPORT
from pipelines import eventually
from schedulers import connected, local_cluster
from streams import Stream, window

from feedline.loader.wire.job_reports import JobAnswer


def test_a_job_that_has_used_more_than_its_share_comes_last_and_a_dead_one_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    """Both wait for all of their blocks; the greedy one has asked first."""
    begin, order = threading.Event(), []

    def work(index: int, key: str) -> str:
        assert begin.wait(60)
        order.append(key.split("-")[2])
        return key

    preload = "feedline.service.scheduler.preload"
    with local_cluster(preload, workers=1) as local, connected(local) as greedy, connected(local) as modest:
        extension = local.scheduler.plugins["feedline-jobs"]
        now_s = extension.feedline_clock()
        assert abs(greedy.now_s() - now_s) < 60, "asked when it connected"
        greedy.dask.reporter.report = REPORT
        assert eventually(lambda: greedy.share.answer)
        ahead = JobAnswer(now_s=now_s, virtual_start_s=now_s + 4, threads=1.0)
        greedy.share.update(ahead, 0.0)
        monkeypatch.setattr(greedy, "now_s", lambda: now_s)
        monkeypatch.setattr(modest, "now_s", lambda: now_s + 1)
        streams = {name: Stream(cluster, monkeypatch, work) for name, cluster in (("a", greedy), ("b", modest))}
        first = streams["a"].open("first", 1)
        first.pump(0)
        assert eventually(lambda: len(local.scheduler.tasks) == 1), "it runs"
        hungry = streams["a"].open("greedy", 6, window=window(fixed_blocks=6))
        fair = streams["b"].open("modest", 6, window=window(fixed_blocks=6))
        for delivery in (hungry, fair):
            delivery._window.record(0.1, 1)  # else the window opens with the first result
        hungry.pump(0)
        fair.pump(0)
        assert eventually(lambda: len(local.scheduler.tasks) == 13)
        begin.set()
        assert eventually(lambda: len(order) == 13)
        assert order[1:3] == ["modest"] * 2
        # Dask assigns the first two tasks of a kind at once, and orders them within the worker; its queue has the rest.
        assert order[-4:] == ["greedy"] * 4
        for delivery in (first, hungry, fair):
            delivery.close()
        assert eventually(lambda: not local.scheduler.tasks)
        worker = local.workers[0]
        assert eventually(lambda: not worker.data and not worker.state.tasks)
