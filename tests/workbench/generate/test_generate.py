"""The generated click warehouse, read back with pyarrow and DuckDB."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import dask
import pyarrow as pa
import pytest
from generated_tables import SMALL, files, generate, read, unchanged
from ruamel.yaml import YAML
from typer.testing import CliRunner

from feedline.cli import app
from feedline.config import parse_spec
from feedline.errors import FeedlineError, SpecError, TableError
from feedline.workbench.generate import generate as generating
from feedline.workbench.generate.clicks import ClickFile, ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks


def test_same_bytes_however_many_workers(tmp_path: Path) -> None:
    for name, threads in (("one", 1), ("two", 2)):
        generate(tmp_path / name, threads=threads, **SMALL)
    with dask.config.set(scheduler="synchronous"):
        generate(tmp_path / "sync", threads=None, **SMALL)
    one = {file.relative_to(tmp_path / "one"): file.read_bytes() for file in files(tmp_path / "one")}
    for other in ("two", "sync"):
        assert {f.relative_to(tmp_path / other): f.read_bytes() for f in files(tmp_path / other)} == one
    generate(tmp_path / "seed", seed=1, **SMALL)
    assert not any((tmp_path / "seed" / name).read_bytes() == content for name, content in one.items())


def test_the_command_takes_the_share_of_columns_that_repeat(tmp_path: Path) -> None:
    arguments = ["--rows", "400", "--days", "1", "--user-share", "0.25", "--keep-probability", "1", "--joint-changes"]
    done = CliRunner().invoke(app, ["generate", "clicks", str(tmp_path / "t"), *arguments])
    assert done.exit_code == 0, done.output
    table = read(tmp_path / "t")
    shares = {name: unchanged(table, name) for name in ("dense_2", "dense_3", "id_5", "hist_5")}
    assert shares.pop("dense_3") < 0.2, "round(0.25 * 13) are the first three"
    assert set(shares.values()) == {1.0}
    generate_clicks(
        str(tmp_path / "same"),
        ClickRecipe(rows=400, days=1, user_share=0.25, keep_probability=1, joint_changes=True),
        threads=1,
    )
    assert [file.read_bytes() for file in files(tmp_path / "same")] == [f.read_bytes() for f in files(tmp_path / "t")]


SILLY: list[tuple[dict[str, Any], str]] = [
    ({"rows": 0}, "rows is out of range: got 0"),
    ({"rows": 2.5}, "rows is out of range: got 2.5"),
    ({"rows": True}, "rows is out of range"),
    ({"rows": 2, "days": 3}, "days exceed rows"),
    ({"sessions_mean": math.nan}, "sessions_mean is out of range"),
    ({"seed": -1}, "seed is out of range"),
    ({"user_share": 1.5}, "user_share is out of range"),
    ({"joint_changes": 1}, "joint_changes is no boolean: got 1"),
    ({"null_share": "some"}, "null_share is out of range"),
    ({"history_min": 9, "history_max": 3}, "history_min exceeds history_max"),
    ({"part_rows": 1 << 25}, "part_rows is out of range"),
    ({"rows": 1 << 40, "days": 1, "part_rows": 1}, "too many files"),
    ({"compression": "zip"}, "compression is unknown: got 'zip'"),
    ({"start": date(9999, 12, 30)}, "after the calendar"),
    ({"threads": 0}, "threads are out of range"),
]


def test_invalid_values_are_refused_and_write_nothing(tmp_path: Path) -> None:
    for options, words in SILLY:
        with pytest.raises(SpecError, match=words):
            generate(tmp_path / "t", **options)
    assert not (tmp_path / "t").exists()


def test_a_target_in_use_is_refused(tmp_path: Path) -> None:
    generate(tmp_path / "t", rows=50, days=2)
    with pytest.raises(TableError, match=r"is not empty: .* holds 2 entries"):
        generate(tmp_path / "t", rows=50, days=1)
    generate(tmp_path / "t", rows=70, days=1, overwrite=True, start=date(2026, 2, 1))
    assert read(tmp_path / "t").num_rows == 70
    assert [entry.name for entry in (tmp_path / "t").iterdir()] == ["ds=2026-02-01"]
    (tmp_path / "t" / "thesis.tex").write_text("years of work")
    with pytest.raises(TableError, match=r"'thesis.tex', which is no ds= partition"):
        generate(tmp_path / "t", rows=70, days=1, overwrite=True)
    assert read_names(tmp_path / "t") == ["ds=2026-02-01", "thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(TableError, match="location is a file"):
        generate(tmp_path / "file", rows=50, days=1)
    with pytest.raises(FeedlineError, match="location is empty"):
        generate_clicks("", ClickRecipe(rows=1, days=1))
    with pytest.raises(TableError, match="cannot hold a table"):
        generate_clicks("gopher://x/y", ClickRecipe(rows=1, days=1))


def read_names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_uri_and_an_empty_folder_serve_too(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    generate_clicks((tmp_path / "t").as_uri(), ClickRecipe(rows=30, days=1), threads=1)
    assert read(tmp_path / "t").num_rows == 30


def test_a_failing_part_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Iterator[pa.Table]:
        raise OSError("the disk is full")
        yield

    monkeypatch.setattr("feedline.workbench.generate.clicks.ClickFile.row_groups", fail)
    with pytest.raises(OSError, match="disk is full"):
        generate(tmp_path / "t", rows=10, days=1)
    assert files(tmp_path / "t") == []


def test_a_task_of_a_replaced_run_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first run writes, another one replaces it, and ends."""
    part, first = generating._write_files, []

    def overtaken(*arguments: Any) -> Any:
        if not first:
            first.append(arguments)
            generate(tmp_path / "t", rows=70, days=1, overwrite=True)
        return part(*arguments)

    monkeypatch.setattr(generating, "_write_files", overtaken)
    with pytest.raises(TableError, match="is no longer this run's: got none, expected the claim of"):
        generate(tmp_path / "t", rows=50, days=1)
    assert read(tmp_path / "t").num_rows == 70
    assert read_names(tmp_path / "t") == ["ds=2026-01-01"]


