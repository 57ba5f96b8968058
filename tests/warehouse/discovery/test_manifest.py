"""Tables that a manifest names: the same as the folder's, wherever the manifest is and however it spells the paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import sample, write

from feedline import Table
from feedline.errors import CorruptFileError, TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.discovery.manifest import discover_manifest
from feedline.warehouse.storage.locations import locate

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


def test_table_reads_a_manifest(root: Path) -> None:
    (root / "files.json").write_text(json.dumps(list(NAMES[:2])))
    table = Table.from_manifest(root / "files.json")
    expected = Table([root / NAMES[1], root / NAMES[0]]).read()
    assert table.read().equals(expected)
    assert table.snapshot().id == Table([str(root / name) for name in NAMES[:2]]).snapshot().id
    assert "format='manifest'" in repr(table)


def test_a_manifest_in_a_store_names_files_of_its_store(tmp_path: Path) -> None:
    store = locate(f"memory:/{tmp_path}").filesystem
    for name, content in (
        ("t/k=1/a b.parquet", b"x"),
        ("t/m.json", json.dumps(["k=1/a b.parquet"]).encode()),
        ("t/n.json", b'["/t/x.parquet"]'),
    ):
        with store.open_output_stream(f"{tmp_path}/{name}") as sink:
            sink.write(content)
    listing = discover_manifest(f"memory:/{tmp_path}/t/m.json")
    assert (listing.uri, listing.files["path"].to_pylist()) == (f"memory:/{tmp_path}/t", ["k=1/a b.parquet"])
    with pytest.raises(TableError, match="expected a path relative to its folder, or a URI"):
        discover_manifest(f"memory:/{tmp_path}/t/n.json")


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
