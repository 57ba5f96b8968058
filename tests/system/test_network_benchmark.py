"""The benchmark of a network between two hosts still runs (tiny)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lossy_link import missing_link

NETWORK = Path(__file__).resolve().parents[2] / "benchmarks" / "network.py"


@pytest.mark.nightly
@pytest.mark.skipif(bool(missing_link()), reason=missing_link())
def test_a_training_behind_a_delay_is_measured():
    options = ["--rows", "8000", "--batch", "512", "--rounds", "1", "--workers", "1", "--settings", "20 ms", "--json"]
    run = subprocess.run([sys.executable, NETWORK, *options], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    [[measured]] = json.loads(run.stdout).values()
    assert min(measured.values()) > 0
