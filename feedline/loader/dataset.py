"""The dataset of a training loop: `for batch in FeedlineDataset("pipeline.yaml")`.

Runs in: the trainer. The dataset keeps the position (epoch, step) and leaves the rest to its `FeederClient`. Each
`iter()` is one epoch. The state is a few plain values, the same on every rank, that count batches handed out, not
batches prefetched.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from types import FrameType
from typing import Any, Literal, NoReturn, Self

import torch
import yaml  # noqa: F401 -- parses pipeline.yaml: 0.03 s of this import instead of the wait for a first batch
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data._utils.fetch import _IterableDatasetFetcher

from feedline.config import PipelineSpec, load_spec
from feedline.config.chosen_features import choose_features
from feedline.config.sections import MAX_INT
from feedline.config.windows import evaluation_overrides
from feedline.dataclass import dataclass
from feedline.errors import FeedlineError, PlanError, SpecError, StateError
from feedline.loader.batch import Batch
from feedline.loader.dataset_stats import MeasuredDataset
from feedline.loader.device_copies import Copies, Prefetcher, copies_to
from feedline.loader.encoding.layout import BatchSchema, SlotLayout, SparseFeatures
from feedline.loader.launcher import RankInfo, data_rank_of, describe_ranks, detect_rank, with_data_rank
from feedline.loader.plan_descriptions import describe_bad_files, describe_rebase
from feedline.loader.rank_agreement import connected_rank, hello_of, open_plan
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.ring.launch import feeder_access
from feedline.loader.ring.pinning import Pinning
from feedline.loader.state import checked_state, environment_warning, rebased_state, refuse_step_beyond, state_of
from feedline.loader.tensors.torchrec_tensors import check_chosen, register_pipelineable
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello, PlanFacts
from feedline.native.kernels import warn_of_missing_kernels
from feedline.resources.cgroups import available_cores

NO_WORKERS = (
    "a FeedlineDataset cannot be used in another process: got a DataLoader worker or a forked child, expected the "
    "process that made it. Use DataLoader(dataset, batch_size=None) with num_workers=0: the feeder and its Dask "
    "cluster read and transform"
)
REPLACED = (
    "this iterator was replaced: got next() on an older iter(dataset), expected the newest. A dataset has one stream; "
    "make a second dataset to read twice at once"
)
SHARED = (
    "two threads read one dataset: got next() while another thread waits for a batch, expected one thread at a time. "
    "Read in one thread, which hands batches to the others through a queue"
)

_Position = tuple[int, int]  # epoch and step


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """The plan and the positions in it. Each change is one assignment, so that an interrupt leaves the old or the new.

    start: where the next iter() starts. at: that of state_dict(), of the first batch not handed out yet. reading: that
    of the running iterator's next batch, which set_epoch() does not change.
    """

    # Epochs of 8 steps, as (start, at, reading):
    #   a state of epoch 2, step 5, was loaded     (2, 5)  (2, 5)  (2, 5)   iter() resumes there
    #   its first next() has returned              (3, 0)  (2, 6)  (2, 6)   another iter() would start epoch 3
    #   two batches are on their way to a device   (3, 0)  (2, 6)  (2, 8)   a state does not count them
    #   the iterator has ended                     (3, 0)  (3, 0)  (3, 0)
    #   set_epoch(7)                               (7, 0)  (7, 0)  (3, 0)
    start: _Position = (0, 0)
    at: _Position = (0, 0)
    reading: _Position = (0, 0)
    answer: Answer | None = None
    layout: SlotLayout | None = None


class FeedlineDataset(MeasuredDataset, IterableDataset[Batch]):
    """The batches of a pipeline, for one rank.

    Attaches to the `feedline run` of the same job on this host if one is waiting, else starts a feeder process, which
    ends with the dataset. Use it directly or as `DataLoader(dataset, batch_size=None)`, with num_workers=0: the feeder
    and its Dask cluster do the work. Close it, or use it in a `with` block.

    `device`: copy each batch there, on a stream of its own and up to two batches ahead of the training step: "cuda",
    "cuda:1", or "cpu", whose batches do not hold a slot. Without it, batches are views of the ring.

    `pipeline`: a pipeline.yaml, or a dict of what it would hold. `set` overrides keys of it: `set={"batch.tail": "pad",
    "shuffle": "off"}`. `rank` and `world_size` default to torch.distributed's, then to the launcher's environment. With
    tensor, pipeline or context parallelism, several ranks must see the same batch: `mesh` is the data-parallel part of
    the `DeviceMesh` (`mesh["dp"]`); `data_rank` and `data_world_size` are the same as numbers.

    `timeout`: seconds that a batch, or the plan, may take (default: any number, with a warning every half minute).
    `features`: the names of a column group, where another process reads the others (default: all of pipeline.yaml).
    `sparse_features`: what `batch.sparse_features` holds for torchrec (default: all ids).

    Raises SpecError for an invalid pipeline.yaml, PlanError if planning fails, and on iteration DataError,
    TableChangedError, CorruptFileError, RingError, FeederError, or BatchTimeoutError, which says what is late and why.

    Examples:
        >>> with FeedlineDataset("pipeline.yaml", set={"batch.size": 512}) as dataset:
        ...     for batch in dataset:  # one iter() is one epoch
        ...         state = dataset.state_dict(after=batch)
        >>> batch.dense.shape
        torch.Size([512, 2])
        >>> state["epoch"], state["step"]  # where a run goes on that loads it
        (1, 0)
    """

    def __init__(
        self,
        pipeline: str | os.PathLike[str] | Mapping[str, object],
        *,
        set: Mapping[str, object] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        data_rank: int | None = None,
        data_world_size: int | None = None,
        mesh: DeviceMesh | None = None,
        timeout: float | None = None,
        device: torch.device | str | None = None,
        features: Sequence[str] | None = None,
        sparse_features: SparseFeatures | None = None,
    ) -> None:
        super().__init__()
        _refuse(timeout)
        self._given: dict[str, Any] = {
            "pipeline": pipeline,
            "rank": rank,
            "world_size": world_size,
            "data_rank": data_rank,
            "data_world_size": data_world_size,
            "mesh": mesh,
            "timeout": timeout,
            "device": device,
            "features": features,
            "sparse_features": sparse_features,
        }
        self._set = set or {}
        self._copies = None if device is None else copies_to(device)
        self._spec: PipelineSpec = load_spec(pipeline, set or {})
        self._group = () if features is None else choose_features(self._spec, features)
        self._ranks = with_data_rank(
            detect_rank(rank=rank, world_size=world_size, distributed=connected_rank(), environment=os.environ),
            *data_rank_of(data_rank, data_world_size, mesh),
        )
        print_ranks(self._ranks)
        if not self._ranks.local_rank:
            warn_of_missing_kernels()
        self._sparse_features, self._pid = sparse_features or SparseFeatures(), os.getpid()
        access = feeder_access(self._spec, self._ranks, self._group)
        self._pinning = Pinning(self._ranks.local_rank)
        self._feed = FeederClient(access, pin=self._pinning.register, unpin=self._pinning.unregister)
        self._feed.timeout_s = timeout
        self._feed.start()
        self._closer = weakref.finalize(self, self._feed.close)
        self._progress = _Progress()
        self._iterators = 0  # how many there were: the last one, if none has been dismissed since, is the current one
        self._ended = 0  # the iterator that has come to its end last
        self._reader: dict[str, int] = {}  # "thread": the one that reads a batch; set by one call, which is atomic
        self._untouched = self._rows = 0  # the current iterator, until its first next(); rows handed out
        self._epochs = FollowedEpochs(self._request)

    # -- iterating ------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        register_pipelineable(Batch)
        refuse_workers()
        refuse_batching(sys._getframe(1))
        self._refuse_other_processes()
        answer, epoch, step = self._epochs.opened(self._open(), self._progress.start)
        if answer is None:  # nothing more lands in the followed table
            return iter(())
        step = max(step, answer.facts.first_step_of(epoch))
        self._pinning.choose()
        self._iterators += 1  # an older iterator would get the new one's batches
        self._feed.begin(answer, epoch, step, node=self._pinning.numa_node())
        here, number = (epoch, step), self._iterators
        self._progress = replace(self._progress, answer=answer, start=here, at=here, reading=here)
        self._untouched = number
        return _Epoch(self, number) if self._copies is None else _DeviceEpoch(self, number, self._copies, here)

    def __len__(self) -> int:
        """Steps of the next batch's epoch, the same on every rank; 0 where a followed table has nothing more."""
        answer, epoch, _ = self._epochs.opened(self._open(), self._progress.at)
        return 0 if answer is None else answer.facts.steps_of(epoch)

    def evaluation(self, set: Mapping[str, object] | None = None) -> FeedlineDataset:
        """A dataset of what the training is evaluated on: its epoch k is the window after the training's, of the keys
        that `hold_out` leaves out. It stands at the epoch that the training is in, or has ended last; close it as this
        one. `set` overrides further keys, such as {"batch.tail": "pad"}.

        Raises SpecError for a pipeline.yaml without windows and hold_out, and where no window is after the first.
        """
        overrides = evaluation_overrides(self._spec.windows, self._spec.hold_out)
        if not overrides:
            message = "pipeline.yaml has nothing to evaluate on: got neither windows nor hold_out. Write one of the two"
            raise SpecError(message)
        dataset = FeedlineDataset(set={**self._set, **overrides, **(set or {})}, **self._given)
        epoch, step = self._progress.at
        dataset.set_epoch(epoch - 1 if epoch and not step else epoch)
        return dataset

    def set_epoch(self, epoch: int) -> None:
        """The next iter() starts at this epoch's step 0, or at the step of a state of this epoch, if just loaded."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or not 0 <= epoch <= MAX_INT:
            raise PlanError(f"epoch must be a non-negative integer of 64 bits: got {epoch!r}")
        progress = self._progress
        start = progress.start if progress.start[0] == epoch else (epoch, 0)  # a resume is not undone
        self._progress = replace(progress, start=start, at=start)
        self._untouched = 0

    def _refuse_replaced(self, iterator: int) -> None:
        self._refuse_other_processes()  # a worker of a DataLoader has called `iter`, or is a forked child
        if self._iterators != iterator:
            raise FeedlineError(REPLACED)

    def _next(self, iterator: int, ahead: bool = False) -> Batch | None:
        """The next batch of the stream, and None at the end. ahead: it is not handed out yet."""
        self._refuse_replaced(iterator)
        is_first = self._enter()
        try:
            if self._ended == iterator:  # another thread took its end, while this one was on its way
                return None
            if self._start_s is None:
                self._start_s = time.perf_counter()
            reading = self._progress.reading
            if self._untouched == iterator:
                self._progress, self._untouched = replace(self._progress, start=(reading[0] + 1, 0)), 0
            item = self._feed.next(reading)
            for warning in self._feed.reports.take_warnings():
                warnings.warn(warning, UserWarning, stacklevel=3)
            if item is None:
                batch, reading, self._ended = None, (reading[0] + 1, 0), iterator
                self._log_epoch()
            else:
                epoch, step, rows, nbytes, lease = item
                assert self._progress.layout is not None
                batch = Batch(self._progress.layout, epoch, step, rows, nbytes, lease)
                reading = epoch, step + 1
                self._rows += rows
            self._progress = replace(self._progress, at=self._progress.at if ahead else reading, reading=reading)
        finally:
            if is_first:
                self._reader = {}  # no call: an interrupt after it would lose the batch, whose position is passed
        return batch

    def _enter(self) -> bool:
        """Keep other threads from reading until this one has the position of the next batch. Returns whether it did not
        do so already. Raises FeedlineError where another one reads.

        Two threads that share an iterator of the batches a, b, c: while the first waits for a, next() of the second
        raises; between two batches either may read: a and c go to the first, b to the second. The end is taken by one
        of them, and the other's next() ends, too.
        """
        thread = get_ident()
        if self._reader.get("thread") == thread:
            return False
        if self._reader.setdefault("thread", thread) != thread:
            raise FeedlineError(SHARED)
        return True

    # -- state ----------------------------------------------------------------------------------------------------

    def state_dict(self, after: Batch | None = None) -> dict[str, Any]:
        """The position of the training, valid on every rank and for any world size that divides the lanes: after the
        batches handed out, or after `after`, which is right even if something prefetches before the training step."""
        at = self._progress.at if after is None else (after.epoch, after.step + 1)
        return self._epochs.state(self._open(), *at)

    def load_state_dict(
        self,
        state: Mapping[str, Any],
        features: Literal["same", "changed"] = "same",
        *,
        snapshot: Literal["same", "rebase"] = "same",
    ) -> None:
        """Continue at a state's position, on the state's snapshot, even if the table has changed since.

        With snapshot="rebase" the rest of the epoch is planned on the current table, and the changes are printed:
        delivered rows are not repeated, deleted rows are skipped, each other row comes once. If rows of rewritten files
        were delivered, this needs `source.row_key`, set in pipeline.yaml before the run began.

        Raises StateError if the state belongs to another plan, or to other features unless features="changed", or if
        the rebase cannot tell which rows were delivered.
        """
        for name, value, other in (("features", features, "changed"), ("snapshot", snapshot, "rebase")):
            if value not in ("same", other):
                raise StateError(f'{name} is unknown: got {value!r}, expected "same" or "{other}"')
        resume = checked_state(state)
        keys = ("snapshot", "lanes", "plan", "seed", "batch_size", "window_rows", "window_blocks")
        hello = replace(
            hello_of(self._ranks, self._group),
            rebase=resume if snapshot == "rebase" else None,
            features=None if features == "changed" else resume["features"],
            **{key: resume[key] for key in keys},
        )
        answer = self._request(hello, resume)
        refuse_step_beyond(resume, answer.facts if hello.rebase is None else None)
        if (warning := environment_warning(resume, answer.facts)) is not None:
            warnings.warn(warning, UserWarning, stacklevel=2)
        if hello.rebase is not None:
            print_rebase(hello.global_rank, answer.facts, resume)
            resume = rebased_state(answer.facts, resume)
        self._iterators += 1
        self._epochs.begin(answer)
        here = resume["epoch"], resume["step"]
        self._progress = _Progress(start=here, at=here, reading=here, answer=answer, layout=self._layout(answer))

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def schema(self) -> BatchSchema:
        """Every column of a batch: name, group, dtype, offset and width."""
        return self._open().facts.schema

    @property
    def plan(self) -> PlanFacts:
        """The plan's facts as a value."""
        return self._open().facts

    @property
    def facts(self) -> dict[str, Any]:
        """The plan's facts: steps, rows, snapshot, fingerprints …; and the process, log and pages of its feeder."""
        answer = self._open()
        return {**to_values(answer.facts), **to_values(self._feed.reports.feeder or answer.feeder)}

    @property
    def quality(self) -> dict[str, dict[str, Any]]:
        """Measures of the features' values in the blocks delivered so far, by feature: at most half a second old, and
        complete at the end of an epoch. See docs/quality.md."""
        self._feed.refresh()
        return self._feed.reports.report(self.schema)

    # -- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the feeder that this dataset started, or detach from it. Batches still held stay readable."""
        self._iterators += 1
        self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(NO_WORKERS)

    def _refuse_other_processes(self) -> None:
        if os.getpid() != self._pid:
            raise FeedlineError(NO_WORKERS)
        if not self._closer.alive:
            raise FeedlineError("the dataset is closed: make a new FeedlineDataset")

    def _open(self) -> Answer:
        """The answer to the last hello; the first call sends one."""
        if self._progress.answer is None:
            followed = self._spec.is_followed
            hello = replace(hello_of(self._ranks, self._group), epoch=self._progress.start[0] if followed else None)
            answer = self._request(hello)
            self._epochs.begin(answer)
            self._progress = replace(self._progress, answer=answer, layout=self._layout(answer))
            return answer
        return self._progress.answer

    def _layout(self, answer: Answer) -> SlotLayout:
        return SlotLayout(answer.facts.schema, self._sparse_features, answer.facts.bounds(self._ranks.world_size))

    def _request(self, hello: Hello, resume: Mapping[str, Any] | None = None) -> Answer:
        """Request a plan, or a state's, and its facts. Changes nothing here."""
        refuse_workers()
        self._refuse_other_processes()
        answer = open_plan(self._feed, hello, resume)
        warn_of_plan(answer.facts, self._progress.answer.facts if self._progress.answer is not None else None)
        check_chosen(self._sparse_features, answer.facts.schema)
        return answer


