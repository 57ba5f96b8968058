"""A stream's blocks arrive despite failures of scheduler, workers and tasks; the workers are in this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from distributed import LocalCluster, get_worker
from distributed.comm import CommClosedError
from loop_waits import no_waits
from pipelines import PATIENCE_S, eventually
from schedulers import local_cluster
from streams import Stream, hedged, missing, run, window

from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError, DataError, FeedlineError
from feedline.service.cluster import attempts
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.task_places import TaskPlaces
from feedline.service.cluster.worker_checks import check_workers
from feedline.service.feeder.delivery import Delivery


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalCluster]:
    """A scheduler and three workers with a thread each, reached over TCP as if they were elsewhere."""
    with local_cluster(workers=3) as cluster:

        async def beat() -> None:
            await asyncio.gather(*(worker.heartbeat() for worker in cluster.workers.values()))
            await cluster.scheduler.broadcast(msg={"op": "identity"})

        cluster.sync(beat)  # opens the connections that a worker keeps: a test must not seem to leave them behind
        yield cluster


@pytest.fixture
def cluster(workers: LocalCluster) -> Iterator[Cluster]:
    with contextlib.closing(
        open_cluster(ClusterRequest(ClusterSpec(scheduler=workers.scheduler_address, wait_s=30), threads=1))
    ) as cluster:
        cluster.client.wait_for_workers(3, timeout=30)
        cluster._shared.address = None  # they are on this host
        yield cluster


def test_a_closed_client_is_replaced(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Dask's client closes when its scheduler is away for ten seconds: blocks wait until there is another."""
    stream = Stream(cluster, monkeypatch, lambda index, key: index * index)
    delivery = stream.open("given-up", 20)
    assert stream.read(delivery, range(5)) == [0, 1, 4, 9, 16]
    cluster.client.close()
    assert not cluster.alive()
    assert cluster.threads() >= 1
    delivery.drop(5)
    delivery.pump(6)
    assert delivery.get(0, 9) is None
    assert stream.read(delivery, range(6, 20)) == [n * n for n in range(6, 20)]
    assert cluster.connection.number == 1
    delivery.close()


