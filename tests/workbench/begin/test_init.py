"""`feedline init` as a person uses it: what it writes, prints, asks and refuses."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import PATIENCE_S
from profiles import binary, column, session_of, time_of
from profiles import table as table_of
from rich.console import Console
from typer.testing import CliRunner

from feedline import Pipeline
from feedline.cli import app
from feedline.config import load_spec
from feedline.errors import PlanError, SpecError, TableError, TableNotFoundError
from feedline.workbench.begin import init as command
from feedline.workbench.begin.init import ask_choices
from feedline.workbench.begin.init_plan import Choices
from feedline.workbench.profile.table_facts import DistinctCount, TableFacts

FILES = {"pipeline.yaml", "train.py"}
ROWS = 300


def init(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["init", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "t.parquet"
    path.parent.mkdir()
    rng = np.random.default_rng(1)
    pq.write_table(
        pa.table({"clicked": rng.integers(0, 2, ROWS), "a b": rng.normal(size=ROWS), "c": rng.random(ROWS)}), path
    )
    return path


def test_it_writes_two_files_and_says_what_comes_next(table: Path, tmp_path: Path):
    shown = init(table, "-o", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    for line in (
        "label clicked: binary",
        "features 2 dense",
        f"feedline fit {tmp_path}/out/pipeline.yaml",
        f"feedline run {tmp_path}/out/pipeline.yaml --sink null",
        f"python {tmp_path}/out/train.py",
    ):
        assert line in " ".join(shown.split())
    spec = load_spec(tmp_path / "out" / "pipeline.yaml")
    assert spec.source.table == str(table)
    assert "schema" not in (tmp_path / "out" / "pipeline.yaml").read_text()


def test_the_schema_for_editors_is_written_if_asked_for(table: Path, tmp_path: Path):
    shown = init(table, "-o", tmp_path / "out", "--schema")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*FILES, "pipeline.schema.json"}
    assert f"{tmp_path}/out/pipeline.schema.json. Next:" in " ".join(shown.split())
    schema = json.loads((tmp_path / "out" / "pipeline.schema.json").read_text())
    assert schema["title"].startswith("pipeline.yaml of Feedline")
    first = (tmp_path / "out" / "pipeline.yaml").read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=pipeline.schema.json"


def test_a_relative_table_stays_relative(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    init("data/t.parquet", "-o", "deep/er")
    text = (tmp_path / "deep" / "er" / "pipeline.yaml").read_text()
    assert "\n  table: ../../data/t.parquet\n" in text
    assert load_spec("deep/er/pipeline.yaml").source.table == str(table)
    init("data/*.parquet", "-o", "glob")
    assert load_spec("glob/pipeline.yaml").source.table == str(table.parent / "*.parquet")


def test_files_are_replaced_only_with_force(table: Path, tmp_path: Path):
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(SpecError, match=r"train.py exist in .*: got files that somebody may have edited.*--force"):
        init(table, "-o", tmp_path)
    assert (tmp_path / "train.py").read_text() == "mine"
    assert not (tmp_path / "pipeline.yaml").exists()
    init(table, "-o", tmp_path, "--force")
    assert "clicked" in (tmp_path / "train.py").read_text()


def test_stdout_prints_the_pipeline_alone(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    text = init(table, "--stdout")
    assert text.startswith("# Written by `feedline init`")
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def test_wrong_input_is_refused_with_the_remedy(table: Path, tmp_path: Path):
    out = ("-o", tmp_path / "out")
    with pytest.raises(SpecError, match=r"column 'clickd' is not in the table. Did you mean 'clicked'"):
        init(table, *out, "--label", "clickd")
    with pytest.raises(SpecError, match="column 'when' is not in the table"):
        init(table, *out, "--time", "when")
    with pytest.raises(TableNotFoundError):
        init(tmp_path / "nothing", *out)
    pq.write_table(pa.table({"clicked": pa.array([], pa.int64())}), table)
    with pytest.raises(PlanError, match=r"t.parquet has no rows: got 0 rows in 1 files"):
        init(table, *out)
    pq.write_table(pa.table({"x": [1.5, 2.5], "z": [1.0, 3.0]}), table)
    with pytest.raises(SpecError, match=r"is a label without a doubt.*Name it with --label: one of 'x', 'z'"):
        init(table, *out)
    assert not (tmp_path / "out").exists()


def test_check_says_which_packages_it_needs(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None if module == "sklearn" else module)
    with pytest.raises(
        SpecError, match=r"--check needs packages .*: got no scikit-learn. Run `pip install scikit-learn`"
    ):
        init(table, "-o", tmp_path / "out", "--check")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_refused(table: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"file.* cannot be written"):
        init(table, "-o", tmp_path / "file")


def test_a_schema_of_something_else_is_not_replaced(table: Path, tmp_path: Path):
    (tmp_path / "pipeline.schema.json").write_text('{"title": "mine"}')
    with pytest.raises(SpecError, match=r"pipeline.schema.json holds something else"):
        init(table, "-o", tmp_path, "--schema")
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pipeline.schema.json"}


def test_the_answers_of_a_person_are_taken(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "is_interactive", lambda: True)
    result = CliRunner().invoke(app, ["init", str(table), "-o", str(tmp_path / "out")], input="2\nc\n")
    assert result.exit_code == 0
    assert "Which column shall the model predict?" in result.stdout
    assert 'LABEL = "c"' in (tmp_path / "out" / "train.py").read_text()
    init(table, "-o", tmp_path / "yes", "--yes")
    assert 'LABEL = "clicked"' in (tmp_path / "yes" / "train.py").read_text()


# The command with its own terminal: the first that the leader of a session opens.
ON_TERMINAL = """
import os, sys
terminal = os.open(sys.argv.pop(1), os.O_RDWR)
for stream in range(3):
    os.dup2(terminal, stream)
