"""Functions of the kernels refuse arguments of other types and sizes: an exception, never a crash."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from kernel_calls import Call, parquet_calls, ring_calls, row_calls

from feedline.native import parquet, ring, rows

pytestmark = pytest.mark.skipif(
    not (rows.COMPILED and parquet.COMPILED and ring.COMPILED), reason="the kernels were not compiled"
)

_READ_ONLY = np.zeros(8, np.int64)
_READ_ONLY.flags.writeable = False
# What stands in the place of an argument, or of an item of one.
_OBJECTS: list[Callable[[], Any]] = [
    lambda: None,
    object,
    lambda: -1,
    lambda: 2**31,
    lambda: 2**62,
    lambda: 2**70,
    lambda: "a string",
    tuple,
    list,
    lambda: ((), ()),
    lambda: [None],
    lambda: [(None,)],
    lambda: [((), [])],
    lambda: [((), [()])],
    lambda: np.zeros((8, 2))[:, 0],
]
_BUFFERS: list[Callable[[], Any]] = [
    lambda: b"",
    lambda: b"12345",
    lambda: _READ_ONLY,
    lambda: np.zeros(8, np.int8),
    lambda: np.full(9, -(2**63), np.int64),
    lambda: np.full(64, 2**63 - 1, np.int64),
    lambda: np.arange(40, dtype=np.int64) % 5,
    lambda: np.array([-(2**63), 2**63 - 1] * 2 + [0], np.int64),
    lambda: np.array([2**31, 0, 2**32 - 1, 2], np.uint32),
]
# SystemError: of the interpreter, where a function expects a tuple or a list.
_REFUSALS = (TypeError, ValueError, OverflowError, BufferError, MemoryError, OSError, SystemError, IndexError)
_UNCHECKED = {"write_slot of parts"}  # whose rows and sizes of parts are not checked: see `rows`


def paths(value: Any, depth: int = 4) -> Iterator[tuple[int, ...]]:
    """Where the items of arguments are: of lists and tuples, and of those in them."""
    for index, item in enumerate(value):
        yield (index,)
        if depth and isinstance(item, (list, tuple)) and not hasattr(item, "_fields"):
            yield from ((index, *rest) for rest in paths(item, depth - 1))


def replaced(value: Any, path: tuple[int, ...], other: Any) -> Any:
    """Arguments with another item at a place."""
    if not path:
        return other
    items = [replaced(item, path[1:], other) if index == path[0] else item for index, item in enumerate(value)]
    return items if isinstance(value, list) else tuple(items)


def check(calls: Callable[[], dict[str, Call]], name: str) -> int:
    """Replace each argument by each other; returns how many calls were refused."""
    refused = 0
    function, arguments = calls()[name]
    for count in range(len(arguments)):
        with pytest.raises(_REFUSALS):
            function(*arguments[:count])
    for path in list(paths(arguments)):
        for other in _OBJECTS if name in _UNCHECKED else [*_OBJECTS, *_BUFFERS]:
            function, arguments = calls()[name]
            try:
                function(*replaced(arguments, path, other()))
            except _REFUSALS:
                refused += 1
    return refused


@pytest.mark.parametrize("name", list(row_calls()) if rows.COMPILED else [])
def test_of_rows(name: str):
    function, arguments = row_calls()[name]
    function(*arguments)
    assert check(row_calls, name) > 10


@pytest.mark.parametrize("name", list(parquet_calls()) if parquet.COMPILED else [])
def test_of_parquet(name: str):
    function, arguments = parquet_calls()[name]
    function(*arguments)
    assert check(parquet_calls, name) >= 10 * bool(arguments)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a lease of no slot
@pytest.mark.parametrize("name", ["receive", "send", "flush", "lease", "SlotQueue", "SlotQueue.write"])
def test_of_rings_and_queues(name: str):
    with ring_calls() as calls:
        assert check(lambda: calls, name) > 10


def test_several_at_once():
    """Drawn arguments in several places."""
    generator = random.Random(3)
    refused = 0
    for calls in (row_calls, parquet_calls):
        names = [name for name in calls() if name not in _UNCHECKED]
        for _ in range(400):
            function, arguments = calls()[generator.choice(names)]
            for path in generator.choices([*paths(arguments), (0,)], k=2) if arguments else []:
                try:
                    arguments = replaced(arguments, path, generator.choice([*_OBJECTS, *_BUFFERS])())
                except (TypeError, IndexError):  # that place is gone
                    continue
            try:
                function(*arguments)
            except _REFUSALS:
                refused += 1
    assert refused > 400
