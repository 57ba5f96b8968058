"""All commands end with the same exit status for the same kind of error, and print the error.

0: done; 1: a job failed; 2: wrong input.
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import write
from pipelines import PATIENCE_S
from processes import ended_here

import feedline
from feedline import Pipeline
from feedline.__main__ import main
from feedline.commands.exit_status import exit_on_signals
from feedline.errors import TableArgumentError, TableError, TableNotFoundError, from_wire
from feedline.loader.state import state_of
from feedline.native.kernels import kernels_text
from feedline.version import VERSION


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table, a folder without one, and pipelines over them."""
    folder = tmp_path_factory.mktemp("exits")
    write(folder / "t", 2)
    (folder / "empty").mkdir()
    (folder / "other.txt").write_text("no table")
    (folder / "no.json").write_text("no state")
    for name, table, column in (
        ("p", "t", "x"),
        ("missing", "nothing", "x"),
        ("empty", "empty", "x"),
        ("col", "t", "zz"),
    ):
        document = {
            "version": 1,
            "name": "exits",
            "work_dir": "work",
            "source": {"table": table},
            "features": {"dense": {column: []}, "label": {"y": []}},
            "batch": {"size": 64},
        }
        (folder / f"{name}.yaml").write_text(json.dumps(document))
    plan = Pipeline.from_yaml(folder / "p.yaml").plan()
    state = state_of(plan.facts(), 0, 1)
    (folder / "state.json").write_text(json.dumps({**state, "snapshot": "f" * 64}))
    return folder


WRONG = [
    ("plan nowhere.yaml", "nowhere.yaml"),
    *((f"{command} missing.yaml", "does not exist") for command in ("plan", "check", "fit")),
    *((f"{command} empty.yaml", "is empty") for command in ("plan", "check", "fit")),
    *((f"{command} col.yaml", "column") for command in ("plan", "check", "fit", "head", "run --sink null")),
    ("snapshot missing.yaml OUT/s", "does not exist"),
    ("rebase p.yaml nowhere.json", "is not a state"),
    ("rebase p.yaml no.json", "is not a state"),
    ("rebase p.yaml state.json", "is not in"),
    ("optimize t t", "source and target overlap"),
    ("optimize t t/below", "source and target overlap"),
    ("optimize t .", "source and target overlap"),
    ("optimize nothing OUT/o", "does not exist"),
    ("optimize t OUT/o --cluster-by zz", "--cluster-by names column 'zz'"),
    ("optimize t OUT/o --cluster-by ids", "--cluster-by names column 'ids' of type"),
    ("optimize t OUT/o --history x --sort-by y --cluster-by x", "--history orders and stores rows by its own rules"),
    ("optimize t OUT/o --sort-by x", "--sort-by sorts within the keys of --cluster-by"),
    ("optimize t OUT/o --flatten x", "--flatten names column 'x'"),
    ("optimize t OUT/o --rows request", "--rows request needs what makes a request"),
    ("optimize t OUT/o --rows request --by zz", "--by names column 'zz'"),
    ("optimize t OUT/o --rows impression", "--rows impression needs to know the lists"),
    ("optimize t OUT/o --projection zz", "--projection names column 'zz'"),
    ("optimize t OUT/o --row-group-rows 0", "out of range"),
    ("optimize t OUT/o --for speed", "--for is unknown"),
    ("optimize t . --file-bytes much", "--file-bytes is not a size"),
    ("usage nothing", "does not exist"),
    ("usage missing.yaml", "does not exist"),
    ("transform p.yaml nowhere.parquet OUT/x.parquet", "does not exist"),
    ("generate clicks t --rows 10", "is not empty"),
    ("generate clicks other.txt --rows 10", "is a file"),
    ("plan p.yaml --set source.where=x", "--set source.where"),
    ("run p.yaml --sink nowhere", "--sink is unknown"),
    ("run p.yaml --ranks 3-1", "--ranks is not a list of ranks"),
    ("plan p.yaml --world-size 0", "--world-size"),
    ("plan p.yaml --set batch.size=99999999", "fewer rows than one global step"),
]


