"""A dataset asks for the plan of each epoch of a followed table once, and of no epoch of another table; it prints its
rank once."""

from __future__ import annotations

import pytest

from feedline.loader.dataset import FollowedEpochs, print_ranks
from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.launcher import detect_rank
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.wire.facts import FeederFacts, Hello, PlanFacts


def answer(epoch: int | None, hello: Hello | None = None, steps: int = 10) -> Answer:
    facts = PlanFacts(
        snapshot=f"s{epoch}",
        plan=f"p{epoch}",
        features="f",
        environment="",
        seed=0,
        lanes=1,
        batch_size=8,
        window_rows=0,
        window_blocks=0,
        steps=steps,
        rows=80,
        rows_dropped=0,
        bad_files=(),
        nulls=(),
        absent=(),
        schema=BatchSchema(()),
        epoch=epoch,
    )
    about = FeederFacts(imports_s=0, log=None, dashboard=None, live_page=None, feeder=1)
    return Answer.of(hello or Hello(rank=0, world_size=1), facts, about)


class Feeder:
    """Answers with each epoch up to the last one."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.asked: list[int | None] = []

    def __call__(self, hello: Hello) -> Answer:
        self.asked.append(hello.epoch)
        assert hello.epoch is not None
        return answer(min(hello.epoch, self.last), hello)


def test_one_plan_serves_all_epochs_of_a_table_that_is_not_followed():
    feeder = Feeder(0)
    epochs, current = FollowedEpochs(feeder), answer(None)
    epochs.begin(current)
    assert epochs.opened(current, (3, 10)) == (current, 4, 0)
    assert epochs.state(current, 3, 10)["epoch"] == 4
    assert feeder.asked == []


def test_each_epoch_is_asked_for_once():
    feeder = Feeder(9)
    epochs, current = FollowedEpochs(feeder), answer(0)
    epochs.begin(current)
    second, epoch, step = epochs.opened(current, (0, 10))
    assert second is not None
    assert (epoch, step, second.facts.snapshot) == (1, 0, "s1")
    assert epochs.answer_of(1, current) is second
    assert epochs.answer_of(0, second) is current
    assert feeder.asked == [1]
    assert second.hello.snapshot == "s1", "that names the plan to any other feeder"


def test_a_run_that_has_ended_is_not_asked_again():
    feeder = Feeder(0)
    epochs, current = FollowedEpochs(feeder), answer(0)
    epochs.begin(current)
    for _ in range(2):
        assert epochs.opened(current, (0, 10)) == (None, 1, 0)
        assert epochs.answer_of(2, current) is None
    assert feeder.asked == [1], "rank 0 alone may ask for the length"


def test_a_state_never_decides_a_border():
    feeder = Feeder(9)
    epochs, current = FollowedEpochs(feeder), answer(0)
    epochs.begin(current)
    for at in ((0, 10), (1, 0)):
        state = epochs.state(current, *at)
        assert (state["epoch"], state["step"], state["snapshot"]) == (0, 10, "s0")
    assert feeder.asked == []
    second = epochs.answer_of(1, current)
    assert second is not None
    assert epochs.state(second, 1, 0)["snapshot"] == "s1"
    assert epochs.state(second, 0, 4)["snapshot"] == "s0", "of a batch that is still in use"
    assert feeder.asked == [1]


def test_a_rank_is_printed_once(capsys: pytest.CaptureFixture[str]):
    ranks = detect_rank(rank=3, world_size=17, distributed=None, environment={})
    for _ in range(2):
        print_ranks(ranks)
    assert capsys.readouterr().err.count("rank 3 of 17") == 1