from feedline.__main__ import main
main()
"""


def test_an_interrupt_at_a_question_leaves_nothing(table: Path, tmp_path: Path):
    main, terminal = os.openpty()
    words = ["init", str(table), "-o", str(tmp_path / "out")]
    command = [sys.executable, "-c", ON_TERMINAL, os.ttyname(terminal), *words]
    with subprocess.Popen(command, start_new_session=True) as program:
        deadline = threading.Timer(PATIENCE_S, program.kill)
        deadline.start()
        shown = b""
        while b"[clicked]: " not in shown:
            shown += os.read(main, 4096)
        while program.poll() is None:
            os.write(main, b"\x03")  # one between the prompt and the wait for a key is lost, as `input` is written
            with suppress(subprocess.TimeoutExpired):
                program.wait(5)
        status = program.returncode
        deadline.cancel()
    os.close(terminal)
    while more := _rest(main):
        shown += more
    os.close(main)
    assert status == 130, shown.decode()
    assert b"stopped: nothing was written" in shown
    assert not (tmp_path / "out").exists()


def _rest(main: int) -> bytes:
    try:
        return os.read(main, 4096)
    except OSError:  # nobody has the terminal any more
        return b""


def test_written_files_may_be_read_by_others(table: Path, tmp_path: Path):
    init(table, "-o", tmp_path / "out")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "out" / "train.py").stat().st_mode) == 0o666 & ~mask


def test_odd_columns_do_not_end_it_for_others(tmp_path: Path):
    rng = np.random.default_rng(1)
    columns = {
        "clicked": rng.integers(0, 2, ROWS),
        "price": rng.random(ROWS),
        "until": pa.array([253_402_300_799, 1_704_067_200] * (ROWS // 2), pa.timestamp("s", "Asia/Tokyo")),
        "since": pa.array([-62_135_596_800, 1_704_067_200] * (ROWS // 2), pa.timestamp("ms", "US/Pacific")),
        "day": pa.array([2**31 - 1, -(2**31)] * (ROWS // 2), pa.int32()).cast(pa.date32()),
        "offset": pa.array(1_704_067_200_000 + np.arange(ROWS) * 60_000, pa.timestamp("ms", "+05:30")),
        "zone": pa.array(1_704_067_200_000 + np.arange(ROWS) * 60_000, pa.timestamp("ms", "Foo/Bar")),
        "infinite": np.where(np.arange(ROWS) % 2, np.inf, -np.inf),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[1]"] * (ROWS // 2))),
        "a\0b": rng.random(ROWS),
    }
    pq.write_table(pa.table(columns), tmp_path / "odd.parquet")
    shown = init(tmp_path / "odd.parquet", "-o", tmp_path / "out", "--label", "clicked")
    for name in ("zone", "infinite", "a\\x00b"):
        assert f"left out {name}" in " ".join(shown.split())
    pipeline = Pipeline.from_yaml(tmp_path / "out" / "pipeline.yaml")
    pipeline.fit()
    assert sum(batch.rows for batch in pipeline.batches()) > 0


def test_a_folder_of_two_tables_is_refused(tmp_path: Path):
    folder = tmp_path / "warehouse"
    folder.mkdir()
    for day in (1, 2, 3):
        clicks = pa.table({"user": range(ROWS), "item": range(ROWS), "clicked": [0, 1] * (ROWS // 2)})
        pq.write_table(clicks, folder / f"clicks-{day}.parquet")
    pq.write_table(pa.table({"user": [1, 2], "age": [20, 30], "country": ["a", "b"]}), folder / "users.parquet")
    with pytest.raises(
        TableError,
        match=r"got 'clicks-1.parquet' and 'clicks-2.parquet' \(of 3 files\); 'users.parquet', which share only "
        r"'user', expected .* by a path or a glob, or give each table a folder",
    ):
        init(folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    init(f"{folder}/clicks-*.parquet", "-o", tmp_path / "out")


def test_files_that_no_pipeline_reads_as_one_table_are_refused(table: Path, tmp_path: Path):
    pq.write_table(pa.table({"clicked": [0, 1], "c": ["x", "y"]}), table.parent / "u.parquet")
    with pytest.raises(TableError, match=r"'c' changed its kind between files: got double in .*t.parquet and string"):
        init(table.parent, "-o", tmp_path / "out")


FACTS = table_of(
    binary(),
    column("t", "time", "date32[day]"),
    column("u", "time", "date32[day]"),
    column("s"),
    times=(time_of("t", None, None), time_of("u", None, None)),
    sessions=(session_of("s"),),
)


def asked(*answers: str, choices: Choices | None = None, facts: TableFacts = FACTS) -> tuple[Choices, str]:
    lines: Iterator[str] = iter(answers)
    console = Console(file=io.StringIO(), width=200)

    def read(prompt: str) -> str:
        console.print(prompt, markup=False)
        return next(lines)

    found = ask_choices(facts, choices or Choices(), console, read)
    assert next(lines, None) is None
    return found, console.file.getvalue()


def test_an_empty_line_takes_the_guess():
    found, shown = asked("", "", "")
    assert found == Choices(label="clicked", time="t", session="s")
    assert "1. clicked: named clicked; 0 and 1" in shown
    assert "[clicked]" in shown


def test_numbers_names_and_none():
    assert asked("1", "2", "-")[0] == Choices(label="clicked", time="u", session="")
    assert asked("s", "u", "s")[0] == Choices(label="s", time="u", session="s")


def test_a_mistake_is_asked_again():
    found, shown = asked("clickd", "9", "-", "clicked", "", "")
    assert found.label == "clicked"
    assert shown.count("expected a number of the list, or one of clicked, t, u, s") == 3


def test_a_question_mark_lists_all_columns_and_strings_of_a_few_classes_are_offered():
    species = column("species", "string", "string", vocabulary=DistinctCount(sample=3, table=3, error=0.0, once=0.0))
    species = replace(species, string_bytes=(6.0, 10))
    facts = table_of(column("a"), species, *(column(f"c{index}") for index in range(20)))
    found, shown = asked("?", "1", facts=facts)
    assert found.label == "species"
    assert "1. species: string, 3 values" in shown
    assert "? for all columns" in shown
    listed = shown.split("\n")
    assert sum(line.startswith("  c") for line in listed) == 20
    assert any(line.startswith("  species  string, 3 values") for line in listed)


def test_what_was_answered_before_is_not_asked():
    assert asked(choices=Choices(label="s", time="", session="", max_features=3))[0] == Choices(
        label="s", time="", session="", max_features=3
    )


def test_without_a_guess_an_answer_is_needed():
    found, shown = asked("", "a", facts=table_of(column("a"), column("b")))
    assert found.label == "a"
    assert "no column ''" in shown


def test_the_end_of_the_input_is_an_error():
    def read(_: str) -> str:
        raise EOFError

    with pytest.raises(SpecError, match="the input ended before an answer"):
        ask_choices(FACTS, Choices(), Console(file=io.StringIO()), read)