def test_a_part_in_the_making_is_smaller_than_its_rows(tmp_path: Path) -> None:
    peaks, sizes = [], []
    for groups in (4, 16):
        recipe = ClickRecipe(
            rows=groups * 4096,
            days=1,
            row_group_rows=4096,
            part_rows=groups * 4096,
            clustered=False,
            compression="none",
        )  # fmt: skip
        sum(table.nbytes for table in ClickFile(recipe, 0, 0).row_groups())  # once before, to fill the caches
        tracemalloc.start()
        sizes.append(sum(table.nbytes for table in ClickFile(recipe, 0, 0).row_groups()))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 0.3 * (sizes[1] - sizes[0])
    assert peaks[1] < 0.6 * sizes[1]


def test_pipeline_text_is_yaml_of_this_table(tmp_path: Path) -> None:
    text = clicks_pipeline(
        str(tmp_path / "a: b's"), dense=2, ids=1, strings=1, histories=1, tail="pad", shuffle={"seed": 3}
    )
    spec = YAML(typ="safe").load(text)
    assert spec["source"]["table"] == str(tmp_path / "a: b's")
    assert spec["features"]["dense"] == {
        name: [{"fill_null": 0}, {"clip": {"min": 0, "max": 1000}}, "log1p"] for name in ("dense_0", "dense_1")
    }
    assert spec["features"]["categorical"] == {"id_0": [{"modulo": 1000003}], "str_0": [{"hash_bucket": 100000}]}
    assert spec["features"]["sparse"] == {"hist_0": [{"first_x": 20}]}
    assert spec["features"]["label"] == {"clicked": []}
    assert spec["batch"] == {"size": 8192, "tail": "pad"}
    assert spec["shuffle"] == {"seed": 3}
    assert "shuffle" not in YAML(typ="safe").load(clicks_pipeline("t"))
    assert "sparse" not in YAML(typ="safe").load(clicks_pipeline("t", histories=0))["features"]
    parsed = parse_spec(clicks_pipeline(str(tmp_path / "t"), strings=2, tail="partial"), base_dir=tmp_path)
    groups = [feature.group for feature in parsed.features]
    assert [groups.count(group) for group in ("dense", "categorical", "sparse", "label")] == [13, 28, 6, 1]
    assert (parsed.batch.size, parsed.batch.tail) == (8192, "partial")
    assert parsed.shuffle is not None