FEEDS = pytest.param("run --sink null missing.yaml", "does not exist", marks=pytest.mark.nightly)


@pytest.mark.parametrize(("line", "words"), [*WRONG, FEEDS])
def test_wrong_input_ends_with_2(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, words: str):
    monkeypatch.chdir(here)
    before = sorted(here.rglob("*.parquet"))
    done = ended_here(*line.replace("OUT", str(tmp_path)).split())
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert sorted(here.rglob("*.parquet")) == before


def test_a_damaged_table_ends_with_1(here: Path, tmp_path: Path):
    """The input is not at fault."""
    write(tmp_path / "t", 1)
    path = tmp_path / "p.yaml"
    path.write_text((here / "p.yaml").read_text())
    next((tmp_path / "t").rglob("*.parquet")).write_bytes(b"no Parquet")
    for command in ("plan", "check", "fit"):
        assert ended_here(command, path).returncode == 1
    null = pa.table({"x": pa.array([None], pa.float32()), "y": [1]})
    next((tmp_path / "t").rglob("*.parquet")).unlink()
    pq.write_table(null, tmp_path / "t" / "one.parquet")
    assert ended_here("check", path).returncode == 1


@pytest.mark.parametrize("word", ["--version", "version"])
def test_the_version_is_printed(word: str):
    done = ended_here(word)
    assert (done.returncode, done.stdout) == (0, f"{VERSION}\nkernels: {kernels_text()}\n")


def test_a_wrong_argument_is_a_table_error():
    """Python callers catch TableError."""
    assert issubclass(TableArgumentError, TableError)
    assert isinstance(from_wire("TableArgumentError", "x"), TableArgumentError)
    assert isinstance(from_wire("TableNotFoundError", "x"), TableNotFoundError)


def test_output_that_cannot_be_written_ends_with_1_and_a_remedy(here: Path):
    words = [sys.executable, "-m", "feedline", "plan", str(here / "p.yaml")]
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "error: standard output cannot be written: No space left on device. "
    )
    assert "Traceback" not in done.stderr


def test_closed_streams_are_the_null_device():
    """Else files and sockets would get their numbers, and what is printed."""
    code = (
        "import os, sys; from feedline.__main__ import _open_closed_streams as open_them; open_them(); print(1); "
        "sys.exit(any(os.readlink(f'/proc/self/fd/{number}') != os.devnull for number in range(3)))"
    )
    words = shlex.join([sys.executable, "-c", code])
    assert subprocess.run(["sh", "-c", f"{words} <&- >&- 2>&-"], timeout=PATIENCE_S, check=False).returncode == 0


def test_an_interrupt_while_the_command_line_is_imported_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch):
    def interrupt(name: str, *_: object) -> None:
        if name == "feedline.cli":
            raise KeyboardInterrupt

    monkeypatch.delattr(feedline, "cli", raising=False)
    monkeypatch.delitem(sys.modules, "feedline.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [SimpleNamespace(find_spec=interrupt), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["feedline", "fit"])
    threshold = gc.get_threshold()
    with pytest.raises(SystemExit) as end:
        main()
    gc.set_threshold(*threshold)
    assert end.value.code == 130


def panic_after(number: signal.Signals) -> None:
    """Compiled code that Python code has called calls Python code, and panics where that raises."""
    try:
        os.kill(os.getpid(), number)
    except BaseException as error:
        raise pl.exceptions.PanicException("called `Result::unwrap()` on an `Err` value") from error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_panic_where_a_signal_ended_a_callback_is_the_signal(number: signal.Signals):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended, exit_on_signals():
            panic_after(number)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 128 + number


def test_a_panic_without_a_signal_stays_one():
    with pytest.raises(pl.exceptions.PanicException), exit_on_signals():
        raise pl.exceptions.PanicException("called `Result::unwrap()` on an `Err` value")
