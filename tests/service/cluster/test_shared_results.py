"""Results of workers on the feeder's host come in shared memory, once, whole, and else as those of other hosts."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from distributed import LocalCluster
from pipelines import descendants, eventually
from schedulers import connected, local_cluster
from streams import Stream

from feedline import Pipeline
from feedline.blocks.compute import pack_block, run_block
from feedline.blocks.request import BlockResult
from feedline.config.cluster_section import ClusterSpec
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.loader.wire.facts import BlockStats
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block
from feedline.service.cluster import shared_results
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.cluster.shared_results import SharedResults, WorkerSeat, seat_at
from feedline.service.feeder.delivery import Delivery, StreamBlocks
from feedline.service.feeder.window import Window, WindowLimits
from feedline.service.pool import segments
from feedline.workbench.generate.generate import clicks_pipeline

NO_TIMES = BlockTimes(read_s=0.1, transform_s=0, encode_s=0)


def result(key: str, values: Any = 7) -> BlockResult:
    parts = (np.full(100_000, values),)
    return BlockResult(key=key, rows=1, parts=parts, image=None, times=NO_TIMES, nbytes_read=0, quality=None)


def mapped(pid: int | str = "self") -> int:
    """Segments that a process maps."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:feedline-block")


class Place:
    """A feeder's end, a thread as a worker's, and what has arrived."""

    def __init__(self) -> None:
        self.shared = SharedResults()
        self.worker = ThreadPoolExecutor(1)
        self.arrived: list[tuple[str, Any]] = []

    @property
    def address(self) -> bytes:
        assert self.shared.address is not None
        return self.shared.address

    def seat(self) -> WorkerSeat | None:
        return self.worker.submit(seat_at, self.address).result()

    def expect(self, key: str) -> Any:
        return self.shared.expect(key, lambda key, outcome: self.arrived.append((key, outcome)))

    def send(self, value: BlockResult) -> None:
        """Hand a result over, and take it."""
        seat = self.seat()
        assert seat is not None
        self.worker.submit(seat.hand_over, value).result()
        self.shared.advance()

    def taken(self) -> list[tuple[str, int]]:
        """Keys and values of what has arrived, which is forgotten."""
        found = [(key, int(outcome.parts[0].sum()) // 100_000) for key, outcome in self.arrived]
        self.arrived.clear()
        return found

    def close(self) -> None:
        self.shared.close()
        assert eventually(lambda: not shared_results._SEATS._seats)
        self.worker.shutdown()


@pytest.fixture
def place() -> Iterator[Place]:
    with closing(Place()) as place:
        yield place


def test_a_result_arrives_before_its_task_ends_for_all_that_expect_it(place: Place):
    for _ in range(2):
        place.expect("a")
    place.send(result("a", 3))
    [(_, one), (_, other)] = place.arrived
    assert one is other
    assert not one.parts[0].flags.owndata
    assert one.nbytes == result("a").nbytes, "as the worker counts it"
    assert mapped() == 2
    assert place.taken() == [("a", 3)] * 2


def test_segments_are_used_again_once_nobody_sees_their_results(place: Place):
    poll = select.poll()
    poll.register(place.shared.fileno(), select.POLLIN)
    for number in range(20):
        place.expect(f"{number}")
        if number == 10:
            held = place.arrived[0][1]
        if len(place.arrived) == 2:
            del place.arrived[0]
        place.send(result(f"{number}", number))
        assert poll.poll(0) == []
    assert mapped() == 2 * 4, "two that have arrived, a held one, and the one that is written meanwhile"
    assert int(held.parts[0][-1]) in range(20)


def test_what_nobody_expects_any_more_is_dropped(place: Place):
    expected = place.expect("a")
    assert place.shared.settle(expected)
    assert not place.shared.settle(expected)
    for _ in range(4):
        place.send(result("a"))
        place.shared.advance()
    assert place.arrived == []
    assert mapped() == 2


def test_where_nobody_listens_it_is_tried_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    tries: list[bytes] = []
    connect = shared_results._connect
    monkeypatch.setattr(shared_results, "_connect", lambda address: tries.append(address) or connect(address))
    address = os.urandom(28)
    with ThreadPoolExecutor(2) as threads:
        assert [threads.submit(seat_at, address).result() for _ in range(8)] == [None] * 8
    assert tries == [address]
    assert caplog.text == ""


def test_another_user_gets_nothing(place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    with monkeypatch.context() as patch:
        patch.setattr(shared_results, "_user", lambda connection: os.geteuid() + 1)
        assert [place.seat() for _ in range(3)] == [None] * 3
        place.shared.advance()
    assert caplog.text.count("it belongs to another user") == 1
    assert place.shared._seats == {}


@pytest.mark.parametrize("wrong", [0, 15])
def test_a_worker_that_got_no_task_is_parted_with(place: Place, wrong: int):
    address = bytearray(place.address)
    address[shared_results._NAME_BYTES + wrong] ^= 1
    seat = place.worker.submit(seat_at, bytes(address)).result()
    place.expect("a")
    place.worker.submit(seat.hand_over, result("a")).result()
    place.shared.advance()
    assert place.arrived == []
    assert eventually(lambda: not seat.is_open)
    assert place.worker.submit(seat_at, bytes(address)).result() is None


def test_a_worker_of_another_wire_version_finds_nobody(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_results, "WIRE_VERSION", 10_000)
    assert place.seat() is None


def test_without_memory_to_share_results_travel_otherwise(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def forbidden(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    for key in "ab":
        place.expect(key)
    seat = place.seat()
    for key in "ab":
        place.worker.submit(seat.hand_over, result(key)).result()
    place.shared.advance()
    assert place.taken() == []
    assert place.seat() is None
    assert caplog.text.count("Operation not permitted") == 1


def test_without_descriptors_results_travel_otherwise(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Or where they may not be passed."""
    expected = place.expect("a")
    monkeypatch.setattr(segments.socket, "send_fds", lambda connection, data, *_: connection.sendall(data[0]))
    place.send(result("a"))
    assert place.arrived == []
    assert not expected.handed_over
    assert "the descriptor did not come" in caplog.text
    assert eventually(lambda: place.seat() is None)


def test_a_door_that_cannot_open_any_more_is_shut(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Who waits there learns of it: its segments must not wait for a feeder that does not see them."""

    class Door:
        def __init__(self, door: Any) -> None:
            self.fileno, self.close = door.fileno, door.close

        def accept(self) -> Any:
            raise OSError(errno.EMFILE, "Too many open files")

    place.shared._door = Door(place.shared._door)
    seat = place.seat()
    place.shared.advance()
    assert "Too many open files" in caplog.text
    assert place.shared.address is None
    assert eventually(lambda: not seat.is_open)


def test_a_feeder_that_takes_nothing_holds_nobody_up(place: Place, monkeypatch: pytest.MonkeyPatch):
    """It is stopped: heads of results wait in the socket, and no worker waits for long."""
    monkeypatch.setattr(shared_results, "_SEND_S", 1)
    seat = place.seat()

    def send() -> None:
        while seat.is_open:
            seat.hand_over(result("a", 1))
            seat._writer.segments.release(range(1))  # else they take the machine's memory

    place.worker.submit(send).result(60)


# -- deaths -------------------------------------------------------------------------------------------------------


WORKER = """
import os, signal, sys
import numpy as np
from feedline.blocks.request import BlockResult
from feedline.service.cluster.shared_results import seat_at
from feedline.service.pool.segments import Packed

def torn(packed, target):
    target[: packed.nbytes // 2] = 1
    os.kill(os.getpid(), signal.SIGKILL)

seat = seat_at(bytes.fromhex(sys.argv[1]))
parts = (np.full(100_000, 7),)
result = lambda key: BlockResult(
    key=key, rows=1, parts=parts, image=None, times=None, nbytes_read=0, quality=None)
seat.hand_over(result("whole"))
Packed.write = torn
seat.hand_over(result("torn"))
"""


def test_a_worker_killed_while_it_writes_leaves_what_it_had_handed_over(place: Place):
    for key in ("whole", "torn"):
        place.expect(key)
    worker = subprocess.run([sys.executable, "-c", WORKER, place.address.hex()], timeout=120, check=False)
    assert worker.returncode == -signal.SIGKILL
    place.shared.advance()
    place.shared.advance()
    assert place.shared._seats == {}
    assert place.taken() == [("whole", 7)]
    assert mapped() == 0


FEEDER = """
import sys, time
from feedline.service.cluster.shared_results import SharedResults

shared, held = SharedResults(), []
for key in "abc":
    shared.expect(key, lambda key, result: held.append(result))
print(shared.address.hex(), flush=True)
while len(held) < 3:
    shared.advance()
    time.sleep(0.01)
print("all", flush=True)
sys.stdin.read()
"""


def test_a_killed_feeder_leaves_no_segments():
    """Also those of threads that have nothing to do."""
    command = [sys.executable, "-c", FEEDER]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as feeder,
        ThreadPoolExecutor(2) as threads,
    ):
        try:
            address = bytes.fromhex(feeder.stdout.readline().decode())

            def work(key: str) -> None:
                seat = seat_at(address)
                assert seat is not None
                seat.hand_over(result(key))

            [*threads.map(work, "abc")]
            assert feeder.stdout.readline() == b"all\n"
            assert mapped() == 3
        finally:
            feeder.kill()
        assert eventually(lambda: not mapped())
        assert threads.submit(seat_at, address).result() is None


# -- Dask ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalCluster]:
    with local_cluster(workers=2) as cluster:
        yield cluster


@pytest.fixture
def fetched(workers: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are fetched from workers."""
    keys: list[str] = []
    for worker in workers.workers.values():
        answer = worker.handlers["get_data"]

        async def get_data(comm: Any, keys_of: Callable[..., Any] = answer, **options: Any) -> Any:
            keys.extend(options["keys"])
            return await keys_of(comm, **options)

        monkeypatch.setitem(worker.handlers, "get_data", get_data)
    return keys


def test_nothing_is_fetched_of_workers_on_this_host(
    workers: LocalCluster, fetched: list[str], monkeypatch: pytest.MonkeyPatch
):
    """And nothing is left of their tasks."""
    with connected(workers) as cluster:
        stream = Stream(cluster, monkeypatch, lambda index, key: index * index)
        delivery = stream.open("near", 40)
        assert stream.read(delivery, range(40)) == [index * index for index in range(40)]
        assert (delivery.stats.blocks, delivery.stats.resubmitted) == (40, 0)
        assert delivery.stats.nbytes_encoded == 40 * 8
        delivery.close()
        assert eventually(lambda: not workers.scheduler.tasks)
        assert cluster._shared._expected == {}
        ended = workers.scheduler.task_prefixes["feedline-block-near"].state_counts
        assert ended["forgotten"] == 40
    assert fetched == []


def test_a_result_that_was_lost_on_its_way_is_fetched(
    workers: LocalCluster, fetched: list[str], monkeypatch: pytest.MonkeyPatch
):
    hand_over = WorkerSeat.hand_over

    def lose(seat: WorkerSeat, value: BlockResult) -> None:
        if "-b3-" in value.key or "-b9-" in value.key:
            seat.close()
        hand_over(seat, value)

    monkeypatch.setattr(WorkerSeat, "hand_over", lose)
    with connected(workers) as cluster:
        stream = Stream(cluster, monkeypatch, lambda index, key: index)
        delivery = stream.open("lossy", 12)
        assert stream.read(delivery, range(12)) == list(range(12))
        assert delivery.stats.resubmitted == 0
        delivery.close()
    assert any("-b3-" in key for key in fetched)


def test_feeders_that_share_a_task_get_it_each_in_its_way(workers: LocalCluster, monkeypatch: pytest.MonkeyPatch):
    begun, release, calls = threading.Semaphore(0), threading.Event(), []

    def work(index: int, key: str) -> int:
        calls.append(key)
        begun.release()
        assert release.wait(60)
        return index

    with connected(workers) as one, connected(workers) as two:
        streams = [Stream(each, monkeypatch, work) for each in (one, two)]
        deliveries = [stream.open("shared", 2) for stream in streams]
        deliveries[0].pump(0)
        begun.acquire()
        deliveries[1].pump(0)
        assert eventually(lambda: all(len(task.who_wants) == 2 for task in [*workers.scheduler.tasks.values()]))
        release.set()
        for stream, delivery in zip(streams, deliveries, strict=True):
            assert stream.read(delivery, range(2)) == [0, 1]
            delivery.close()
    assert len(calls) == len(set(calls)) == 2


@pytest.fixture
def plan(clicks: Path, tmp_path: Path) -> Plan:
    path = tmp_path / "pipeline.yaml"
    shape: dict[str, Any] = {"dense": 4, "ids": 4, "histories": 2, "batch_size": 256}
    path.write_text(clicks_pipeline(str(clicks), work_dir=str(tmp_path), tail="partial", **shape))
    return Pipeline.from_yaml(path, {"source.split_rows": 1024, "shuffle.window_rows": 2048}).plan()


@pytest.mark.nightly
def test_workers_die_and_stop_and_the_blocks_are_the_same(plan: Plan):
    """Real processes: one is killed, and another one stopped, while results of theirs are in the feeder."""
    before = set(descendants())

    def using() -> list[int]:
        """Workers that have handed blocks over."""
        return [pid for pid in descendants() if pid not in before and mapped(pid)]

    stopped: list[psutil.Process] = []
    kept: list[tuple[Block, tuple[Rows, ...]]] = []
    for block, rows in _delivered(plan):
        kept.append((block, rows))
        if len(kept) == 2:
            assert len(using()) == 2
            os.kill(using()[0], signal.SIGKILL)
        if len(kept) == 5:
            stopped.append(psutil.Process(using()[0]))
            stopped[0].suspend()
        if len(kept) == 6:
            stopped[0].resume()
    assert len(kept) > 6
    for block, rows in kept:
        expected = run_block(plan.source.job, plan.request(block, 0), "k", True)
        assert pack_block(plan.layout, rows) == expected.image
    del rows, kept
    assert eventually(lambda: not mapped())


def _delivered(plan: Plan) -> Iterator[tuple[Block, tuple[Rows, ...]]]:
    """The blocks of an epoch, by two worker processes."""
    spec = ClusterSpec(workers=2, threads=1, dashboard=False)
    with contextlib.closing(open_cluster(ClusterRequest(spec, threads=1))) as cluster:
        cluster.check_workers()
        cluster.check_job(plan.source.job)
        window = Window(WindowLimits(open_blocks=1, memory_bytes=1 << 30, fixed_blocks=6))
        stream = StreamBlocks.of(plan, 0, range(1))
        delivery = Delivery(cluster, stream, window=window, wake=lambda: None, stats=BlockStats())
        with closing(delivery):
            for block in plan.schedule(0).blocks_of(range(1), first_step=0):
                delivery.pump(block.first_step)

                def arrived(index: int = block.index) -> Any:
                    cluster.look(waiting=True)
                    delivery.look(starved=True)  # of a stopped worker, others compute the blocks
                    return delivery.get(0, index)

                rows = eventually(arrived)
                assert rows is not None
                yield block, rows
                delivery.drop(block.first_step - 1)
        cluster.client.wait_for_workers(2, timeout=60)  # the killed one's successor, which Dask would leave behind
