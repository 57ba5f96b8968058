"""Tables that a manifest names: the same as the folder's, wherever the manifest is and however it spells the paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline import Table
from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse.discovery import manifest
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.discovery.manifest import discover_manifest
from feedline.warehouse.storage.locations import Location

NAMES = ("ds=2026-01-02/a.parquet", "ds=2026-01-01/b.parquet", "ds=2026-01-01/a b%20.parquet")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path / "t", {name: sample(5, seed) for seed, name in enumerate(NAMES)})
    return tmp_path / "t"


def listed(root: Path, content: Any, name: str = "files.json") -> Any:
    (root / name).write_text(json.dumps(content))
    return discover_manifest(str(root / name))


def test_every_spelling_of_paths_names_the_same_table(root: Path) -> None:
    whole = discover(str(root))
    spellings: list[Any] = [
        list(NAMES),
        list(reversed(NAMES)),
        [*NAMES, NAMES[0]],
        [f"./{name}" for name in NAMES],
        [str(root / name) for name in NAMES],
        [{"path": name, "bytes": 1} for name in NAMES],
        [NAMES[0], str(root / NAMES[1]), {"path": f"../t/{NAMES[2]}"}],
        [f"file://{root}/{name.replace('%', '%25').replace(' ', '%20')}" for name in NAMES],
    ]
    for spelling in spellings:
        listing = listed(root, spelling)
        assert listing.files.equals(whole.files)
        assert {name: column.to_pylist() for name, column in listing.partition.items()} == {
            "ds": whole.partition["ds"].to_pylist()
        }
        assert listing.uri.removeprefix("file://") == str(root)


def test_a_parquet_manifest_and_one_elsewhere(root: Path, tmp_path: Path) -> None:
    whole = discover(str(root))
    pq.write_table(pa.table({"size": [1, 2, 3], "path": NAMES}), root / "_files")
    assert discover_manifest(str(root / "_files")).files.equals(whole.files)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "m.json").write_text(json.dumps([f"../t/{name}" for name in NAMES]))
    assert discover_manifest(f"{tmp_path}/elsewhere/m.json").files.equals(whole.files)


def test_a_manifest_of_some_files_keeps_the_keys(root: Path) -> None:
    listing = listed(root, [NAMES[0]])
    assert listing.uri == str(root)
    assert listing.files["path"].to_pylist() == [NAMES[0]]
    assert [str(value) for value in listing.partition["ds"]] == ["2026-01-02"]


def test_table_reads_a_manifest(root: Path) -> None:
    (root / "files.json").write_text(json.dumps(list(NAMES[:2])))
    table = Table.from_manifest(root / "files.json")
    expected = Table([root / NAMES[1], root / NAMES[0]]).read()
    assert table.read().equals(expected)
    assert table.snapshot().id == Table([str(root / name) for name in NAMES[:2]]).snapshot().id
    assert "format='manifest'" in repr(table)


def test_files_on_an_object_store_are_looked_up_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pafs.SubTreeFileSystem(str(root.parent), pafs.LocalFileSystem())
    asked: list[str] = []

    def locate(uri: str) -> Location:
        asked.append(uri)
        return Location(uri, store, uri.partition("://")[2].partition("?")[0].rstrip("/").removeprefix("bucket"))

    monkeypatch.setattr(manifest, "locate", locate)
    monkeypatch.setattr("feedline.warehouse.discovery.hive.locate", locate)
    names = ["bucket/t/ds=2026-01-02/a.parquet", "bucket/t/ds=2026-01-01/b.parquet"]
    (root / "files.json").write_text(json.dumps([f"mock://{name}" for name in names]))
    listing = discover_manifest("mock://bucket/t/files.json")
    assert listing.files["path"].to_pylist() == [NAMES[1], NAMES[0]]
    assert listing.uri == "mock://bucket/t"
    assert not [uri for uri in asked if uri.endswith("b.parquet")]  # no filesystem of its own for each file
    (root / "files.json").write_text(json.dumps(["/t/x.parquet"]))
    with pytest.raises(TableError, match="expected a path relative to its folder, or a URI"):
        discover_manifest("mock://bucket/t/files.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is empty: expected at least one path"),
        ('{"files": []}', "is not a list: got dict"),
        ("not json", "is neither JSON nor Parquet"),
        ("", "is neither JSON nor Parquet"),
        ("[1]", "holds an entry that is not a path: got 1"),
        ('[""]', "holds an entry that is not a path: got ''"),
        ('[{"file": "x"}]', "holds an entry that is not a path: got None"),
        ("[null]", "holds an entry that is not a path: got None"),
        ('["gone.parquet"]', r"gone\.parquet does not exist: .*files\.json names it"),
        ('["ds=2026-01-01"]', "ds=2026-01-01 is a folder: expected only files in"),
    ],
)
def test_invalid_manifests_are_refused(root: Path, content: str, message: str) -> None:
    (root / "files.json").write_text(content)
    with pytest.raises(TableError, match=message):
        discover_manifest(str(root / "files.json"))


def test_unreadable_manifests_are_refused(root: Path) -> None:
    with pytest.raises(TableNotFoundError, match="does not exist"):
        discover_manifest(str(root / "none.json"))
    with pytest.raises(TableError, match="is a folder: expected a JSON or Parquet file"):
        discover_manifest(str(root))
    pq.write_table(pa.table({"file": ["x"]}), root / "m")
    with pytest.raises(TableError, match="has no column 'path': got file"):
        discover_manifest(str(root / "m"))
    pq.write_table(pa.table({"path": pa.array([None], pa.string())}), root / "m")
    with pytest.raises(TableError, match="holds an entry that is not a path: got None"):
        discover_manifest(str(root / "m"))
    (root / "m").write_bytes(b"PAR1 and nothing else PAR1")
    with pytest.raises(CorruptFileError, match="is not valid Parquet"):
        discover_manifest(str(root / "m"))
    (root / "m").write_text(json.dumps([str(root / NAMES[0]), "mock://elsewhere/x.parquet"]))
    with pytest.raises(TableError, match=r"several stores|cannot be opened by pyarrow"):
        discover_manifest(str(root / "m"))
