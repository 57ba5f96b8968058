"""An installation without the compiled kernels: it delivers the same batches, and says that it is slow."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.native.kernels import KERNELS, compiled_kernels
from feedline.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
MISSING = "Feedline's compiled kernels are missing: got none"
PIPELINE = """\
version: 1
name: small
source: {table: TABLE, split_rows: 1024}
features:
  dense: {price: {column: dense_0, ops: [{fill_null: 0}]}}
  categorical: {word: {column: str_0, ops: [{hash_bucket: 100}]}}
  sparse: {history: {column: hist_0, ops: [{first_x: 5}]}}
  label: {clicked: []}
batch: {size: 256}
cluster: {threads: 1, dashboard: false}
memory: 64MiB
"""
TRAINING = """\
import hashlib, json, warnings
from pathlib import Path
from feedline import FeedlineDataset
digest = hashlib.sha256()
with warnings.catch_warnings(record=True) as caught:
    with FeedlineDataset("pipeline.yaml") as dataset:
        log = dataset.facts["log"]
        for batch in dataset:
            for tensor in batch.to_dict().values():
                digest.update(repr(tensor).encode())
        warned = Path(log).read_text().count("kernels are missing")
print(json.dumps([digest.hexdigest(), [str(each.message) for each in caught], warned]))
"""

COMMANDS = """\
import contextlib, io, json, sys
from feedline.cli import app
from feedline.commands.exit_status import status_of
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = status_of(lambda: app(words))
    print(json.dumps([status, out.getvalue(), errors.getvalue()]))
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package as it is installed where there is no compiler."""
    folder = tmp_path_factory.mktemp("bare")
    shutil.copytree(ROOT / "feedline", folder / "feedline", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return folder


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Path:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE.replace("TABLE", str(clicks)))
    return tmp_path


def run(place: Path, package: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=120, cwd=place, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done


def test_commands_say_which_kernels_there_are(bare: Path, place: Path):
    plan = ["plan", "pipeline.yaml"]
    commands = [["--version"], plan, [*plan, "--json"], ["run", "pipeline.yaml", "--sink", "null", "--json"]]
    done = run(place, bare, "-c", COMMANDS, json.dumps(commands))
    statuses, printed, errors = zip(*map(json.loads, done.stdout.splitlines()), strict=True)
    assert statuses == (0, 0, 0, 0), errors
    version, planned, facts, summary = printed
    assert version == f"{VERSION}\nkernels: none\n"
    assert "pyarrow (installed without a compiler)" in planned
    assert "the kernel" not in planned
    assert json.loads(facts)["kernels"] == []
    assert json.loads(summary)["kernels"] == []
    assert errors[-1].count(MISSING) == 1
    assert "apt install gcc python3-dev" in errors[-1]


@pytest.mark.skipif(
    compiled_kernels() != tuple(KERNELS), reason="the kernels were not compiled: there is no C compiler"
)
def test_a_training_has_the_same_batches_and_is_warned_once(bare: Path, place: Path, monkeypatch: pytest.MonkeyPatch):
    digest, warned, logged = json.loads(run(place, bare, "-c", TRAINING).stdout)
    assert [text.partition(",")[0] for text in warned] == [MISSING]
    assert logged == 1
    monkeypatch.chdir(place)
    with contextlib.redirect_stdout(io.StringIO()) as here:  # with the kernels
        exec(TRAINING, {})
    assert json.loads(here.getvalue()) == [digest, [], 0]
