"""Does the dataset iterate, end, hold, recover and refuse as a training loop needs it? Over real feeders."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import psutil
import pytest
import torch
from pipelines import Place, eventually, furnished, image, oracle
from torch.utils.data import DataLoader, IterableDataset

from feedline import FeedlineDataset
from feedline.errors import FeedlineError, PlanError, RingError
from feedline.loader.batch import Batch
from feedline.loader.dataset import SHARED
from feedline.loader.ring.slots import _FIRST_SLOTS

ROWS = 6_666  # of the first day
STEPS = 26  # in batches of 256, the rest dropped


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks / "ds=2026-01-01") as place:
        yield place


@pytest.fixture(scope="module")
def path(place: Place) -> Path:
    return place.write()


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[FeedlineDataset]:
    """One dataset for the tests that leave it as they found it, but for its epoch."""
    with FeedlineDataset(path, set={"cluster.dashboard": True}) as dataset:
        next(iter(dataset))  # from now on the ring is there: no test is blamed for it
        yield dataset


def test_threads_that_share_an_iterator_get_each_batch_once(
    request: pytest.FixtureRequest, shared: FeedlineDataset, epochs: list[list[bytes]]
):
    """One that asks while another waits gets a sentence; it may ask again."""
    request.addfinalizer(partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # threads interrupt each other wherever they can
    shared.set_epoch(0)
    iterator, seen, refused = iter(shared), list[bytes](), list[str]()

    def read() -> None:
        while True:
            try:
                seen.append(image(next(iterator)))
            except StopIteration:
                return
            except FeedlineError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(epochs[0])
    assert set(refused) <= {SHARED}
    shared._reader["thread"] = -1  # another one, which waits
    with pytest.raises(FeedlineError, match=r"two threads read one dataset: got next.. while another thread waits"):
        next(iter(shared))
    shared._reader.clear()


@pytest.fixture(scope="module")
def epochs(path: Path) -> list[list[bytes]]:
    """What the first epochs must hold."""
    return [oracle(path, epoch=epoch) for epoch in range(4)]


def test_one_iter_is_one_epoch_and_the_next_iter_the_next(shared: FeedlineDataset, epochs: list[list[bytes]]):
    shared.set_epoch(0)
    assert len(shared) == STEPS
    for epoch in range(3):
        seen = []
        for step, batch in enumerate(shared):
            assert (batch.epoch, batch.step, batch.rows) == (epoch, step, 256)
            seen.append(image(batch))
        assert seen == epochs[epoch]
    assert len({tuple(each) for each in epochs}) == len(epochs)


def test_batches_copied_ahead_are_those_of_the_plan_and_the_state_counts_those_handed_out(
    path: Path, epochs: list[list[bytes]], monkeypatch: pytest.MonkeyPatch
):
    """Over an interrupt while it reads ahead, a failed copy, and a resume from a state; the copies hold no slot."""
    with FeedlineDataset(path, device="cpu") as dataset:
        stream = iter(dataset)
        held = [next(stream) for _ in range(3 * _FIRST_SLOTS)]
        assert dataset._feed._connection.reader is not None
        assert dataset._feed._connection.reader.held_slots < _FIRST_SLOTS
        monkeypatch.setattr(stream, "_has_waiting", lambda: True)
        held += [next(stream) for _ in range(3)]
        assert dataset._progress.reading > dataset._progress.at
        state = dataset.state_dict()
        assert (state["epoch"], state["step"]) == (0, len(held))

        def interrupt() -> bool:
            raise KeyboardInterrupt

        monkeypatch.setattr(stream, "_has_waiting", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        monkeypatch.undo()
        held.append(next(stream))

        def fail(_: Batch) -> NoReturn:
            raise RuntimeError("out of memory")

        monkeypatch.setattr(dataset._copies, "start", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            held.extend(stream)  # keeps those before the error
        monkeypatch.undo()
        held += list(stream)
        assert [image(batch) for batch in held] == epochs[0]
        with pytest.raises(StopIteration):
            next(stream)
        assert (dataset.state_dict()["epoch"], dataset.state_dict()["step"]) == (1, 0)
        old = iter(dataset)
        next(old)
        dataset.load_state_dict(state)
        with pytest.raises(FeedlineError, match="this iterator was replaced"):
            next(old)
        assert [image(batch) for batch in dataset] == epochs[0][state["step"] :]
        assert [image(batch) for batch in dataset] == epochs[1]


def test_set_epoch_leaves_the_running_iterator_alone(shared: FeedlineDataset, epochs: list[list[bytes]]):
    shared.set_epoch(0)
    seen = []
    for batch in shared:
        seen.append(image(batch))
        if batch.step == 10:
            shared.set_epoch(1)
    assert seen == epochs[0]
    assert [image(batch) for batch in shared] == epochs[1]


def test_set_epoch_overrides(shared: FeedlineDataset, epochs: list[list[bytes]]):
    for epoch in (2, 0):
        shared.set_epoch(epoch)
        assert image(next(iter(shared))) == epochs[epoch][0]
    for wrong in (-1, 1.0, True, "1"):
        with pytest.raises(PlanError, match="epoch must be a non-negative integer"):
            shared.set_epoch(wrong)


def test_after_its_end_an_iterator_stays_at_its_end(shared: FeedlineDataset, epochs: list[list[bytes]]):
    shared.set_epoch(1)
    iterator = iter(shared)
    assert iter(iterator) is iterator
    assert [image(batch) for batch in iterator] == epochs[1]
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(iterator)
    assert image(next(iter(shared))) == epochs[2][0], "asking a finished iterator moves nothing"


def test_an_abandoned_iterator_costs_its_epoch_and_nothing_else(shared: FeedlineDataset, epochs: list[list[bytes]]):
    shared.set_epoch(0)
    for _batch in zip(range(3), shared, strict=False):
        pass
    first = iter(shared)
    assert image(next(first)) == epochs[1][0]
    second = iter(shared)
    with pytest.raises(FeedlineError, match="this iterator was replaced"):
        next(first)
    assert [image(batch) for batch in second] == epochs[2]
    with pytest.raises(FeedlineError, match="this iterator was replaced"):
        next(first)


def test_an_iterator_without_next_uses_up_no_epoch(shared: FeedlineDataset, epochs: list[list[bytes]]):
    """A progress bar, a debugger or a check of types may call iter()."""
    shared.set_epoch(1)
    iter(shared)
    iter(shared)
    assert [image(batch) for batch in shared] == epochs[1]
    iter(shared)
    shared.set_epoch(3)
    iter(shared)
    assert [image(batch) for batch in shared] == epochs[3]
    begun = iter(shared)
    shared.set_epoch(0)
    next(begun)
    assert [image(batch) for batch in shared] == epochs[0]


def test_many_iterators_begun_and_dropped(shared: FeedlineDataset, epochs: list[list[bytes]]):
    for _ in range(30):
        shared.set_epoch(0)
        iter(shared)
    shared.set_epoch(3)
    assert [image(batch) for batch in shared] == epochs[3]


def test_a_loader_of_torch_for_three_epochs(shared: FeedlineDataset, epochs: list[list[bytes]]):
    shared.set_epoch(0)
    loader = DataLoader(shared, batch_size=None)
    assert len(loader) == STEPS
    for epoch in range(3):
        assert [image(batch) for batch in loader] == epochs[epoch]


@pytest.mark.filterwarnings("ignore:Got pickle error when attempting to start a worker")  # by torch, besides ours
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_loader_are_refused_with_the_remedy(
    shared: FeedlineDataset, method: str, monkeypatch: pytest.MonkeyPatch
):
    # A worker of torch that was not told to end looks for it every 5 s.
    monkeypatch.setattr(torch.utils.data._utils.worker, "MP_STATUS_CHECK_INTERVAL", 0.05)
    loader = DataLoader(shared, batch_size=None, num_workers=1, multiprocessing_context=method)
    with pytest.raises((FeedlineError, TypeError), match="num_workers=0"):
        next(iter(loader))
    gc.collect()


def test_a_loader_that_would_batch_again_fails_rather_than_delivers(shared: FeedlineDataset):
    for options in ({}, {"batch_size": 4}, {"batch_size": 4, "collate_fn": list}):
        with pytest.raises(FeedlineError, match=r"must not join batches: .*batch_size=None.*batch\.size"):
            next(iter(DataLoader(shared, **options)))

    class Wrapper(IterableDataset):
        def __iter__(self) -> Iterator[Batch]:
            return iter(shared)

    with pytest.raises(FeedlineError, match=r"cannot be batched again: got 4 .*batch_size=None"):
        next(iter(DataLoader(Wrapper(), batch_size=4)))


def test_a_forked_child_is_refused_and_harms_nothing(shared: FeedlineDataset, epochs: list[list[bytes]]):
    """The child has the dataset, an iterator and a batch; it ends as a program does, finalizers included."""
    shared.set_epoch(0)
    iterator = iter(shared)
    batch = next(iterator)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover -- the child
        said = []
        for use in (lambda: next(iterator), lambda: iter(shared), shared.state_dict):
            try:
                use()
                said.append("used")
            except BaseException as error:
                said.append(f"{type(error).__name__} {'num_workers=0' in str(error)}")
        os.write(write, "; ".join(said).encode())
        batch = iterator = None
        gc.collect()
        weakref.finalize._exitfunc()  # what a normal exit of the interpreter calls
        os._exit(0)
    os.close(write)
    with open(read, "rb") as said:
        answers = said.read().decode()
    os.waitpid(child, 0)
    assert answers == "; ".join(["FeedlineError True"] * 2 + ["used"]), "the state is known: it needs no feeder"
    assert image(batch) == epochs[0][0]
    assert [image(each) for each in iterator] == epochs[0][1:]
    assert Path(shared.facts["log"]).parent.is_dir(), "the child removes no folder of the feeder's"


def test_a_message_lost_to_an_interrupt_is_noticed(path: Path, epochs: list[list[bytes]]):
    """Ctrl-C in a notebook may come between the socket and the queue: no batch may be missing afterwards."""
    with FeedlineDataset(path) as dataset:
        iterator = iter(dataset)
        seen = [image(next(iterator)) for _ in range(20)]
        queue = dataset._feed._connection.queue
        assert eventually(lambda: dataset._feed._connection.receive() and len(queue) > 1)
        queue.popleft()
        seen += [image(batch) for batch in iterator]
        assert seen == epochs[0]
        iterator = iter(dataset)
        seen = [image(next(iterator)) for _ in range(STEPS - 2)]
        queue = dataset._feed._connection.queue
        assert eventually(lambda: dataset._feed._connection.receive() and len(queue) == 3)
        del queue[1]  # the last batch; its end is announced
        seen += [image(batch) for batch in iterator]
        assert seen == epochs[1]


def test_batches_of_every_kind(shared: FeedlineDataset, path: Path):
    from feedline import Pipeline

    shared.set_epoch(0)
    for batch, expected in zip(range(1), Pipeline.from_yaml(path).batches(), strict=False):
        got = next(iter(shared))
        assert got.to_dict().keys() == expected.to_dict().keys() == {column.name for column in shared.schema}
        assert torch.equal(got.dense, expected.dense)
        assert torch.equal(got.categorical, expected.categorical)
        assert got.extra["word"].equals(expected.extra["word"])
        assert got.valid.all()
        assert batch == 0


def test_stats_are_sane(shared: FeedlineDataset):
    shared.set_epoch(0)
    before = shared.stats()
    nbytes = sum(batch.nbytes for batch in shared)
    after = shared.stats()
    assert after.rows - before.rows == STEPS * 256
    assert after.batches - before.batches == STEPS
    assert after.nbytes - before.nbytes == nbytes
    assert 0 <= after.wait_s - before.wait_s <= after.seconds - before.seconds
    assert 0 <= after.wait_fraction <= 1
    assert 0 <= after.ring_fill <= 1
    assert 0 < after.ring_bytes <= 16 * 2**20
    assert after.rows_per_s == pytest.approx(after.rows / after.seconds)
    assert after.feeders == 1


def test_signals_for_the_whole_job_leave_the_feeder_to_its_trainer(shared: FeedlineDataset, epochs: list[list[bytes]]):
    """A launcher warns all processes of a job before it ends it: the trainer has its grace time to save its state."""
    shared.set_epoch(0)
    iterator = iter(shared)
    seen = [image(next(iterator)) for _ in range(3)]
    feeder = psutil.Process(shared.facts["feeder"])
    assert os.getsid(feeder.pid) == feeder.pid != os.getsid(0), "a signal for the trainer's group is not for it"
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        feeder.send_signal(number)
    seen += [image(batch) for batch in iterator]
    assert seen == epochs[0]
    assert feeder.is_running()
    assert shared.stats().feeders == 1


def test_a_log_that_can_be_read_while_its_feeder_lives(shared: FeedlineDataset):
    log = Path(shared.facts["log"])
    assert log.is_file()
    assert log.parent.name.startswith("feedline-scratch-")


def test_the_facts(shared: FeedlineDataset):
    facts = shared.facts
    assert (facts["steps"], facts["rows"], facts["rows_dropped"]) == (STEPS, ROWS, 10)
    assert (facts["lanes"], facts["batch_size"], facts["seed"]) == (1, 256, 3)
    assert facts["live_page"].startswith("http://127.0.0.1:")
    facts.clear()
    assert shared.facts["steps"] == STEPS


def test_overrides_are_what_the_spec_takes(path: Path, clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Paths and numpy's integers too; and whatever lies in the working directory is no module of the feeder."""
    (tmp_path / "queue.py").write_text("raise SystemExit('not me')\n")
    monkeypatch.chdir(tmp_path)
    changes = {
        "source.table": clicks / "ds=2026-01-02",
        "batch": {"size": np.int64(300), "tail": "partial"},
        "shuffle": MappingProxyType({"seed": 1}),
    }
    with FeedlineDataset(os.path.relpath(path), set=changes) as dataset:
        batches = list(dataset)
        assert [image(batch) for batch in batches] == oracle(path, set=changes)
        assert (len(dataset), dataset.facts["seed"], len(batches)) == (23, 1, 23)
        assert sum(int(batch.valid.sum()) for batch in batches) == 6_667, "every row, for an evaluation"
        assert batches[-1].rows == 67