class _Epoch(Iterator[Batch]):
    """The batches of one epoch from a step on; once exhausted, it stays exhausted."""

    def __init__(self, dataset: FeedlineDataset, number: int) -> None:
        self._dataset: FeedlineDataset | None = dataset
        self._number = number

    def __next__(self) -> Batch:
        batch = self._dataset._next(self._number) if self._dataset is not None else None
        if batch is None:
            self._dataset = None
            raise StopIteration
        return batch


class _DeviceEpoch(Iterator[Batch]):
    """The same, copied to a device ahead of the training step. The dataset's position counts batches handed out."""

    def __init__(self, dataset: FeedlineDataset, number: int, copies: Copies, position: tuple[int, int]) -> None:
        self._dataset: FeedlineDataset | None = dataset
        self._number = number
        self._copies = copies
        self._prefetcher = Prefetcher(copies)
        self._position = position  # of the next batch to hand out

    def __next__(self) -> Batch:
        dataset = self._dataset
        if dataset is None:
            raise StopIteration
        dataset._refuse_replaced(self._number)
        is_first = dataset._enter()
        try:
            if self._dataset is None:  # as in `FeedlineDataset._next`
                raise StopIteration
            try:
                batch = self._prefetcher.next(lambda: dataset._next(self._number, ahead=True), self._has_waiting)
            except BaseException:  # a failed copy or an interrupt: batches read ahead may be lost, and are read again
                self._prefetcher = Prefetcher(self._copies)
                dataset._progress = replace(dataset._progress, reading=self._position)
                raise
            self._position = (self._position[0] + 1, 0) if batch is None else (batch.epoch, batch.step + 1)
            dataset._progress = replace(dataset._progress, at=self._position)
            if batch is None:
                self._dataset = None
                raise StopIteration
            return batch
        finally:
            if is_first:
                dataset._reader = {}

    def _has_waiting(self) -> bool:
        """Whether the ring holds a batch for the trainer."""
        assert self._dataset is not None
        self._dataset._feed.refresh()
        return self._dataset._feed.ring_fill > 0