def test_a_lost_scheduler_is_an_error_once_the_trainer_waits(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    seconds = iter(range(1000))
    cluster.connection._clock = lambda: float(next(seconds))
    monkeypatch.setattr(cluster.connection, "_find_scheduler", lambda: None)
    cluster.client.close()
    for _ in range(50):
        cluster.look(waiting=False)
    for _ in range(30):
        cluster.look(waiting=True)
    with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {cluster._spec.scheduler}: got none for 30"):
        cluster.look(waiting=True)


# -- workers that are slow, dark or broken ------------------------------------------------------------------------


def here() -> str:
    """Which worker runs this."""
    return str(get_worker().address)


def settled(stream: Stream, delivery: Delivery, count: int) -> bool:
    """Whether so many blocks arrive."""

    def arrived() -> bool:
        delivery.look()
        return delivery.stats.blocks >= count

    return bool(eventually(arrived))


def test_an_unresponsive_worker_delays_only_its_own_blocks(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """Its blocks are finished, and cannot be fetched: six of eighteen, more than a client fetches at once."""
    dark = workers.workers[0]
    light = asyncio.Event()
    answer = dark.handlers["get_data"]

    async def get_data(comm: Any, **options: Any) -> Any:  # Dask looks at the first argument's name
        await light.wait()
        return await answer(comm, **options)

    monkeypatch.setitem(dark.handlers, "get_data", get_data)
    stream = Stream(cluster, monkeypatch, lambda index, key: here())
    delivery = stream.open("dark", 18, window=window(open_blocks=18))
    delivery.pump(0)
    assert eventually(lambda: sum(len(worker.data) for worker in workers.workers.values()) == 18), "all are finished"
    of_others = 18 - len(dark.data)
    assert 0 < len(dark.data) < 18
    assert settled(stream, delivery, of_others)
    dark.loop.add_callback(light.set)
    assert settled(stream, delivery, 18)
    delivery.close()


def test_a_block_that_hangs_is_computed_elsewhere_once_it_is_needed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Another attempt's result wins; what the first one makes later goes nowhere."""
    hangs, places = {2: threading.Event(), 3: threading.Event()}, {}

    def work(index: int, key: str) -> str:
        if index in hangs:
            places.setdefault(index, []).append(here())
            if len(places[index]) == 1:
                hangs[index].wait(PATIENCE_S)
                return "late"
        return "first"

    stream = Stream(cluster, monkeypatch, work)
    now_s = [100.0]
    delivery = stream.open("hang", 10, clock=lambda: now_s[0])
    assert stream.read(delivery, range(2)) == ["first"] * 2
    delivery.pump(2)
    assert eventually(lambda: len(places) == 2)
    assert settled(stream, delivery, 4)
    now_s[0] += 29
    delivery.look(starved=True)
    now_s[0] += 2
    delivery.look(starved=False)
    assert delivery.stats.resubmitted == 0, "not yet; not while the trainer has something to do"
    assert hedged(delivery)
    with no_waits():
        delivery.look(starved=True)
    assert delivery.stats.resubmitted == 1, "once; the other one is not needed"
    assert stream.read(delivery, range(2, 3)) == ["first"]
    hangs[2].set()  # its worker may be the one that computes the next block
    assert stream.read(delivery, range(3, 4)) == ["first"]
    hangs[3].set()
    assert stream.read(delivery, range(4, 10)) == ["first"] * 6
    assert delivery.stats.blocks == 10
    assert all(first != second for first, second in places.values())
    assert "it is also computed on another worker" in caplog.text
    delivery.close()


@pytest.mark.parametrize("uniform", [True, False])
def test_a_worker_is_excluded_only_if_others_computed_blocks_meanwhile(
    uniform: bool, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """A store that stalls for all: the second attempt may finish first, and says nothing of the first one's worker."""
    hang, excluded, places = threading.Event(), [], []

    def work(index: int, key: str) -> str:
        if index == 2:
            places.append(here())
            if uniform or len(places) == 1:
                hang.wait(PATIENCE_S)
        return here()

    monkeypatch.setattr(cluster, "exclude", lambda worker, why: excluded.append(worker))
    stream = Stream(cluster, monkeypatch, work)
    now_s = [100.0]
    delivery = stream.open("stall", 6, clock=lambda: now_s[0], window=window(fixed_blocks=1))
    stream.read(delivery, range(2))
    delivery.pump(2)
    assert eventually(lambda: len(places) == 1)
    if not uniform:
        now_s[0] += 2
        delivery.pump(3)
        assert settled(stream, delivery, 3)
    now_s[0] += 31
    assert hedged(delivery)
    assert eventually(lambda: len(places) == 2)
    if not uniform:
        assert settled(stream, delivery, 4)
    hang.set()
    stream.read(delivery, range(2, 6))
    assert excluded == ([] if uniform else [places[0]])
    delivery.close()


def test_nothing_is_computed_twice_where_there_is_one_worker(monkeypatch: pytest.MonkeyPatch):
    hang, calls = threading.Event(), []

    def work(index: int, key: str) -> int:
        calls.append(key)
        hang.wait(9)
        return index

    with contextlib.closing(open_cluster(ClusterRequest(ClusterSpec(threads=2), threads=2))) as cluster:
        cluster.check_workers()
        stream = Stream(cluster, monkeypatch, work)
        now_s = [0.0]
        delivery = stream.open("alone", 2, clock=lambda: now_s[0])
        delivery.pump(0)
        assert eventually(lambda: len(calls) == 2)
        now_s[0] = 1000.0
        for _ in range(2):  # the second finds the answer of the first
            delivery.look(starved=True)
            concurrent.futures.wait([] if delivery._places is None else [delivery._places], PATIENCE_S)
        hang.set()
        assert stream.read(delivery, range(2)) == [0, 1]
        assert (len(calls), delivery.stats.resubmitted) == (2, 0)
        delivery.close()


def test_a_block_that_is_dropped_before_it_is_there_is_not_held(monkeypatch: pytest.MonkeyPatch):
    """Resumed at an epoch's last step, a trainer needs no row of a block whose last rows `tail: drop` leaves out."""
    hang, begun = threading.Event(), threading.Event()

    def work(index: int, key: str) -> int:
        begun.set()
        hang.wait(PATIENCE_S)
        return index

    with contextlib.closing(open_cluster(ClusterRequest(ClusterSpec(threads=1), threads=1))) as cluster:
        tasks = cluster._tasks._entries
        delivery = Stream(cluster, monkeypatch, work).open("late", 1)
        delivery.pump(0)
        assert begun.wait(PATIENCE_S)
        dropped = delivery._work[0, 0]
        held = len(tasks)
        delivery._unsubmitted.append(dropped)  # as if it had failed, and waited for its next attempt
        delivery.drop(0)
        delivery.look()
        left = dict(tasks)
        hang.set()
        delivery.close()
    assert (held, left, dropped.submissions) == (1, {}, 1)


def test_trainers_that_read_the_same_lanes_share_blocks(monkeypatch: pytest.MonkeyPatch):
    """A block is computed once as long as one of them has not dropped it, even if the first has received it already."""
    calls: list[int] = []

    def work(index: int, key: str) -> int:
        calls.append(index)
        return index

    with contextlib.closing(open_cluster(ClusterRequest(ClusterSpec(threads=2), threads=2))) as cluster:
        cluster.check_workers()
        stream = Stream(cluster, monkeypatch, work)
        first, second = (stream.open("shared", 8) for _ in range(2))
        first.pump(0)
        assert eventually(lambda: all(first.get(0, index) is not None for index in range(2)))
        for step in range(8):
            assert stream.read(second, range(step, step + 1)) == [step]
            assert stream.read(first, range(step, step + 1)) == [step]
        assert sorted(calls) == list(range(8))
        assert stream.read(stream.open("shared", 8), range(1)) == [0]
        assert calls.count(0) == 2, "both had dropped it"
        first.close()
        second.close()


def test_a_bad_worker_gets_no_blocks_for_a_while(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    bad, failed = workers.workers[1].address, []

    def work(index: int, key: str) -> int:
        if here() == bad:
            failed.append(index)
            raise DataError("bits rot")
        return index

    stream = Stream(cluster, monkeypatch, work)
    delivery = stream.open("bad", 60)
    assert stream.read(delivery, range(12)) == list(range(12))
    before = len(failed)
    assert 0 < before <= 4, "those that were in flight when the first one failed"
    assert stream.read(delivery, range(12, 60)) == list(range(12, 60))
    assert len(failed) == before
    assert caplog.text.count("gets no blocks for 300 s") == 1
    assert bad in caplog.text
    delivery.close()


def refuse(errors: dict[str, Exception], dask_worker: Any) -> None:
    """Instead of a check of versions or artifacts."""
    if dask_worker.address in errors:
        raise errors[dask_worker.address]


def examine(cluster: Cluster, errors: dict[str, Exception]) -> None:
    check_workers(cluster.client, refuse, errors, cluster.exclude)


def test_workers_that_fail_a_check_are_excluded(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    unfit, leaving, fit = (worker.address for worker in workers.workers.values())
    examine(cluster, {leaving: CommClosedError("closed")})
    assert cluster.eligible_workers() is None, "a worker that leaves meanwhile is no error, and has done nothing wrong"
    examine(cluster, {unfit: ClusterError("another numpy"), leaving: CommClosedError("closed")})
    examine(cluster, {unfit: ClusterError("another numpy")})
    assert cluster.eligible_workers() == {leaving, fit}
    assert caplog.text.count("another numpy") == 1
    stream = Stream(cluster, monkeypatch, lambda index, key: here())
    delivery = stream.open("checked", 12)
    assert unfit not in stream.read(delivery, range(12))
    assert unfit not in set(cluster.map(lambda _: here(), list(range(6))))
    delivery.close()
    with pytest.raises(ClusterError, match="another numpy"):
        examine(cluster, dict.fromkeys((unfit, leaving, fit), ClusterError("another numpy")))


def test_an_unfit_worker_is_excluded_at_once_and_is_an_error_if_there_is_no_other(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    bad, failed = {workers.workers[2].address}, []

    def work(index: int, key: str) -> int:
        if here() in bad:
            failed.append(index)
            raise ClusterError("another polars")
        return index

    stream = Stream(cluster, monkeypatch, work)
    delivery = stream.open("unfit", 40)
    assert stream.read(delivery, range(20)) == list(range(20))
    assert 0 < len(failed) <= 4
    bad |= {worker.address for worker in workers.workers.values()}
    with pytest.raises(ClusterError, match=r"^another polars$"):
        stream.read(delivery, range(20, 40))
    delivery.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DataError("a null in row 7"), r"^a null in row 7$"),
        (KeyError("a bug"), r"block twice-KeyError-l0-b3 failed on .*: KeyError: 'a bug'$"),
    ],
)
def test_an_error_on_two_workers_is_the_blocks(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
):
    failed = []

    def work(index: int, key: str) -> int:
        if index == 3:
            failed.append(here())
            raise error
        return index

    stream = Stream(cluster, monkeypatch, work)
    delivery = stream.open(f"twice-{type(error).__name__}", 10)
    raised = type(error) if isinstance(error, FeedlineError) else ClusterError
    with pytest.raises(raised, match=expected):
        stream.read(delivery, range(10))
    assert len(failed) == len(set(failed)) == 2
    delivery.close()


def test_an_error_of_a_later_block_is_raised_when_it_is_needed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Whichever block is done first: the steps before it are delivered, and asked again it is an error again."""
    failed = threading.Event()

    def work(index: int, key: str) -> int:
        if index == 2:
            raise DataError("no rows there")
        assert index or failed.wait(timeout=30)  # the other worker confirms the error
        return index

    stream = Stream(cluster, monkeypatch, work)
    delivery = stream.open("later", 6)
    delivery.pump(0)
    eventually(lambda: delivery.get(0, 0) is None and delivery._work[0, 2].error)
    failed.set()
    assert stream.read(delivery, range(2)) == [0, 1]
    for _ in range(2):
        with pytest.raises(DataError, match="no rows there"):
            stream.read(delivery, range(2, 3))
    delivery.close()


def test_a_block_restricted_to_departed_workers_is_resubmitted(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """It was bound to workers that have left since."""
    stream = Stream(cluster, monkeypatch, lambda index, key: index)
    delivery = stream.open("bound", 3)
    gone = frozenset({"tcp://127.0.0.1:1"})
    monkeypatch.setattr(cluster, "eligible_workers", lambda: gone)
    delivery.pump(0)
    monkeypatch.undo()
    monkeypatch.setattr(attempts, "run_block", run)
    assert delivery.get(0, 0) is None
    assert stream.read(delivery, range(3)) == [0, 1, 2]
    assert delivery.stats.resubmitted >= 1
    delivery.close()


# -- windows and priorities ---------------------------------------------------------------------------------------


def test_the_window_follows_the_workers_without_calls_to_the_scheduler(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """As many blocks as one call of `pump` submits, epochs long; the client hears of the totals by itself."""
    asked = []
    for name in ("identity", "ncores"):
        answer = workers.scheduler.handlers[name]

        def counted(*arguments: Any, name: str = name, answer: Any = answer, **options: Any) -> Any:
            asked.append((name, options.get("n_workers", 0)))
            return answer(*arguments, **options)

        monkeypatch.setitem(workers.scheduler.handlers, name, counted)
    stream = Stream(cluster, monkeypatch, lambda index, key: index)
    delivery = stream.open("window", 400, window=window())
    delivery.pump(0)
    assert delivery._window.in_flight == 3, "one per thread, before anybody knows how large they are"
    assert stream.read(delivery, range(40)) == list(range(40))
    assert delivery._window.in_flight == 1 + 3 - 1
    monkeypatch.setattr(cluster.connection, "_totals", lambda: {"n_workers": 12, "total_threads": 12})
    delivery.pump(40)
    assert delivery._window.in_flight == 1 + 12
    fast = {"threads": 12, "step_s": 1e-9, "blocks_per_step": 1.0, "held_bytes": 0, "available_bytes": 1 << 40}
    assert delivery._window.observe(**fast) is not None
    delivery.pump(40)
    assert delivery._window.in_flight == 1 + 2 * 12
    assert all(question == ("identity", 0) for question in asked), "totals, every two seconds"
    delivery.close()


def test_a_missing_block_is_described_with_its_worker_and_its_calls(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    release, begun = threading.Event(), threading.Event()

    def stuck_in_a_request(index: int, key: str) -> int:
        if index == 0:
            begun.set()
            release.wait(60)
        return index

    stream = Stream(cluster, monkeypatch, stuck_in_a_request)
    now_s = [0.0]
    delivery = stream.open("stuck", 20, clock=lambda: now_s[0])
    try:
        delivery.pump(0)
        assert begun.wait(30)
        now_s[0] = 73.0
        assert eventually(lambda: "stuck_in_a_request" in missing(delivery, 0))
        text = missing(delivery, 0)
        assert text.startswith("block 0 of lane 0 (day=1/part-0.parquet) is missing\n  submitted 73 s ago, on tcp://")
        assert "block 1 of lane 0" not in text, "the step does not need it"
        ended = cluster.places_of(["a task that has ended"], stacks=True).result(PATIENCE_S)
        assert ended == TaskPlaces({}, {})
    finally:
        release.set()
    delivery.close()


def test_jobs_of_different_ages_share_a_cluster(
    workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """What is needed first is computed first: an old job's next block before a new one's later ones."""
    begin, order = threading.Event(), []
    lock = threading.Lock()

    def work(index: int, key: str) -> int:
        begin.wait(60)
        with lock:
            order.append((key.split("-")[2], index))
        return index

    stream = Stream(cluster, monkeypatch, work)
    everything = window(open_blocks=100)
    assert eventually(lambda: not workers.scheduler.tasks), "what earlier jobs cancelled is gone"
    blocker = stream.open("blocker", 3, window=everything)
    blocker.pump(0)
    assert eventually(lambda: sum(len(worker.state.executing) for worker in workers.workers.values()) == 3)
    old = stream.open("old", 130, window=window(fixed_blocks=30))
    for _ in range(100):
        old.next_block = next(old._stream.blocks)
    new = stream.open("new", 30, window=everything)
    step = old.next_block.first_step
    clock = iter(range(10_000))
    monkeypatch.setattr(cluster, "now_s", lambda: 1e9 + next(clock) * 1e-3)
    old._window.record(0.1, 1)
    new._window.record(0.1, 1)
    old.pump(step, step_s=0.1)  # a step in 0.1 s, a block each
    new.pump(0)  # nobody knows yet
    names = ("-old-", "-new-")
    assert eventually(lambda: sum(any(n in key for n in names) for key in list(workers.scheduler.tasks)) == 60)
    begin.set()
    assert settled(stream, old, 30)
    assert settled(stream, new, 30)
    ran = [name for name, _ in order if name != "blocker"]
    assert "old" in ran[:6], "what it needs now"
    assert ran[:31].count("new") >= 20, "and then what the new one needs, which may be everything"
    assert [index for name, index in order if name == "old"][-1] >= 127, "in the plan's order, but for threads"
    for delivery in (blocker, old, new):
        delivery.close()
