"""Links are followed; a file that two paths lead to is refused, and no path is resolved without links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from warehouse_samples import touch

from feedline.errors import TableError
from feedline.warehouse.discovery.hive import discover


def paths(table: str | list[str]) -> list[str]:
    return discover(table).files["path"].to_pylist()


def test_links_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "real/f.parquet")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "k=1").symlink_to(tmp_path / "real")
    assert paths(str(tmp_path / "t")) == ["k=1/f.parquet"]


def test_a_file_that_two_paths_lead_to_is_refused_with_both(tmp_path: Path) -> None:
    """With a link to a folder above itself 3 files were listed as 123; with two the listing would not end."""
    touch(tmp_path, *(f"t/ds={day}/f.parquet" for day in (1, 2, 3)))
    table = tmp_path / "t"
    links = {"loop": ".", "ds=4": "ds=2", "latest": "ds=3", "ds=1/up": "../ds=2", "ds=3/g.parquet": "../ds=1/f.parquet"}
    for name, place in links.items():
        (table / name).symlink_to(place)
        with pytest.raises(
            TableError, match=rf"{name}\S* is the same file as {table}/ds=\d/f.parquet, by a symbolic link"
        ):
            discover(str(table))
        (table / name).unlink()
    for name in ("one", "two"):
        (table / name).symlink_to(".")
    with pytest.raises(TableError, match="is the same file as"):
        discover(str(table))
    (tmp_path / "outside").symlink_to("t")
    with pytest.raises(TableError, match=rf"{tmp_path}/outside/ds=1/f.parquet is the same file as|t/ds=1/f.parquet is"):
        discover([f"{table}/ds=1", f"{tmp_path}/outside/ds=1"])
    with pytest.raises(TableError, match="is the same file as"):
        discover([f"{table}/ds=1/f.parquet", f"{tmp_path}/outside/ds=1/f.parquet"])


def test_links_without_duplicates_are_followed(tmp_path: Path) -> None:
    """Files in other folders, versions in a hidden folder, hidden links, two links to a folder without Parquet."""
    touch(tmp_path, "t/ds=1/f.parquet", "blobs/a", "blobs/b", "t/_versions/7/f.parquet", "notes/n.md")
    table = tmp_path / "t"
    for name, place in {
        "ds=2": "_versions/7",
        ".all": ".",
        "_latest": "ds=1",
        "_versions/up": "..",
        "ds=1/g.parquet": "../../blobs/a",
        "ds=1/h.parquet": "../../blobs/b",
        "notes": "../notes",
        "more": "../notes",
    }.items():
        (table / name).symlink_to(place)
    os.link(table / "ds=1" / "f.parquet", table / "copy.parquet")
    expected = ["copy.parquet", "ds=1/f.parquet", "ds=1/g.parquet", "ds=1/h.parquet", "ds=2/f.parquet"]
    assert sorted(paths(str(table))) == expected
    assert sorted(paths(f"{table}/ds=*/*.parquet")) == expected[1:]


def test_dangling_links_are_errors(tmp_path: Path) -> None:
    touch(tmp_path, "f.parquet")
    (tmp_path / "g.parquet").symlink_to("nowhere")
    with pytest.raises(TableError, match=r"g\.parquet is a dangling link: expected a file"):
        discover(str(tmp_path))
    (tmp_path / "g.parquet").unlink()
    (tmp_path / "g.parquet").symlink_to("g.parquet")
    with pytest.raises(TableError, match=r"g\.parquet is a dangling link"):
        discover(str(tmp_path))
    (tmp_path / "g.parquet").unlink()
    os.mkfifo(tmp_path / "g.parquet")
    with pytest.raises(TableError, match=r"g\.parquet is a pipe or a device: expected a file"):
        discover(str(tmp_path))


def test_a_listing_without_links_resolves_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, *(f"ds={day}/f{part}.parquet" for day in range(3) for part in range(4)))
    looked: list[str] = []
    original = os.path.realpath
    monkeypatch.setattr(os.path, "realpath", lambda path, **options: looked.append(path) or original(path, **options))
    assert len(paths(str(tmp_path))) == 12
    assert looked == [str(tmp_path)]
