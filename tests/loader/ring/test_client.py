"""Each batch of the agreed plan comes once, wherever Ctrl-C interrupts the trainer. Feeders in this process.

A `NearFeeder` stands for the feeder's process: it speaks the protocol over a real connection and fills a real ring, in
this thread, whenever the feed waits. So a feed that waits for what nobody will say is found at once.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from answers import FEEDER
from pipelines import Place, furnished, image
from ring_forms import use

from feedline import FeedlineDataset, Pipeline
from feedline.errors import DataError, FeedlineError, PlanError, StateError
from feedline.loader import dataset
from feedline.loader.encoding.layout import SlotHeader
from feedline.loader.ring import channel, client, feeder_connection, feeder_source, reports, slots
from feedline.loader.ring.channel import ChannelClosedError, adopt, pair
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.ring.slots import RingWriter
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello, PlanFacts
from feedline.loader.wire.ring_messages import BeginStream, FeederFailure, GrowRing, PlanAnswer, PlanRequest
from feedline.native import ring

LENGTHS = (2, 2, 90, 2, 400)  # ids per row, a step each: batches outgrow their slots, twice
ROWS = 8


class NearFeeder:
    """What a feeder says and does, without its process."""

    pipeline: Pipeline
    images: dict[tuple[str, int], list[bytes]]
    facts: dict[str, PlanFacts]  # by the JSON of a hello
    acting = False  # what is interrupted is the trainer
    fails_at: int | None = None  # the step that it raises DataError for
    living: list[NearFeeder]

    def __init__(self, _command: Any, *, restarts: int) -> None:
        with aside():
            self.channel, theirs = pair()
            self._mine = adopt(theirs.detach())
        self._ring = RingWriter(self._mine, limit_bytes=1 << 22)
        self._slots: list[tuple[bytes, tuple[int, int]]] = []
        self._stream: tuple[int, int, int] | None = None
        self.pid = 0
        self.mute = False
        self.hellos = 0
        self.living.append(self)

    def turn(self) -> bool:
        """Hear one message, answer it, and fill what there is to; whether there was anything."""
        with aside():
            try:
                return self._hear() | (not self.mute and self._fill())
            except ChannelClosedError:
                return False

    def _hear(self) -> bool:
        received = None if self.mute else self._mine.receive(wait=False)
        if received is None:
            return False
        if received[0] == b"F":
            self._ring.release(*received[1:])
            return True
        message = received[1]
        if isinstance(message, PlanRequest):
            self._on_request(message)
        elif isinstance(message, BeginStream):
            self._stream = (message.stream, message.epoch, message.step)
        elif isinstance(message, GrowRing):
            self._ring.grow()
        return True

    def _on_request(self, request: PlanRequest) -> None:
        self.hellos += 1
        self._stream = None
        number = self._number = request.number
        try:
            self._facts = self._resolve(request.hello)
        except FeedlineError as error:
            self._mine.send_message(FeederFailure(name=type(error).__name__, message=str(error), number=number))
            self.mute = True
        else:
            self._mine.send_message(PlanAnswer(number=number, plan=self._facts, feeder=FEEDER))

    def _resolve(self, hello: Hello) -> PlanFacts:
        key = json.dumps(to_values(hello))
        if hello.snapshot is None or key not in self.facts:
            plan = self.pipeline.resolve(hello, job="j" * 64)
            self.facts[key] = plan.facts()
            for epoch in range(2):
                name = (plan.fingerprint, epoch)
                if name not in self.images:
                    self.images[name] = [image(batch) for batch in self.pipeline.batches(epoch, plan=plan)]
        return self.facts[key]

    def _fill(self) -> bool:
        filled = False
        while self._stream is not None:
            number, epoch, step = self._stream
            if step == self.fails_at:
                self._mine.send_message(FeederFailure(name="DataError", message="a null", number=self._number))
                self._mine.close()
                self.mute = True
                return True
            images = self.images[self._facts.plan, epoch]
            if step >= len(images):
                self._ring.announce_end(stream=number, epoch=epoch)
                self._stream = None
                return True
            room = self._ring.acquire(len(images[step]))
            if room is None:
                return filled
            segment, slot = room
            segment.slot(slot)[: len(images[step])] = np.frombuffer(images[step], np.uint8)
            _, epoch_word, step_word, rows, nbytes, _ = np.frombuffer(images[step], np.int64, count=6).tolist()
            header = SlotHeader(
                epoch=epoch_word, step=step_word, rows=rows, nbytes=nbytes, ipc_bytes=0, values=(), fixed=()
            )
            self._ring.announce(self._ring.packet(number, segment, slot, header))
            self._stream, filled = (number, epoch, step + 1), True
        return filled

    def last_words(self) -> str:
        return "(none)"

    def end(self) -> None:
        with aside():
            if self in self.living:
                self.living.remove(self)
                self._ring.close()
                self._mine.close()


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """The feeder acts."""
    NearFeeder.acting = True
    try:
        yield
    finally:
        NearFeeder.acting = False


class NearWatch:
    """Waiting for a feeder of this process is giving it its turn."""

    interrupts = 0

    def __init__(self, *_: object) -> None:
        pass

    def wait(self, _seconds: float, _tick: Callable[[], None] = lambda: None) -> bool:
        if NearWatch.interrupts:
            NearWatch.interrupts -= 1
            raise KeyboardInterrupt
        assert any(feeder.turn() for feeder in list(NearFeeder.living)), "the feed waits, and nobody will speak"
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with furnished(tmp_path, tmp_path / "table") as place:
        yield place


@pytest.fixture
def path(place: Place, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline over a table of five steps, whose feeders are near."""
    place.table.mkdir()
    append(place.table / "a.parquet", LENGTHS)
    features = {"sparse": {"ids": []}, "dense": {"n": []}}
    path = place.write(features=features, batch={"size": ROWS}, shuffle="off", source={"split_rows": ROWS})
    monkeypatch.setattr(NearFeeder, "pipeline", Pipeline.from_yaml(path), raising=False)
    monkeypatch.setattr(NearFeeder, "images", {}, raising=False)
    monkeypatch.setattr(NearFeeder, "facts", {}, raising=False)
    monkeypatch.setattr(NearFeeder, "living", [], raising=False)
    monkeypatch.setattr(feeder_source, "OwnFeeder", NearFeeder)
    monkeypatch.setattr(feeder_connection, "Watch", NearWatch)
    return path


