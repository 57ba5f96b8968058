"""Without memory a kernel raises MemoryError, or does without: it never crashes, and nothing else is delivered.

For kernels that tools/checked_kernels.py built (`make test-asan`, `make coverage-native`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import ModuleType
from typing import Any

import page_mutations
import pyarrow as pa
import pytest
from kernel_calls import Call, parquet_calls, ring_calls, row_calls
from page_decoding import File, read_rows, table_of

from feedline.native import parquet, ring, rows

Failing = Callable[[int], int]


def failing(module: ModuleType) -> Failing:
    """The function of a kernel's build that lets an allocation fail: see tests/support/failing_allocations.c."""
    library = ctypes.CDLL(module._compiled.__file__) if module.COMPILED else None
    if not hasattr(library, "fail_allocation"):
        pytest.skip("the kernels are not those that tools/checked_kernels.py builds")
    function: Any = library.fail_allocation
    function.restype, function.argtypes = ctypes.c_long, (ctypes.c_long,)
    return function


def expect_errors(fail: Failing, make: Callable[[], Callable[[], Any]]) -> int:
    """Let each allocation of a call fail in turn: it raises MemoryError, or returns what it does otherwise. make: makes
    the call ready. Returns how many allocations there are.
    """
    expected = make()()
    for nth in range(1, 1000):
        call = make()
        fail(nth)
        try:
            found = call()
        except MemoryError:
            found = MemoryError
        finally:
            left = fail(0)
        if left > 0:  # there were fewer
            assert same(found, expected)
            return nth - 1
        assert found is MemoryError or lacks_memory(found) or same(found, expected)
    raise AssertionError("a call makes 1000 allocations")


def lacks_memory(found: Any) -> bool:
    """Chunks that are read together return None for one without memory."""
    return isinstance(found, (list, tuple)) and None in found


def same(found: Any, expected: Any) -> bool:
    """Objects of the kernels are of one type, all else is equal."""
    if isinstance(expected, (list, tuple)) and isinstance(found, type(expected)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if type(expected).__module__.startswith("feedline.native") or type(expected).__name__ == "PyCapsule":
        return type(found) is type(expected)
    return bool(found == expected)


def calls_of(calls: Callable[[], dict[str, Call]], name: str) -> Callable[[], Callable[[], Any]]:
    def make() -> Callable[[], Any]:
        function, arguments = calls()[name]
        return lambda: function(*arguments)

    return make


@pytest.mark.parametrize("name", list(row_calls()) if rows.COMPILED else [])
def test_of_rows(name: str):
    assert expect_errors(failing(rows), calls_of(row_calls, name)) >= 1


@pytest.mark.parametrize("name", list(parquet_calls()) if parquet.COMPILED else [])
def test_of_parquet(name: str):
    expect_errors(failing(parquet), calls_of(parquet_calls, name))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a lease that cannot be reported
@pytest.mark.parametrize(
    "name", ["receive", "send", "flush", "lease", "SlotQueue", "SlotQueue.write", "SlotQueue.take"]
)
def test_of_rings_and_queues(name: str):
    def call() -> Any:
        with ring_calls() as calls:
            function, arguments = calls[name]
            return function(*arguments)

    expect_errors(failing(rows if name.startswith("SlotQueue") else ring), lambda: call)


@pytest.mark.parametrize("coded", [False, True])
def test_of_column_chunks(coded: bool):
    """Of each type and encoding."""
    fail = failing(parquet)
    samples = page_mutations.samples()
    made = [
        expect_errors(fail, lambda: lambda: table_of(content, 25, coded=coded, prefix=2))  # noqa: B023 -- called here
        for content in [*samples[::8], *samples[3::8]]
    ]
    assert max(made) > 20


@pytest.mark.parametrize("coded", [False, True])
def test_of_chunks_read_alone(coded: bool):
    """One column after the other, by `read_chunks` and `take`."""
    fail = failing(parquet)

    def read(content: bytes) -> Any:
        file = File(content)
        decoder = file.chunk(file.schema.names[0], codes=coded)
        return None if decoder is None else pa.table([read_rows(decoder, 30), read_rows(decoder, 30)], ["a", "b"])

    for content in page_mutations.samples()[1::8]:
        expect_errors(fail, lambda: lambda: read(content))  # noqa: B023 -- called here