def _refuse(timeout: float | None) -> None:
    """Refuse a system without the ring, and a timeout that is no time."""
    if timeout is not None and not timeout > 0:
        raise SpecError(f"timeout must be a positive number of seconds, or None: got {timeout!r}")
    if not sys.platform.startswith("linux"):
        raise FeedlineError("FeedlineDataset needs Linux (memfd, SOCK_SEQPACKET). Use Pipeline.batches elsewhere")


_ANSWERS = 3  # epochs: that of the training step, that of the batches ahead of it, and the next one


class FollowedEpochs:
    """The plans of a followed table, one per epoch, at its border; of another table, the one of all epochs.

    ask: sends a hello and returns the feeder's answer, which may take until files have landed.
    """

    def __init__(self, ask: Callable[[Hello], Answer]) -> None:
        self._ask = ask
        self._answers: dict[int, Answer] = {}
        self._end: int | None = None  # the epoch before which the run ended

    def begin(self, answer: Answer) -> None:
        """Forget other answers: the dataset starts, or continues, with this one."""
        epoch = answer.facts.epoch
        self._answers, self._end = {} if epoch is None else {epoch: answer}, None

    def opened(self, current: Answer, at: tuple[int, int]) -> tuple[Answer | None, int, int]:
        """The answer for the epoch that a position is in, or begins, and the position; see `answer_of`."""
        epoch, step = at
        if step >= current.facts.steps_of(epoch):
            epoch, step = epoch + 1, 0
        return self.answer_of(epoch, current), epoch, step

    def answer_of(self, epoch: int, current: Answer) -> Answer | None:
        """The answer for an epoch; None where the run has ended before it. current: of the dataset."""
        if current.facts.epoch in (None, epoch):
            return current
        if epoch in self._answers:
            return self._answers[epoch]
        if self._end is not None and epoch >= self._end:
            return None
        answer = self._ask(replace(current.hello, epoch=epoch))
        if answer.facts.epoch != epoch:
            self._end = epoch
            return None
        answers = {**self._answers, epoch: answer}
        nearest = sorted(answers, key=lambda other: abs(other - epoch))[:_ANSWERS]
        self._answers = {other: answers[other] for other in nearest}
        return answer

    def state(self, current: Answer, epoch: int, step: int) -> dict[str, Any]:
        """The state before a step. The border of an epoch that has not begun is not decided for a state: that is after
        the last step of the epoch before."""
        facts = current.facts
        if facts.epoch is None:
            return state_of(facts, epoch, step)
        if epoch not in self._answers and (epoch - 1) in {*self._answers, facts.epoch} and step == 0:
            last = self._answers.get(epoch - 1, current).facts
            return state_of(last, epoch - 1, last.steps_of(epoch - 1))
        answer = self.answer_of(epoch, current)
        return state_of((current if answer is None else answer).facts, epoch, step)