# -- holding batches ----------------------------------------------------------------------------------------------


def test_a_whole_epoch_held_at_once_grows_the_ring(path: Path, epochs: list[list[bytes]], caplog):
    with FeedlineDataset(path) as dataset:
        batches = list(dataset)
        assert [image(batch) for batch in batches] == epochs[0]
        assert [record.message.split(":")[0] for record in caplog.records if record.levelname == "WARNING"] == [
            f"the trainer holds all {_FIRST_SLOTS} batches of the ring"
        ]
        assert dataset.stats().ring_bytes <= 16 * 2**20
        later = list(dataset)
        assert [image(batch) for batch in later] == epochs[1]
        assert [image(batch) for batch in batches] == epochs[0]
    assert [image(batch) for batch in batches + later] == epochs[0] + epochs[1], "they outlive the dataset"


def test_more_than_the_memory_held_at_once_is_an_error_and_not_the_end(place: Place, epochs: list[list[bytes]]):
    path = place.write("small.yaml", memory="4MiB")
    with FeedlineDataset(path) as dataset:
        held = []
        with pytest.raises(RingError, match=r"got (\d+) batches held .* batch\.clone\(\)") as caught:
            held.extend(dataset)
        assert f"got {len(held)} batches held" in str(caught.value)
        assert [image(each) for each in held] == epochs[0][: len(held)]
        state = dataset.state_dict()
        assert (state["epoch"], state["step"]) == (0, len(held))
        held = [each.clone() for each in held]
        gc.collect()
        dataset.load_state_dict(state)
        assert [image(each) for each in dataset] == epochs[0][len(held) :]
        assert [image(each) for each in held] == epochs[0][: len(held)]
        del held
        gc.collect()

        iterator, held, seen = iter(dataset), [], []  # goes on once batches are let go
        while len(seen) < STEPS:
            try:
                held.append(next(iterator))
                seen.append(image(held[-1]))
            except RingError:
                held.clear()
        assert seen == epochs[1]


