"""When batches are taken, copied and handed out, with copies that only record what happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from feedline.errors import DataError, FeedlineError
from feedline.loader.device_copies import DEPTH, Prefetcher, copies_to


class RecordedCopies:
    """Copies of anything; `log` has each event in order."""

    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []

    def start(self, batch: Any) -> tuple[Any, Any]:
        self.log.append(("start", batch))
        return f"device {batch}", f"event {batch}"

    def hand_over(self, batch: Any, copied: Any) -> None:
        assert copied == f"event {batch.removeprefix('device ')}"
        self.log.append(("hand over", batch))


def source(*items: Any) -> Callable[[], Any]:
    """Take one item after the other, then None; an exception is raised."""
    left = list(items)

    def take() -> Any:
        item = left.pop(0) if left else None
        if isinstance(item, BaseException):
            raise item
        return item

    return take


def always() -> bool:
    return True


def never() -> bool:
    return False


def test_copies_run_ahead_of_the_batch_that_is_handed_out():
    copies = RecordedCopies()
    prefetcher = Prefetcher(copies)
    take = source(*"abcde")
    assert [prefetcher.next(take, always) for _ in range(6)] == [*(f"device {name}" for name in "abcde"), None]
    assert prefetcher.next(take, always) is None
    started = [name for kind, name in copies.log if kind == "start"]
    assert started == list("abcde")
    for number, name in enumerate("abcde"):
        before = copies.log[: copies.log.index(("hand over", f"device {name}"))]
        assert len([kind for kind, _ in before if kind == "start"]) == min(number + 1 + DEPTH, 5)


def test_a_batch_is_not_held_back_until_the_next_has_arrived():
    copies = RecordedCopies()
    prefetcher = Prefetcher(copies)
    take = source("a", "b")
    assert prefetcher.next(take, never) == "device a"
    assert copies.log == [("start", "a"), ("hand over", "device a")]
    assert prefetcher.next(take, never) == "device b"
    assert prefetcher.next(take, never) is None


def test_an_error_comes_after_the_batches_before_it():
    prefetcher = Prefetcher(RecordedCopies())
    take = source("a", "b", DataError("bad"), "c")
    assert [prefetcher.next(take, always) for _ in range(2)] == ["device a", "device b"]
    with pytest.raises(DataError, match="bad"):
        prefetcher.next(take, always)
    assert prefetcher.next(take, always) == "device c"


def test_an_interrupt_while_reading_ahead_is_raised_at_once():
    prefetcher = Prefetcher(RecordedCopies())
    with pytest.raises(KeyboardInterrupt):
        prefetcher.next(source("a", KeyboardInterrupt()), always)


@pytest.mark.parametrize("device", ["meta", "mps"])
def test_other_devices_are_refused(device: str):
    with pytest.raises(FeedlineError, match=f"device is not supported: got '{device}', expected cuda, cuda:N or cpu"):
        copies_to(device)
