"""The last decisions are kept by topic, from `begin` to `close`."""

from __future__ import annotations

import logging
from contextlib import closing

import pytest

from feedline.service.feeder_status import DecisionLog


def test_decisions_are_kept_by_topic(caplog: pytest.LogCaptureFixture):
    with closing(DecisionLog()) as log:
        logging.getLogger("feedline.window").warning("before the beginning")
        log.begin()
        for name in ("feedline.window", "feedline.scaling", "feedline.cache"):
            caplog.set_level(logging.INFO, name)
            logging.getLogger(name).info("rank %d: more", 3)
        logging.getLogger("feedline.service.cluster.scheduler_connection").warning("it is gone: got OSError")
        logging.getLogger("feedline.service.feeder.delivery").warning("of another part")
    logging.getLogger("feedline.window").warning("after the end")
    decisions = log.last()
    assert [decision.topic for decision in decisions] == ["window", "workers", "cache", "cluster"]
    assert [decision.text for decision in decisions[::3]] == ["rank 3: more", "it is gone (the log has the value)"]
    assert decisions[0].at_s == pytest.approx(caplog.records[1].created)


def test_the_last_50_are_kept():
    with closing(DecisionLog()) as log:
        log.begin()
        for number in range(60):
            logging.getLogger("feedline.window").warning("%d", number)
        assert [decision.text for decision in log.last()] == [str(number) for number in range(10, 60)]