def append(file: Path, lengths: tuple[int, ...]) -> None:
    """So many steps' rows."""
    each = np.repeat(lengths, ROWS)
    offsets = np.concatenate(([0], np.cumsum(each)))
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.arange(offsets[-1])))
    pq.write_table(pa.table({"ids": lists, "n": each.astype(np.float32)}), file, row_group_size=ROWS)


def interrupted(act: Callable[[], Any]) -> None:
    """Ctrl-C while it waits for its feeder."""
    NearWatch.interrupts = 1
    with pytest.raises(KeyboardInterrupt):
        act()
    assert NearWatch.interrupts == 0


# -- hellos -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_interrupted_hello_does_not_answer_the_next(path: Path, place: Place):
    """Ctrl-C in len(), then a state of an older snapshot: the first answer is the newer plan's."""
    with FeedlineDataset(path) as first:
        old = first.state_dict()
    append(place.table / "b.parquet", (3, 3))
    with FeedlineDataset(path) as data:
        interrupted(lambda: len(data))
        data.load_state_dict(old)
        assert data.state_dict() == old
        assert len(data) == len(LENGTHS)
        assert len(list(data)) == len(LENGTHS)
    with FeedlineDataset(path) as data:
        assert len(data) == len(LENGTHS) + 2


@pytest.mark.slow
def test_an_interrupted_hellos_error_is_not_raised_by_the_next(path: Path):
    with FeedlineDataset(path) as data:
        state = data.state_dict()
        interrupted(lambda: data.load_state_dict({**state, "plan": "0" * 32}))
        data.load_state_dict(state)
        assert len(list(data)) == len(LENGTHS)
        with pytest.raises(StateError, match="0" * 32):
            data.load_state_dict({**state, "plan": "0" * 32})
        assert len(list(data)) == len(LENGTHS), "what was refused changes nothing"


@pytest.mark.slow
def test_an_interrupted_load_keeps_the_agreed_plan(path: Path, place: Place):
    """The feeder works on another plan by then: the iterator goes on with its own, and so does the state."""
    with FeedlineDataset(path) as first:
        old = first.state_dict()
    append(place.table / "b.parquet", (3, 3))
    with FeedlineDataset(path) as data:
        iterator = iter(data)
        seen = [image(next(iterator)) for _ in range(2)]
        state = data.state_dict()
        assert state["snapshot"] != old["snapshot"]
        interrupted(lambda: data.load_state_dict(old))
        assert data.state_dict() == state
        seen += [image(batch) for batch in iterator]
        assert seen == NearFeeder.images[state["plan"], 0]
        interrupted(lambda: data.load_state_dict(old))
        data.set_epoch(1)
        assert [image(batch) for batch in data] == NearFeeder.images[state["plan"], 1]
        assert data.stats().feeders == 1, "nobody had to die for that"