_printed_ranks: set[RankInfo] = set()


def warn_of_plan(facts: PlanFacts, last: PlanFacts | None) -> None:
    """Warn of bad files and of nulls, unless the last plan had the same."""
    if facts.bad_files and (last is None or facts.bad_files != last.bad_files):
        warnings.warn(describe_bad_files(facts.bad_files), UserWarning, stacklevel=4)
    for warning in facts.nulls if last is None or facts.nulls != last.nulls else ():
        warnings.warn(warning, UserWarning, stacklevel=4)


def print_ranks(ranks: RankInfo) -> None:
    """Print once which rank this process found itself to be."""
    if ranks not in _printed_ranks:
        _printed_ranks.add(ranks)
        print(describe_ranks(ranks, available_cores()), file=sys.stderr)


def print_rebase(rank: int, facts: PlanFacts, state: Mapping[str, Any]) -> None:
    """Print on rank 0 what a rebase has changed."""
    if rank == 0:
        rest = facts.rest if facts.snapshot != state["snapshot"] else None
        outcome = "the table has not changed" if rest is None else describe_rebase(rest)
        print("\n".join(f"feedline: rebase: {line}" for line in outcome.splitlines()), file=sys.stderr)


# -- torch's DataLoader ------------------------------------------------------------------------------------------------


def refuse_workers() -> None:
    """Refuse a worker process of a DataLoader."""
    if get_worker_info() is not None:
        raise FeedlineError(NO_WORKERS)


def refuse_batching(caller: FrameType) -> None:
    """Refuse a DataLoader with a batch size, whatever its collate_fn. caller: of `iter(dataset)`."""
    if caller.f_code is not _IterableDatasetFetcher.__init__.__code__:
        return  # reading another frame's `f_locals` would keep its variables alive
    if caller.f_locals["auto_collation"]:
        raise FeedlineError(
            "a DataLoader must not join batches: got one with a batch_size, expected None. Use "
            "DataLoader(dataset, batch_size=None), and set the rows of a batch in pipeline.yaml (batch.size)"
        )


def _refuse_to_collate(batches: Sequence[Batch], *, collate_fn_map: object = None) -> NoReturn:
    """Called by `default_collate`, which a DataLoader uses whose dataset wraps this one."""
    raise FeedlineError(
        f"a Batch cannot be batched again: got {len(batches)} of them to join, expected one. Use "
        f"DataLoader(dataset, batch_size=None), and set the rows of a batch in pipeline.yaml (batch.size)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate
