"""Listing a table: folders, files, lists and globs, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from drawn_examples import examples
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import touch

from feedline.errors import TableArgumentError, TableError, TableNotFoundError
from feedline.warehouse.discovery.hive import discover, hive_listing
from feedline.warehouse.discovery.partitions import NULL_VALUE, typed_columns
from feedline.warehouse.storage.locations import Location, absolute, ancestor, locate, redact


def paths(table: str | list[str]) -> list[str]:
    return discover(table).files["path"].to_pylist()


def test_order_is_by_typed_partition_values_then_path(tmp_path: Path) -> None:
    days = [f"month={month}/day={day}" for month in (10, 2, 1) for day in (11, 9)]
    touch(tmp_path, *(f"{day}/{name}.parquet" for day in days for name in ("b", "a")))
    touch(tmp_path, "month=__HIVE_DEFAULT_PARTITION__/day=1/a.parquet")
    expected = [f"month={m}/day={d}/{n}.parquet" for m in (1, 2, 10) for d in (9, 11) for n in ("a", "b")]
    assert paths(str(tmp_path)) == [*expected, "month=__HIVE_DEFAULT_PARTITION__/day=1/a.parquet"]


def test_hidden_and_foreign_files_are_left_out(tmp_path: Path) -> None:
    kept = ["a.parquet", "b.snappy.parquet", "c.PARQ", "d.pq", "000000_0", "_year=2020/e.parquet", "f.gz.parquet"]
    hidden = ["_SUCCESS", ".a.parquet.crc", "_temporary/0/x.parquet", ".spark/x.parquet", "_metadata", "k=1/_x.parquet"]
    hidden += [".year=2021/f.parquet", ".staging/year=2022/g.parquet"]
    foreign = ["readme.md", "k=1/data.csv", "s3_$folder$"]
    touch(tmp_path, *kept, *hidden, *foreign)
    listing = discover(str(tmp_path))
    assert sorted(listing.files["path"].to_pylist()) == sorted(kept)
    assert listing.ignored == len(foreign)


@pytest.mark.parametrize("name", ["_metadata", "_common_metadata"])
def test_a_summary_of_footers_is_no_table(name: str, tmp_path: Path) -> None:
    touch(tmp_path, name, "a.parquet")
    with pytest.raises(TableError, match=f"{name} holds the footers of a table's files: .* Name its folder"):
        discover(str(tmp_path / name))


def test_a_folder_with_equals_signs_above_the_root_gives_no_key(tmp_path: Path) -> None:
    touch(tmp_path, "run=5/t/ds=2026-01-01/f.parquet")
    assert list(discover(str(tmp_path / "run=5" / "t")).partition) == ["ds"]
    assert list(discover(str(tmp_path / "run=5" / "t" / "ds=2026-01-01")).partition) == []


def test_files_lists_and_globs_keep_their_partition_keys(tmp_path: Path) -> None:
    touch(tmp_path, *(f"t/ds=2026-01-{day:02d}/f{part}.parquet" for day in (1, 2, 11) for part in (0, 1)))
    root = f"{tmp_path}/t"
    one = discover(f"{root}/ds=2026-01-02/f1.parquet")
    assert one.uri == root
    assert one.files["path"].to_pylist() == ["ds=2026-01-02/f1.parquet"]
    assert [str(value) for value in one.partition["ds"].to_pylist()] == ["2026-01-02"]
    both = discover([f"{root}/ds=2026-01-11", f"{root}/ds=2026-01-01/f0.parquet", f"{root}/ds=2026-01-11/f0.parquet"])
    assert both.uri == root
    assert both.files["path"].to_pylist() == [
        "ds=2026-01-01/f0.parquet",
        "ds=2026-01-11/f0.parquet",
        "ds=2026-01-11/f1.parquet",
    ]
    for pattern in ("ds=2026-01-0*/*.parquet", "ds=2026-01-0?", "ds=2026-01-[0][12]/f[01].parquet", "**/ds=*-0?/f?.p*"):
        globbed = discover(f"{root}/{pattern}")
        assert globbed.uri == root
        assert len(globbed.files) == 4
    assert len(discover(f"{tmp_path}/*/**/f0.parquet").files) == 3
    assert (
        discover(f"{root}/ds=2026-01-02/*.parquet").partition["ds"].to_pylist() == one.partition["ds"].to_pylist() * 2
    )


def test_a_named_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    touch(tmp_path, "_odd.bin")
    assert paths(f"{tmp_path}/_odd.bin") == ["_odd.bin"]


def test_wildcards_in_real_names_are_names(tmp_path: Path) -> None:
    touch(tmp_path, "odd[1]*/f.parquet")
    assert paths(f"{tmp_path}/odd[1]*") == ["f.parquet"]


def test_relative_paths_and_file_uris_name_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a b/k=x%2Fy/f.parquet")
    monkeypatch.chdir(tmp_path)
    assert discover("a b").uri == str(tmp_path / "a b")
    by_uri = discover(f"file://{tmp_path}/a%20b")
    assert by_uri.files["path"].to_pylist() == ["k=x%2Fy/f.parquet"]
    assert by_uri.partition["k"].to_pylist() == ["x/y"]
    one = discover(f"file://{tmp_path}/a%20b/k=*/f.parquet")
    assert one.uri == f"file://{tmp_path}/a%20b"
    assert locate(one.uri).path == str(tmp_path / "a b")


@pytest.mark.parametrize("name", ["gone", "gone/*.parquet", "t/gone-*.parquet", "file:///gone/x", "t/x.parquet/deeper"])
def test_missing_tables_are_named(tmp_path: Path, name: str) -> None:
    touch(tmp_path, "t/x.parquet")
    with pytest.raises(TableNotFoundError, match=r"gone|deeper"):
        discover(name if "://" in name else f"{tmp_path}/{name}")


def test_a_folder_without_parquet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableNotFoundError, match="is empty: expected at least one Parquet file"):
        discover(str(tmp_path))
    touch(tmp_path, "a.csv", "b.csv")
    with pytest.raises(TableNotFoundError, match=r"holds no Parquet file: got 2 files with other suffixes \(a.csv\)"):
        discover(str(tmp_path))


def test_unusable_names_are_refused(tmp_path: Path) -> None:
    touch(tmp_path, "f.parquet")
    with pytest.raises(TableError, match="list of files is empty"):
        discover([])
    with pytest.raises(TableError, match="path is empty"):
        discover("")
    with pytest.raises(TableError, match="nope://x cannot be opened by pyarrow or fsspec"):
        discover("nope://x")
    with pytest.raises(TableError, match="are on several stores"):
        discover([str(tmp_path), "mock://bucket/f"])


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    touch(tmp_path, "t/f.parquet")
    (tmp_path / "t").chmod(0)
    try:
        with pytest.raises(TableError, match="may not be read: permission denied"):
            discover(str(tmp_path / "t"))
    finally:
        (tmp_path / "t").chmod(0o700)


def test_passwords_are_refused_and_never_shown() -> None:
    with pytest.raises(TableError, match="URI holds a password") as caught:
        discover("s3://key:secret@bucket/t?region=us-east-1")
    assert "secret" not in str(caught.value)
    assert "key" not in str(caught.value)
    assert redact("s3://bucket/t?endpoint_override=localhost:1") == "s3://bucket/t"
    assert redact("abfs://container@account/t") == "abfs://container@account/t"
    assert absolute("s3://bucket/t/?region=x") == "s3://bucket/t?region=x"


def test_ancestors_keep_the_options_of_a_uri() -> None:
    assert ancestor("s3://bucket/t/ds=1/f.parquet?region=x", 2) == "s3://bucket/t?region=x"
    assert ancestor("/a/b", 2) == "/"
    assert ancestor("/a/b", 0) == "/a/b"


def test_depths_may_be_mixed(tmp_path: Path) -> None:
    touch(tmp_path, "f.parquet", "a=1/f.parquet", "a=1/b=x%20y/f.parquet", "a=__HIVE_DEFAULT_PARTITION__/b=z/f.parquet")
    listing = discover(str(tmp_path))
    keys = pa.StructArray.from_arrays(list(listing.partition.values()), names=["a", "b"]).to_pylist()
    found = zip(listing.files["path"].to_pylist(), keys, strict=True)
    assert [(path, key["a"], key["b"]) for path, key in found] == [
        ("a=1/b=x%20y/f.parquet", 1, "x y"),
        ("a=1/f.parquet", 1, None),
        ("a=__HIVE_DEFAULT_PARTITION__/b=z/f.parquet", None, "z"),
        ("f.parquet", None, None),
    ]


@examples(50)
@given(st.lists(st.tuples(st.sampled_from(["1", "02", "10", "x", NULL_VALUE]), st.integers(0, 3)), min_size=1))
def test_partition_values_sort_as_in_python(folders: list[tuple[str, int]]) -> None:
    paths = sorted({f"k={text}/n={number}/f" for text, number in folders}, key=lambda path: path.split("/"))
    infos = {f"/r/{path}": pafs.FileInfo(f"/r/{path}", pafs.FileType.File, size=1) for path in paths}
    listing = hive_listing("/r", "/r", infos, None)
    columns = [column.to_pylist() for column in typed_columns(paths).values()]
    order = sorted(range(len(paths)), key=lambda i: tuple((column[i] is None, column[i]) for column in columns))
    assert listing.files["path"].to_pylist() == [paths[i] for i in order]
    assert listing.files["mtime_ns"].to_pylist() == [-1] * len(paths)


def test_etags_are_those_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "k=1/f.parquet", "k=2/g.parquet")

    class Tagged(LocalFileSystem):  # type: ignore[misc]
        cachable = False

        def info(self, path: str, **options: object) -> dict[str, object]:
            return {**super().info(path, **options), "ETag": f'"{Path(path).name}"'}

    store = pafs.PyFileSystem(pafs.FSSpecHandler(Tagged()))
    monkeypatch.setattr("feedline.warehouse.discovery.hive.locate", lambda uri: Location(uri, store, uri))
    assert discover(str(tmp_path)).files["etag"].to_pylist() == ["f.parquet", "g.parquet"]
    monkeypatch.undo()
    assert "etag" not in discover(str(tmp_path)).files.schema.names


@pytest.mark.parametrize(
    ("table", "folder", "is_read"),
    [
        ("t", "t/state", True),
        ("t", "t", True),
        ("t", "t/ds=1/state", True),
        ("t", "t/.state", False),
        ("t", "t/.state/more", False),
        ("t", "t/_state", False),
        ("t", "t/_k=1/state", True),  # a key
        ("t", "state", False),
        ("t", ".", False),
        ("t", "t-state", False),
        ("t/", "link/state", True),
        ("link", "t/state", True),
        ("t", "elsewhere/state", True),  # t/more is a link to elsewhere
        ("t", "t/more/state", True),
        ("file://t", "t/state", True),
        ("t/ds=*/*.parquet", "t/state", False),
        ("t/ds=*", "t/ds=1/state", True),
        ("t/**/*.parquet", "t/state", True),
        (["t/ds=1/a.parquet", "t/ds=2/b.parquet"], "t/state", False),
        (["t/ds=1", "t/ds=2"], "t/ds=2/state", True),
        (["t/ds=1", "t/ds=2"], "t/state", False),
    ],
)
def test_folders_apart_are_none_of_the_table(
    tmp_path: Path, table: str | list[str], folder: str, is_read: bool
) -> None:
    touch(tmp_path, "t/ds=1/a.parquet", "t/ds=2/b.parquet", "elsewhere/c.parquet")
    (tmp_path / "t" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "t")

    def named(name: str) -> str:
        return f"file://{tmp_path}/{name[7:]}" if name.startswith("file://") else f"{tmp_path}/{name}"

    names = named(table) if isinstance(table, str) else [named(name) for name in table]
    apart = {"work_dir": str(tmp_path / "nowhere"), "artifacts": named(folder), "cache.dir": "memory://t"}
    if not is_read:
        assert discover(names, apart=apart).files == discover(names).files
        return
    for exists in (False, True):
        with pytest.raises(TableArgumentError, match=r"artifacts lies in the table: got .*, expected a folder beside"):
            discover(names, apart=apart)
        if not exists and "more" not in folder:
            touch(tmp_path, f"{folder}/new.parquet")


def test_folders_apart_in_a_store(tmp_path: Path) -> None:
    table = f"memory:/{tmp_path}/t"
    with locate(table).filesystem.open_output_stream(f"{tmp_path}/t/a.parquet") as sink:
        sink.write(b"x")
    for folder in (f"{tmp_path}/t/state", f"memory:/{tmp_path}/t2", f"memory:/{tmp_path}/t/.state"):
        assert len(discover(table, apart={"work_dir": folder}).files) == 1
    with pytest.raises(TableArgumentError, match=r"work_dir lies in the table: got memory:.*/t/state, whose files"):
        discover(table, apart={"work_dir": f"memory:/{tmp_path}/t/state"})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("part-0.parquet.snappy", r"Rename them to end in \.parquet"),
        ("clicks.csv.gz", r"polars\.scan_csv\('clicks\.csv\.gz'\)\.sink_parquet\('clicks\.parquet'\)"),
        ("clicks.ndjson", r"polars\.scan_ndjson\('clicks\.ndjson'\)"),
        ("clicks.orc", r"expected names ending in \.parquet"),
    ],
)
def test_files_that_are_no_parquet_say_what_to_do(name: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(TableNotFoundError, match=rf"got 1 files with other suffixes \({name}\).*{remedy}"):
        discover(str(tmp_path))