@pytest.mark.slow
def test_a_failing_plan_is_an_error_each_time(path: Path):
    with FeedlineDataset(path, set={"batch.size": ROWS}) as data:
        NearFeeder.pipeline = Pipeline.from_yaml(path, {"batch.size": 1000})
        for _ in range(3):
            with pytest.raises(PlanError, match="fewer rows than one global step"):
                len(data)


# -- anywhere -----------------------------------------------------------------------------------------------------


def failing_after_one_batch(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FeedlineDataset, Iterator[Any]]:
    """A dataset at step 1, which waits unread in the ring, as does step 2; the feeder ended at step 3."""
    monkeypatch.setattr(NearFeeder, "fails_at", 3)
    data = FeedlineDataset(path)
    iterator = iter(data)
    assert next(iterator).step == 0
    while any(feeder.turn() for feeder in list(NearFeeder.living)):
        pass
    return data, iterator


def test_batches_before_an_error_come_first_and_the_error_is_raised_again(path: Path, monkeypatch: pytest.MonkeyPatch):
    data, iterator = failing_after_one_batch(path, monkeypatch)
    with data:
        assert [next(iterator).step for _ in range(2)] == [1, 2]
        state = data.state_dict()
        assert state["step"] == 3
        for feeders in (1, 2):
            with pytest.raises(DataError, match="a null"):
                next(iterator)
            assert (data.state_dict(), data.stats().feeders) == (state, feeders)
        monkeypatch.setattr(NearFeeder, "fails_at", None)
        assert [batch.step for batch in iterator] == [3, 4]