def test_views_keep_their_bytes_and_clones_and_cycles_no_slot(path: Path, epochs: list[list[bytes]]):
    with FeedlineDataset(path) as dataset:
        kept = [batch.clone() for batch in dataset]
        assert [image(batch) for batch in kept] == epochs[0]
        gc.disable()
        try:
            seen = []
            for batch in dataset:
                seen.append(image(batch))
                cycle = [batch]
                cycle.append(cycle)
            assert seen == epochs[1]
        finally:
            gc.enable()
        assert not dataset._feed._connection.room._warned, "it asked for no more slots"

        iterator = iter(dataset)
        batch = next(iterator)
        dense, word, history = batch.dense, batch.extra["word"], batch.sparse["hist_0"].values
        copies = dense.clone(), word.to_pylist(), history.clone()
        del batch
        for _ in iterator:
            pass
    del dataset, iterator
    gc.collect()
    assert torch.equal(dense, copies[0])
    assert word.to_pylist() == copies[1]
    assert torch.equal(history, copies[2])


def test_batches_that_outgrow_their_slots(tmp_path: Path, place: Place):
    """Lists grow from nothing to hundreds of ids: several generations of the ring, read late and early."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    lengths = np.repeat([0, 3, 60, 700], 64)  # two batches of each length: a ring has four slots at first
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    values = np.arange(offsets[-1])
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    pq.write_table(pa.table({"ids": lists, "n": lengths.astype(np.float32)}), tmp_path / "t.parquet", row_group_size=64)
    path = place.write(
        "long.yaml",
        source={"table": str(tmp_path / "t.parquet"), "split_rows": 64},
        features={"sparse": {"ids": []}, "dense": {"n": []}},
        batch={"size": 32},
        shuffle="off",
    )
    expected = oracle(path)
    with FeedlineDataset(path) as dataset:
        iterator = iter(dataset)
        feed = dataset._feed
        assert eventually(lambda: feed._connection.receive() and len(feed._connection.reader._generations) > 2), (
            "none is read so far"
        )
        assert [image(batch) for batch in iterator] == expected
        assert eventually(
            lambda: feed._connection.reader.settle() is None and len(feed._connection.reader._generations) == 1
        ), "the others went"
        dataset.set_epoch(0)
        held = list(dataset)
        assert [image(batch) for batch in held] == expected


def test_more_messages_than_a_socket_holds_stop_nothing(place: Place):
    """Both sides have much to say and nobody listens: what finds no room waits, and both go on listening."""
    features = {"dense": {"n": {"expr": "request_id"}}}
    path = place.write("tiny.yaml", batch={"size": 3}, memory="512MiB", features=features)
    with FeedlineDataset(path) as dataset:
        iterator = iter(dataset)
        held = [next(iterator) for _ in range(1030)]  # the ring has 2,048 slots now: the feeder fills the rest
        feeder = psutil.Process(dataset.facts["feeder"])
        assert eventually(lambda: _is_idle(feeder))
        feeder.suspend()
        held.clear()
        gc.collect()
        feeder.resume()
        iterator = iter(dataset)
        assert sum(batch.rows for batch in iterator) == ROWS


def _is_idle(process: psutil.Process) -> bool:
    """Whether it computes nothing for a while."""
    before = sum(process.cpu_times()[:2])
    eventually(lambda: False, within_s=0.3)
    return sum(process.cpu_times()[:2]) - before <= 0.02
