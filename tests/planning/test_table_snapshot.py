"""From `source` to a snapshot: manifests, types of keys, and saved snapshots, in Python and on the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished, oracle
from processes import ended_here
from warehouse_samples import write

from feedline import Pipeline
from feedline.commands.check import run_check
from feedline.errors import SpecError, TableChangedError, TableError
from feedline.loader.wire.facts import Hello
from feedline.planning.table_snapshot import freeze
from feedline.warehouse.snapshot import footer_tasks

LONG_AGO = 1_700_000_000


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def small(folder: Path, **source: Any) -> Pipeline:
    """A table of two files in keyed folders, `t`, and a pipeline over it."""
    if not (folder / "t").exists():
        tables = {
            f"month={key}/f.parquet": pa.table({"x": [i, i + 1], "y": [1, 0]}) for i, key in enumerate(("9", "10"))
        }
        write(folder / "t", tables)
        for path in (folder / "t").rglob("*.parquet"):
            os.utime(path, (LONG_AGO, LONG_AGO))
    document = {
        "version": 1,
        "name": "small",
        "work_dir": "work",
        "source": {"table": "t", **source},
        "features": {"dense": {"x": []}, "label": {"y": []}, "extra": {"month": []}},
        "batch": {"size": 3, "tail": "partial"},
        "shuffle": "off",
    }
    (folder / "p.yaml").write_text(json.dumps(document, indent=1))
    return Pipeline.from_yaml(folder / "p.yaml")


def values(pipeline: Pipeline) -> list[float]:
    return [value for batch in pipeline.batches() for value in batch["x"].tolist()]


def test_a_manifest_names_the_table(tmp_path: Path) -> None:
    whole = small(tmp_path)
    (tmp_path / "files.json").write_text(json.dumps(["t/month=10/f.parquet", {"path": "t/month=9/f.parquet"}]))
    assert whole.snapshot().id == small(tmp_path, table="files.json", format="manifest").snapshot().id
    (tmp_path / "files.json").write_text(json.dumps(["t/month=10/f.parquet"]))
    assert values(small(tmp_path, table="files.json", format="manifest")) == [1, 2]


def test_types_of_keys_decide_order_and_values(tmp_path: Path) -> None:
    assert values(small(tmp_path)) == [0, 1, 1, 2]
    assert values(small(tmp_path, partitions={"month": "string"})) == [1, 2, 0, 1]  # "10" is before "9"
    assert small(tmp_path, partitions={"month": "string"}).snapshot().schema.field("month").type == pa.string()
    with pytest.raises(TableError, match=r"'month' does not fit its declared type: got '10' in month=10/f\.parquet"):
        small(tmp_path, partitions={"month": "date"}).snapshot()
    with pytest.raises(TableError, match=r"partition key 'day' is declared but not in the table: got keys month"):
        small(tmp_path, partitions={"day": "date"}).snapshot()


def test_a_saved_snapshot_is_read_after_the_table_grew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = small(tmp_path)
    taken = freeze(pipeline.spec, str(tmp_path / "frozen" / "snapshot"))
    write(tmp_path / "t", {"month=11/f.parquet": pa.table({"x": [7], "y": [0]})})
    assert values(small(tmp_path)) == [0, 1, 1, 2, 7]
    frozen = small(tmp_path, snapshot="frozen/snapshot")
    monkeypatch.setattr(footer_tasks, "file_facts", None)  # neither listed nor read
    monkeypatch.setattr("feedline.warehouse.discovery.formats.discover", None)
    assert frozen.snapshot().id == taken.id
    assert frozen.plan().source.snapshot.files.equals(taken.files)
    assert values(frozen) == [0, 1, 1, 2]
    assert values(small(tmp_path, snapshot=f"file://{tmp_path}/frozen/snapshot")) == [0, 1, 1, 2]
    # a resume, and the other ranks, find it in work_dir
    (tmp_path / "frozen" / "snapshot").unlink()
    hello = Hello(rank=0, world_size=1, snapshot=taken.id)
    assert frozen.resolve(hello, job="j").source.snapshot.id == taken.id


def test_a_snapshot_of_another_source_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    with pytest.raises(SpecError, match=r"p\.yaml:7.*snapshot does not exist: expected a file that"):
        small(tmp_path, snapshot="snapshot").snapshot()
    freeze(small(tmp_path).spec, str(file))
    write(tmp_path / "other", {"month=1/f.parquet": pa.table({"x": [7], "y": [0]})})
    for changes, difference in (
        ({"table": "other"}, r"its table is .*/t, pipeline.yaml's is .*/other"),
        ({"table": ["t", "other"]}, r"its table is .*/t, pipeline.yaml's is .*/t, .*/other"),
        ({"partitions": {"month": "string"}}, "its partitions is {}, pipeline.yaml's is .*string"),
        ({"schema": {"columns": {"x": "double"}}}, "its schema.columns is {}, pipeline.yaml's is .*double"),
    ):
        with pytest.raises(SpecError, match=f"the snapshot was taken from another source: {difference}"):
            small(tmp_path, snapshot="snapshot", **changes).snapshot()
    good = file.read_bytes()
    for bad in (b"", b"version: 1", good[:-1], good[:200] + b"!" + good[201:], good[: len(good) // 2], good + b" "):
        file.write_bytes(bad)
        with pytest.raises(SpecError, match=r"p\.yaml:7.*no snapshot can be read from .*/snapshot: .* altered"):
            small(tmp_path, snapshot="snapshot").snapshot()
    pq.write_table(pa.table({"x": [1]}), file)
    with pytest.raises(SpecError, match="no snapshot can be read from"):
        small(tmp_path, snapshot="snapshot").snapshot()
    with pytest.raises(SpecError, match="no snapshot can be read from"):
        small(tmp_path, snapshot="t").snapshot()


def test_extra_error_checks_a_saved_snapshot(tmp_path: Path) -> None:
    """Which may have been written after the snapshot was."""
    rules = {"columns": {"x": "int64"}}
    freeze(small(tmp_path, schema=rules).spec, str(tmp_path / "snapshot"))
    assert values(small(tmp_path, schema=rules, snapshot="snapshot")) == [0, 1, 1, 2]
    with pytest.raises(SpecError, match=r"p\.yaml:\d+.*extra.*column 'y' of .*/snapshot is not expected"):
        small(tmp_path, schema={**rules, "extra": "error"}, snapshot="snapshot").snapshot()


def test_files_that_changed_since_are_refused(tmp_path: Path) -> None:
    freeze(small(tmp_path).spec, str(tmp_path / "snapshot"))
    write(tmp_path / "t", {"month=9/f.parquet": pa.table({"x": [70, 71], "y": [1, 0]})})
    with pytest.raises(TableChangedError, match=r"month=9/f\.parquet changed after the snapshot was taken"):
        values(small(tmp_path, snapshot="snapshot"))


@pytest.mark.slow
def test_the_command_writes_what_a_run_reads(place: Place) -> None:
    path, file = place.write(), place.folder / "saved.snapshot"
    done = ended_here("snapshot", path, file)
    assert done.returncode == 0, done.stderr
    id = Pipeline.from_yaml(path).snapshot().id
    assert done.stdout.startswith(f"snapshot {id}: ")
    named = place.write("named.yaml", source={"snapshot": str(file)})
    assert Pipeline.from_yaml(named).snapshot().id == id
    assert oracle(named) == oracle(path)
    other = ended_here("snapshot", path, place.folder / "p.yaml" / "file")
    assert other.returncode == 1
    assert "cannot be written" in other.stderr


def test_footers_are_read_where_the_counting_pass_runs(tmp_path: Path) -> None:
    ran: list[str] = []

    def run(function: Any, tasks: list[Any]) -> list[Any]:
        ran.append(function.__name__)
        return [function(task) for task in tasks]

    pipeline = small(tmp_path, where="x + 0 > 0")
    hello = Hello(rank=0, world_size=1)
    plan = pipeline.resolve(hello, job="j", map=run)
    assert ran == ["footer_task", "count_task"]
    assert pipeline.resolve(hello, job="j", map=run).source.snapshot.id == plan.source.snapshot.id
    assert ran == ["footer_task", "count_task"]  # both are remembered


def test_a_work_dir_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    pipeline = small(tmp_path)
    (tmp_path / "work").write_text("a file in its place")
    with pytest.raises(SpecError, match=r"p\.yaml:4.*work_dir: cannot be written"):
        pipeline.snapshot()


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("work_dir", {"work_dir": "t/state"}),
        ("artifacts", {"artifacts": "t/month=9/fits"}),
        ("cache.dir", {"cache": {"dir": "t/kept"}}),
    ],
)
def test_what_a_pipeline_writes_is_no_part_of_its_table(tmp_path: Path, key: str, changes: dict[str, Any]) -> None:
    document = {**json.loads(Path(small(tmp_path).spec.file).read_text()), **changes}
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    pipeline = Pipeline.from_yaml(tmp_path / "p.yaml")
    refused = pytest.raises(SpecError, match=rf"{key} lies in the table: got .*Move it, or begin its name with a dot")
    for use in (pipeline.snapshot, pipeline.fit, pipeline.plan, lambda: run_check(pipeline.spec)):
        with refused:
            use()
    assert sorted(path.name for path in (tmp_path / "t").rglob("*")) == [
        "f.parquet",
        "f.parquet",
        "month=10",
        "month=9",
    ]
    document = {**document, "sources": [{"name": name, "table": name, "weight": 1} for name in ("u", "t")]}
    write(tmp_path / "u", {"month=1/f.parquet": pa.table({"x": [1], "y": [0]})})
    del document["source"], document["features"]["extra"], document["batch"]["tail"]
    (tmp_path / "p.yaml").write_text(json.dumps(document))
    with refused:
        Pipeline.from_yaml(tmp_path / "p.yaml").plan()
