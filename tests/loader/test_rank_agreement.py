"""Ranks agree on a plan through a store, and every rank gets the error if they do not."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as c10d
from answers import answer_with, plan_facts
from pipelines import PATIENCE_S

from feedline.errors import FeederError, FeedlineError, PlanError, SpecError
from feedline.loader.rank_agreement import agree_on_plan, open_plan
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.state import state_of
from feedline.loader.wire.facts import ColumnGroup, Hello

HELLO = Hello(rank=0, world_size=4)
ANSWER = answer_with(snapshot="s1", lanes=3, plan="p1", features="f1", nulls=("x" * 100_000,))
Open = Callable[[Hello], Answer]


def hello_of(number: int, data_rank: int, data_world_size: int) -> Hello:
    """Of a trainer that reads the rows of a data rank."""
    return Hello(rank=data_rank, world_size=data_world_size, trainer=number, trainers=4)


def outcomes(
    plans: Sequence[Open],
    store: Any = None,
    *,
    hellos: Sequence[Hello] = (),
    states: Sequence[dict[str, Any] | None] = (),
) -> list[Any]:
    """What came of each rank, all at once: its answer, or the error."""
    store = store or c10d.HashStore()
    hellos = hellos or [replace(HELLO, rank=rank, world_size=len(plans)) for rank in range(len(plans))]

    def rank(plan: Open, hello: Hello, state: dict[str, Any] | None) -> Any:
        try:
            return agree_on_plan(store, plan, hello, state=state)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(len(plans)) as pool:
        return list(pool.map(rank, plans, hellos, states or [None] * len(plans), timeout=PATIENCE_S))


def check(found: Sequence[Any], answers: Sequence[Answer], message: str | None) -> None:
    """Every rank has its answer, or PlanError with this message."""
    if message is None:
        assert found == answers
    else:
        assert all(isinstance(error, PlanError) and message in str(error) for error in found), found


def test_others_plan_on_the_snapshot_of_rank_0():
    asked: list[Hello] = []

    def plan(hello: Hello) -> Answer:
        asked.append(replace(hello, rank=0, world_size=4))
        return ANSWER

    store = c10d.HashStore()
    for _ in range(2):  # agreements are numbered
        asked.clear()
        assert outcomes([plan] * 3, store) == [ANSWER] * 3
        assert asked[0] == HELLO
        assert asked[1:] == [replace(HELLO, snapshot="s1", lanes=3)] * 2
    rebase = replace(HELLO, plan="p0", rebase={})
    asked.clear()
    assert outcomes([plan] * 2, hellos=[replace(rebase, rank=rank, world_size=2) for rank in range(2)]) == [ANSWER] * 2
    window = {"window_rows": 64, "window_blocks": 16}
    assert asked == [rebase, replace(rebase, snapshot="s1", lanes=3, plan="p1", rebase=None, **window)]
    border = replace(HELLO, snapshot="s0", plan="p0", epoch=1)  # of a followed table
    asked.clear()
    assert outcomes([plan] * 2, hellos=[replace(border, rank=rank, world_size=2) for rank in range(2)]) == [ANSWER] * 2
    assert asked == [border, replace(border, snapshot="s1", lanes=3, plan="p1", **window)]


def test_only_fingerprints_travel():
    sizes: list[int] = []

    class Counting(c10d.HashStore):
        def set(self, key: str, value: str) -> None:
            sizes.append(len(value))
            super().set(key, value)

    outcomes([lambda _: ANSWER] * 4, Counting())
    assert len(sizes) == 5, "one of each rank, and the verdict"
    assert max(sizes) < 250


def state_at(epoch: int, step: int, **changes: Any) -> dict[str, Any]:
    return {**state_of(plan_facts(environment="any", steps=100), epoch, step), **changes}


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([state_at(0, 10), state_at(0, 10, environment="another")], None),
        ([state_at(0, 10), state_at(0, 4)], "position: got epoch 0, step 4 on rank 1, expected epoch 0, step 10 as on"),
        ([state_at(0, 4), state_at(2, 4)], "position: got epoch 2, step 4 on rank 1, expected epoch 0, step 4 as on"),
        ([None, state_at(0, 4)], "position: got epoch 0, step 4 on rank 1, expected no state as on rank 0"),
        ([state_at(0, 4), None], "position: got no state on rank 1, expected epoch 0, step 4 as on rank 0"),
        (
            [state_at(0, 4), state_at(0, 4, lanes=6)],
            "states of one lanes: got 6 on rank 1, expected 3 as on rank",
        ),
        ([state_at(0, 4), state_at(0, 4, batch_size=16)], "of one batch_size: got 16 on rank 1, expected 4 as on"),
        ([state_at(0, 4), state_at(0, 4, plan="p0")], "of one plan: got p0 on rank 1, expected p1 as on rank 0"),
    ],
)
def test_ranks_continue_one_state(states: list[dict[str, Any] | None], message: str | None):
    """Their plans are equal: only the states tell that rows would be repeated, and others lost."""
    check(outcomes([lambda _: ANSWER] * 2, states=states), [ANSWER] * 2, message)


@pytest.mark.parametrize(
    ("data_ranks", "message"),
    [
        ([(0, 2), (0, 2), (1, 2), (1, 2)], None),
        ([(0, 1)] * 4, None),
        (
            [(0, 2), (0, 2), (1, 4), (1, 2)],
            "agree on the data world size: got 4 on rank 2, expected 2 as on rank 0",
        ),
        ([(0, 4), (0, 4), (2, 4), (2, 4)], "no rank reads the rows of data rank 1, 3: got the data ranks 0, 0, 2, 2"),
    ],
)
def test_all_data_ranks_are_read(data_ranks: list[tuple[int, int]], message: str | None):
    """Ranks that are copies of each other agree; rows that nobody would read are an error on all of them."""
    hellos = [hello_of(number, *place) for number, place in enumerate(data_ranks)]
    check(outcomes([lambda _: ANSWER] * 4, hellos=hellos), [ANSWER] * 4, message)


DENSE, SPARSE = ColumnGroup(name="price (1)", digest="d1"), ColumnGroup(name="hist (2)", digest="d2")


@pytest.mark.parametrize(
    ("groups", "data_ranks", "message"),
    [
        ([DENSE, DENSE, SPARSE, SPARSE], [(0, 2), (1, 2)] * 2, None),
        ([SPARSE, DENSE, DENSE, DENSE], [(0, 1), (0, 3), (1, 3), (2, 3)], None),
        ([None, DENSE, None, SPARSE], [(0, 2), (0, 1), (1, 2), (0, 1)], None),
        (
            [SPARSE, DENSE, SPARSE, replace(DENSE, digest="d3")],
            [(0, 1)] * 4,
            "agree on the column group price (1): got d3 on rank 3, expected d1 as on rank 1",
        ),
        (
            [DENSE, SPARSE, DENSE, SPARSE],
            [(0, 4), (1, 4), (2, 4), (3, 4)],
            "no rank of the column group price (1) reads the rows of data rank 1, 3: got the data ranks 0, 2, expected",
        ),
        (
            [DENSE, DENSE, SPARSE, SPARSE],
            [(0, 2), (1, 2), (0, 1), (0, 2)],
            "the ranks of the column group hist (2) do not agree on the data world size: got 2 on rank 3, expected 1",
        ),
        ([None, None, DENSE, DENSE], [(0, 2), (0, 2), (0, 1), (0, 1)], "no rank reads the rows of data rank 1: got"),
    ],
)
def test_each_column_group_has_one_digest_and_reads_all_rows(
    groups: list[ColumnGroup | None], data_ranks: list[tuple[int, int]], message: str | None
):
    """Ranks may read different groups of one plan, in worlds of different sizes."""
    hellos = [hello_of(number, *place) for number, place in enumerate(data_ranks)]
    answers = [answer_with(column_group=group, snapshot="s1", plan="p1") for group in groups]
    plans = [lambda _, answer=answer: answer for answer in answers]
    check(outcomes(plans, hellos=hellos), answers, message)


def test_planning_may_take_longer_than_the_stores_timeout():
    """A store ends a wait after its timeout, as a process group a collective call; nobody waits in either."""
    store = c10d.HashStore()
    store.set_timeout(timedelta(milliseconds=1))
    others_wait = threading.Event()

    def slow(_: Hello) -> Answer:
        assert others_wait.wait(PATIENCE_S)
        return ANSWER

    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if sum(pauses) > 0.1:
            others_wait.set()
        threading.Event().wait(0.001)

    with ThreadPoolExecutor(2) as pool:
        hellos = [Hello(rank=rank, world_size=2) for rank in range(2)]
        leader = pool.submit(agree_on_plan, store, slow, hellos[0])
        other = pool.submit(agree_on_plan, store, lambda _: ANSWER, hellos[1], pause=pause)
        assert leader.result(PATIENCE_S) == other.result(PATIENCE_S) is ANSWER


@pytest.mark.parametrize(
    ("rank", "facts", "message"),
    [
        (1, {"plan": "p2"}, "do not agree on the plan: got p2 on rank 1, expected p1 as on rank 0"),
        (2, {"features": "f2"}, "do not agree on the features: got f2 on rank 2, expected f1 as on rank 0"),
    ],
)
def test_every_rank_gets_the_error_of_differing_plans(rank: int, facts: dict[str, str], message: str):
    plans: list[Open] = [lambda _: ANSWER] * 3
    plans[rank] = lambda _: answer_with(**facts)
    for error in outcomes(plans):
        assert isinstance(error, PlanError)
        assert message in str(error)


def failing(error: BaseException) -> Open:
    def plan(_: Hello) -> Answer:
        raise error

    return plan


@pytest.mark.parametrize("rank", [0, 2])
def test_every_rank_gets_the_error_of_one(rank: int):
    plans: list[Open] = [lambda _: ANSWER] * 3
    plans[rank] = failing(SpecError("no such column"))
    for error in outcomes(plans):
        assert isinstance(error, SpecError)
        assert str(error) == ("no such column" if rank == 0 else f"rank {rank}: no such column")


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupted_rank_ends_the_others_waits(rank: int):
    plans: list[Open] = [lambda _: ANSWER] * 3
    plans[rank] = failing(KeyboardInterrupt())
    found = outcomes(plans)
    assert isinstance(found.pop(rank), KeyboardInterrupt)
    for error in found:
        assert isinstance(error, FeederError)
        assert "stopped by KeyboardInterrupt" in str(error)


def test_the_log_names_the_ranks_that_are_missing(caplog: pytest.LogCaptureFixture):
    now = [0.0]

    def pause(_: float) -> None:
        now[0] += 59.0

    store = c10d.HashStore()
    store.set("feedline/1/2", json.dumps({"snapshot": "s1", "lanes": 3, "plan": "p1", "features": "f1"}))
    with pytest.raises(PlanError, match=r"did not agree on a plan: waited 86\d\d\d s for ranks 1, 3 to plan"):
        agree_on_plan(store, lambda _: ANSWER, HELLO, pause=pause, now_s=lambda: now[0])
    assert "waited 118 s for ranks 1, 3 to plan" in caplog.text


def test_a_lost_store_is_an_error():
    class Gone(c10d.HashStore):
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection was likely closed")

    with pytest.raises(FeedlineError, match=r"the store of torch\.distributed does not answer: Connection was"):
        agree_on_plan(Gone(), lambda _: ANSWER, replace(HELLO, rank=1))


@pytest.mark.parametrize("backend", ["mpi", "fake"])
@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_store_the_feeders_agree(backend: str, rank: int, monkeypatch: pytest.MonkeyPatch):
    """PyTorch's wheels come without MPI; "fake" holds the same empty `Store` in its place."""
    asked: list[Hello] = []

    class Client:
        def open(self, hello: Hello) -> str:
            asked.append(hello)
            return "answer"

    c10d.init_process_group("fake", rank=rank, world_size=2)
    try:
        monkeypatch.setattr(c10d, "get_backend", lambda: backend)
        with pytest.raises(RuntimeError, match="pure virtual"):
            c10d.distributed_c10d._get_default_store().add("key", 1)
        hello = Hello(rank=rank, world_size=2)
        assert open_plan(Client(), hello, None) == "answer"
    finally:
        c10d.destroy_process_group()
    assert asked == [hello], "as without torch.distributed: each rank's feeder looks into work_dir"
