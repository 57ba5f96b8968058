"""Kernels that are checked while tests run: what is built, and the lines that tests reach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import checked_kernels
import pytest
from checked_kernels import FileLines, excluded_lines, file_lines, percent, ranges, table

TOOL = Path(checked_kernels.__file__)


def test_a_line_is_reached_where_any_kernel_or_clone_ran_it():
    lines = [(1, 0), (1, 3), (2, 0), (3, 0), (9, 4)]
    counted = [{"line_number": number, "count": count} for number, count in lines]
    reports = [
        {"files": [{"file": "feedline/native/_a.h", "lines": counted}, {"file": "/usr/include/b.h", "lines": counted}]},
        {"files": [{"file": "feedline/native/_a.h", "lines": [{"line_number": 2, "count": 1}]}]},
    ]
    [found] = file_lines(reports, {})
    assert found == FileLines("_a.h", frozenset({1, 2, 3, 9}), frozenset({1, 2, 9}))
    assert (found.unreached, found.percent, percent([found])) == ([3], 75.0, 75.0)
    [without] = file_lines(reports, {"_a.h": frozenset({3})})
    assert without.percent == 100.0
    assert table([found]).splitlines()[-1].split() == ["all", "4", "1", "75.0", "%"]


def test_ranges_join_neighbours():
    assert ranges([]) == ""
    assert ranges([3, 4, 5, 9, 11, 12]) == "3-5, 9, 11-12"


def test_lines_are_excluded_with_a_reason_only(tmp_path: Path):
    (tmp_path / "a.c").write_text("x; /* unreachable: it is checked before */\ny; /* unreachable: */\nz;\n")
    assert excluded_lines(tmp_path) == {"a.c": frozenset({1})}


def test_all_kernels_are_built_and_allocations_fail_in_them():
    assert set(checked_kernels.kernels()) == {"_rows", "_ring", "_parquet"}
    assert {"malloc", "calloc", "realloc", "PyMem_Calloc", "PyList_New", "Py_BuildValue"} <= {
        *checked_kernels.wrapped_names()
    }


def test_the_kernels_tests_are_run_unless_others_are_named():
    assert checked_kernels.with_tests(["-n", "0", "-q"]) == ["-n", "0", "-q", *checked_kernels.TESTS]
    assert checked_kernels.with_tests(["tests/native", "-x"]) == ["tests/native", "-x"]
    assert all((checked_kernels.ROOT / each).exists() for each in checked_kernels.TESTS)


@pytest.mark.nightly
@pytest.mark.parametrize("check", ["sanitize", "measure"])
def test_kernels_pass_their_tests_when_checked(check: str):
    """No sanitizer reports anything; 95 % of the lines are reached."""
    done = subprocess.run(
        [sys.executable, TOOL, check, "-n", "0", "-q", "-m", "not nightly"],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode == checked_kernels.NOT_BUILT:
        pytest.skip(done.stderr[-500:])
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-4000:]}"
    assert " passed" in done.stdout
