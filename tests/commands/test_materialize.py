"""`feedline materialize` as a person uses it, interrupted, killed, and without room."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import zarr
from toy_ops import written
from typer.testing import CliRunner

from feedline.cli import app
from feedline.errors import SpecError
from feedline.materialize.output_folder import MARKER

FEATURES: dict[str, Any] = {
    "dense": {"dense_0": [{"fill_null": 0}]},
    "categorical": {"id_0": ["vocabulary"]},
    "sparse": {"hist_0": []},
    "label": {"clicked": []},
}
# The command, with a signal to itself at the first progress.
SIGNALLED = """
import os, signal, sys
number = getattr(signal, sys.argv.pop())
import feedline.commands.materialize as command
def show(line, progress):
    if progress.phase == "computing" and progress.done:
        os.kill(os.getpid(), number)
command.ProgressLine.show = show
from feedline.__main__ import main
main()
"""


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["materialize", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def path(tmp_path: Path, clicks: Path) -> str:
    return str(written(tmp_path, clicks, features=FEATURES, fit="auto"))


def test_it_fits_writes_and_says_so(tmp_path: Path, path: str):
    out = tmp_path / "out"
    assert "20,000 rows in " in run(path, str(out))
    assert zarr.open_group(out)["sparse/hist_0/offsets"].shape == (20_001,)
    with pytest.raises(SpecError, match="Add --overwrite"):
        run(path, str(out), "--format", "parquet")
    report = json.loads(run(path, str(out), "--format", "parquet", "--overwrite", "--json"))
    assert (report["rows"], report["format"], report["features"]) == (20_000, "parquet", 4)
    assert ds.dataset(out).to_table().num_rows == 20_000
    chosen = run(path, str(tmp_path / "few"), "--set", 'source.where=ds == "2026-01-01"')
    assert int(chosen.split()[0].replace(",", "")) < 20_000


def test_without_a_fit(tmp_path: Path, clicks: Path):
    path = str(written(tmp_path, clicks, features=FEATURES))
    with pytest.raises(SpecError, match="feedline fit"):
        run(path, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def hidden(tmp_path: Path) -> list[str]:
    return [path.name for path in tmp_path.glob(".*.materialize")]


@pytest.mark.parametrize(
    ("signal", "status", "target"),
    [
        ("SIGINT", 130, "new"),
        pytest.param("SIGINT", 130, "out", marks=pytest.mark.nightly),
        pytest.param("SIGTERM", 143, "new", marks=pytest.mark.nightly),
        ("SIGTERM", 143, "out"),
        pytest.param("SIGKILL", -9, "new", marks=pytest.mark.nightly),
        ("SIGKILL", -9, "out"),
    ],
)
def test_an_interrupted_run_leaves_the_earlier_one(tmp_path: Path, path: str, signal: str, status: int, target: str):
    out, options = tmp_path / "out", ["--overwrite"] if target == "out" else []
    run(path, str(out), "--format", "parquet")
    before = (out / MARKER).read_bytes()
    code = [sys.executable, "-c", SIGNALLED, "materialize", path, str(tmp_path / target), *options, signal]
    ended = subprocess.run(code, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == status, ended.stderr
    assert len(hidden(tmp_path)) == (signal == "SIGKILL")
    assert (out / MARKER).read_bytes() == before
    assert not (tmp_path / "new").exists()
    assert "stopped: OUT was not completed" in ended.stderr or signal != "SIGINT"


def test_a_full_disk_is_explained(tmp_path: Path, path: str):
    limited = f'ulimit -f 40; exec "{sys.executable}" -m feedline materialize "{path}" "{tmp_path / "out"}"'
    run(path, str(tmp_path / "first"))  # fits
    for format in ("zarr", "parquet"):
        ended = subprocess.run(
            ["bash", "-c", f"{limited} --format {format}"], capture_output=True, text=True, timeout=120, check=False
        )
        assert ended.returncode == 1, ended.stderr
        assert "out has no space left" in ended.stderr
        assert not (tmp_path / "out").exists()
        assert not hidden(tmp_path)