def test_the_batches_before_an_error_come_first_after_a_long_wait(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once a batch is there, its wait is reported to a feeder that may have ended with the error of a later one."""
    waits, fill = [], NearFeeder._fill

    def fill_in_two_turns(feeder: NearFeeder) -> bool:
        """Step 0; nothing; steps 1 and 2, and the error of step 3."""
        if feeder._stream is None or feeder._stream[2] > 1:
            return fill(feeder)
        if feeder._stream[2] == 1 and not waits:
            waits.append(1)
            return True
        until, acquire = 1 + 2 * len(waits), feeder._ring.acquire
        with monkeypatch.context() as patch:
            patch.setattr(feeder._ring, "acquire", lambda size: acquire(size) if feeder._stream[2] < until else None)
            return fill(feeder)

    monkeypatch.setattr(client, "_STALL_REPORT_S", 0.0)
    monkeypatch.setattr(NearFeeder, "_fill", fill_in_two_turns)
    monkeypatch.setattr(NearFeeder, "fails_at", 3)
    with FeedlineDataset(path) as data:
        iterator = iter(data)
        assert [next(iterator).step for _ in range(3)] == [0, 1, 2]
        with pytest.raises(DataError, match="a null"):
            next(iterator)
    assert waits == [1]


@pytest.mark.parametrize("again", ["another plan", "the epoch anew"])
def test_a_stream_continues_after_an_error_behind_unread_batches(
    path: Path, monkeypatch: pytest.MonkeyPatch, again: str
):
    """The connection is closed and the queue is not empty: neither is waited for."""
    data, iterator = failing_after_one_batch(path, monkeypatch)
    with data:
        assert next(iterator).step == 1  # step 2 and the error were received with it
        monkeypatch.setattr(NearFeeder, "fails_at", None)
        state = data.state_dict()
        if again == "another plan":  # whose hello the error does not answer
            data.load_state_dict(state)
            assert [batch.step for batch in data] == [2, 3, 4]
        else:
            data.set_epoch(0)
            iterator = iter(data)
            with pytest.raises(DataError, match="a null"):
                next(iterator)
            assert [batch.step for batch in iterator] == [0, 1, 2, 3, 4]
        assert data.stats().feeders == 2
    assert NearFeeder.living == []


_MODULES = {each.__file__ for each in (channel, feeder_connection, dataset, client, slots, reports, ring)}
# What the kernel hands over is lost where an interrupt comes before it has a name: a descriptor stays open.
_NAMELESS = {
    "Channel._receive_descriptor",
    *(f"Descriptor.{name}" for name in ("from_ancillary", "__init__", "close", "__del__")),
}
_CHECKED = {"CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"}  # after these CPython looks for signals


class Interrupts:
    """Raises KeyboardInterrupt once, at the first place where none was raised before."""

    def __init__(self) -> None:
        self.done: set[tuple[CodeType, int]] = set()
        self.raised: tuple[str, int] | None = None
        self._points: dict[CodeType, frozenset[int]] = {}
        self._in_python: dict[FrameType, int] = {}
        self._tracer: Any = None  # the one before: coverage's, where tests are measured

    def __enter__(self) -> None:
        self._tracer = sys.gettrace()
        sys.settrace(self._on_call)

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)
        self._in_python.clear()

    def _on_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_back is not None and frame.f_back.f_code.co_filename in _MODULES:
            # At the end of a call of a Python function nobody looks.
            self._in_python[frame.f_back] = frame.f_back.f_lasti
        if frame.f_code.co_filename not in _MODULES or self.raised or NearFeeder.acting:
            return None
        if frame.f_code.co_qualname in _NAMELESS:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_opcode

    def _on_opcode(self, frame: FrameType, event: str, _argument: object) -> Any:
        if self.raised or event != "opcode":
            return self._on_opcode
        code, place = frame.f_code, frame.f_lasti
        if code not in self._points:
            self._points[code] = _points_of(code)
        before = self._in_python.pop(frame, None)
        if place in self._points[code] and (code, place) not in self.done and before is None:
            self.done.add((code, place))
            self.raised = (code.co_qualname, frame.f_lineno)
            sys.settrace(None)
            raise KeyboardInterrupt
        return self._on_opcode


def _points_of(code: CodeType) -> frozenset[int]:
    """Offsets of the instructions before which signals are handled."""
    instructions = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    return frozenset(after.offset for one, after in itertools.pairwise(instructions) if one.opname in _CHECKED)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["compiled", "python"])
def test_no_batch_is_lost_or_repeated_wherever_an_interrupt_comes(
    path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, form: str
):
    """A user who presses Ctrl-C, and goes on with what he has: the iterator, the dataset, or the state."""
    use(form, monkeypatch)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # finalizers are interrupted, too
    gc.freeze()  # the client collects garbage after each interrupt: what is there already would cost most of the time
    with FeedlineDataset(path) as first:
        old = first.state_dict()
        list(first)
    append(place.table / "b.parquet", (3, 200))
    interrupts = Interrupts()
    with FeedlineDataset(path) as data:
        list(data)
        new = data.state_dict()
        while True:
            state = {**(new if data.state_dict()["plan"] == old["plan"] else old), "epoch": 0, "step": 1}
            interrupts.raised = None
            _train(data, state, interrupts)
            if interrupts.raised is None:
                break
        assert len(interrupts.done) > 100
    assert NearFeeder.living == []


def _train(data: FeedlineDataset, state: dict[str, Any], interrupts: Interrupts) -> None:
    """Load a state and train to the end of its epoch, with a batch held; what was interrupted is done once more."""
    before = data.state_dict()
    while data.state_dict() != state:
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            data.load_state_dict(state)
        assert data.state_dict() in (before, state)
    iterator = None
    while iterator is None:
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            iterator = iter(data)
        if iterator is None:
            data.load_state_dict(state)
    held: list[Any] = []
    seen: list[bytes] = []
    ended = False
    while not ended:
        with contextlib.suppress(KeyboardInterrupt), interrupts:
            for batch in iterator:
                seen.append(image(batch))
                held = [batch, *held[:1]]
                assert [image(each) for each in held] == seen[-1 : -1 - len(held) : -1]
            ended = True
    assert seen == NearFeeder.images[state["plan"], 0][state["step"] :]
    assert data.state_dict() == {**state, "epoch": 1, "step": 0}


def test_a_wait_is_reported_while_it_lasts(monkeypatch: pytest.MonkeyPatch):
    """A trainer that waits all the time for large batches must not seem not to wait."""
    sent: list[float] = []
    lengths: list[int] = []
    now_s = [100.0]
    access = SimpleNamespace(host=None, attach_paths=())
    feed = client.FeederClient(cast("FeederAccess", access))
    monkeypatch.setattr(feed._connection, "send", lambda message: sent.append(message.seconds))

    class Watch:
        def wait(self, _seconds: float, tick: Callable[[], None]) -> bool:
            for _ in range(32):
                now_s[0] += 0.5
                tick()
                lengths.append(len(sent))
            return True

    monkeypatch.setattr(feed._connection, "_watch", Watch())
    monkeypatch.setattr(client.time, "perf_counter", lambda: now_s[0])
    feed._position, feed._first_step = (0, 7), 3
    feed._wait()
    assert lengths == list(range(1, 33)), "as time passes"
    assert sum(sent) == 16.0
    feed._position = (0, 3)
    feed._wait()
    assert sum(sent) == 16.0, "a stream's first block is always waited for"
    monkeypatch.undo()
