"""Inputs of the fuzzers, as ordinary tests: those they start from, and those with which they found something."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from pathlib import Path

import fuzz
import fuzz_seeds
import pytest
from fuzz_targets import TARGETS

from feedline.native import parquet, ring, rows

pytestmark = pytest.mark.skipif(
    not (rows.COMPILED and parquet.COMPILED and ring.COMPILED), reason="the kernels were not compiled"
)

FINDINGS = Path(__file__).with_name("findings")
# Of the seeds of a target, at least this share is read, not refused (default: all). Drawn levels and arguments mostly
# do not fit each other.
LEAST_READ = {"levels": 0.2, "encoded": 0.95, "rows": 0.2}


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_are_read_as_by_their_oracles(target: str):
    read = [TARGETS[target](seed) for seed in fuzz_seeds.seeds(target)]
    assert len(read) > 5
    assert sum(read) >= LEAST_READ.get(target, 1.0) * len(read)


def test_findings_are_of_targets():
    assert {path.name for path in FINDINGS.iterdir()} <= {*TARGETS}


@pytest.mark.parametrize("path", sorted(FINDINGS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_findings_are_mended(path: Path):
    """Each is an input that a fuzzer reduced: the kernel refuses it, or delivers what its oracle does."""
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.nightly
def test_fuzzers_find_nothing():
    faulthandler.cancel_dump_traceback_later()  # the limit of other tests
    done = subprocess.run(
        [sys.executable, fuzz.__file__, "--seconds", "600"], capture_output=True, text=True, timeout=1500, check=False
    )
    if done.returncode == fuzz.NOT_BUILT:
        pytest.skip(done.stderr[-500:])
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stderr.count("stat::number_of_executed_units") == len(TARGETS)
