"""A pytest plugin that names the running test to coverage, in this process and in those that the test starts.

Loaded by `mutations.py --collect` (`-p coverage_contexts`). Coverage starts in every Python process whose environment
has COVERAGE_PROCESS_START; a process takes its context from CONTEXT_VARIABLE when it starts, while pytest's own process
switches with each test. A process that outlives its test keeps that test's name.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import coverage
import pytest

CONTEXT_VARIABLE = "FEEDLINE_TEST_CONTEXT"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attribute all lines that run from here on to this test, regardless of its parameters."""
    name = item.nodeid.partition("[")[0]
    os.environ[CONTEXT_VARIABLE] = name
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(name)
    return (yield)
