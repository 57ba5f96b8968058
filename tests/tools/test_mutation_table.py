"""The table of faults that `tools/mutations.py` puts into the code, to see which of them tests find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "mutations.py"


def test_every_mutation_names_code_that_is_there_once() -> None:
    pytest.importorskip("coverage", reason="the tool needs the package coverage")
    listed = subprocess.run([sys.executable, TOOL, "--list"], capture_output=True, text=True, timeout=120, check=False)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert listed.stdout.splitlines()[-1].endswith("faults")
