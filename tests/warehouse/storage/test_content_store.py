"""Files of a work directory are written whole, streamed and verified."""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from feedline.errors import CorruptFileError
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.content_store import KeptWaves
from feedline.warehouse.storage.locations import locate


class Part(bytearray):
    """Bytes that record when they are freed."""


def test_content_for_a_store_is_not_held_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(content_store, "_SPOOL_BYTES", 10)
    monkeypatch.setattr(content_store, "_RUN_BYTES", 7)
    before: list[weakref.ref[Part]] = []

    def parts() -> Iterator[Part]:
        for number in range(5):
            assert all(one() is None for one in before[:-1])
            parts = [Part(f"part {number};".encode())]
            before.append(weakref.ref(parts[0]))
            yield parts.pop()

    location = locate("memory://overflow/w")
    content_store.put(location, "folder/name", parts())
    assert bytes(content_store.get(location, "folder/name")) == b"part 0;part 1;part 2;part 3;part 4;"


TABLES = [pa.table({"a": [1, 2], "b": ["x", None]}), pa.table({"a": list(range(5000))}), pa.table({"c": [0.5]})]


@pytest.mark.parametrize("compression", ["zstd", None])
def test_tables_come_back_together_one_by_one_and_by_column(tmp_path: Path, compression: str | None):
    content_store.create(str(tmp_path), "folder/name", iter(TABLES), compression=compression)
    assert content_store.load(str(tmp_path), "folder/name", 3) == TABLES
    stored = content_store.find(str(tmp_path), "folder/name")
    assert len(stored) == 3
    assert [stored.table(part) for part in range(3)] == TABLES
    assert stored.table(0, ["b"]) == TABLES[0].select(["b"])
    assert stored.tables(2) == TABLES[:2]
    stored.verify()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["name"]


@pytest.mark.parametrize("at", [0, 700, -1])
@pytest.mark.parametrize("cut", [True, False])
def test_altered_and_truncated_files_are_refused(tmp_path: Path, at: int, cut: bool):
    content_store.create(str(tmp_path), "name", TABLES)
    file = tmp_path / "name"
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content[:at] if cut else content)
    with pytest.raises(CorruptFileError, match=r"name does not hold the bytes that were written: .*Delete it"):
        content_store.load(str(tmp_path), "name", 3)


def test_a_table_is_found_in_a_file_that_replaced_it(tmp_path: Path):
    content_store.create(str(tmp_path), "f/x.arrow", [pa.table({"root": ["/t"]}), *TABLES])
    before = content_store.find(str(tmp_path), "f/x.arrow")
    content_store.create(str(tmp_path), "f/x.arrow", [pa.table({"root": ["/another/root" * 9]}), *TABLES])
    assert [before.table(part) for part in range(1, 4)] == TABLES
    with pytest.raises(CorruptFileError, match="does not hold the bytes that were written"):
        before.table(0)


def test_other_counts_and_missing_files_are_errors(tmp_path: Path):
    content_store.create(str(tmp_path), "name", TABLES)
    with pytest.raises(CorruptFileError, match="name holds 3 tables, expected 2"):
        content_store.load(str(tmp_path), "name", 2)
    content_store.remove(str(tmp_path), "name")
    content_store.remove(str(tmp_path), "name")  # nothing to remove
    with pytest.raises(FileNotFoundError):
        content_store.load(str(tmp_path), "name", 3)


def test_a_write_that_fails_leaves_the_file_before_it(tmp_path: Path):
    content_store.create(str(tmp_path), "name", TABLES[:1])

    def broken() -> Iterator[pa.Table]:
        yield TABLES[1]
        raise KeyError("x")

    with pytest.raises(KeyError):
        content_store.create(str(tmp_path), "name", broken())
    assert content_store.load(str(tmp_path), "name", 1) == TABLES[:1]
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_files_that_have_not_been_written_for_long_are_found(tmp_path: Path):
    for name in ("folder/old", "folder/new"):
        content_store.create(str(tmp_path), name, TABLES[:1])
    os.utime(tmp_path / "folder" / "old", (1_000_000, 1_000_000))
    assert content_store.older_than(str(tmp_path), "folder", 3600) == ["folder/old"]
    assert content_store.older_than(str(tmp_path), "missing", 3600) == []


def test_a_lock_keeps_others_out_of_local_folders_only(tmp_path: Path):
    location = locate(str(tmp_path))
    assert content_store.has_locks(location)
    path = tmp_path / "folder" / "name.lock"

    def taken() -> bool:
        with open(path, "rb+") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    with content_store.lock_file(location, "folder/name"):
        assert taken()
    assert not taken()
    assert not content_store.has_locks(locate("memory://locks/w"))


def test_waves_of_an_interrupted_pass_are_loaded_and_removed_in_the_end(tmp_path: Path):
    KeptWaves(str(tmp_path)).save("waves/one.arrow", TABLES)
    resumed = KeptWaves(str(tmp_path))
    assert resumed.load("waves/one.arrow") == TABLES
    assert resumed.load("waves/two.arrow") is None
    resumed.save("waves/two.arrow", TABLES[:1])
    resumed.forget()
    assert not list(tmp_path.glob("waves/*.arrow"))


def test_damaged_waves_are_not_loaded(tmp_path: Path):
    KeptWaves(str(tmp_path)).save("waves/one.arrow", TABLES)
    (file,) = tmp_path.glob("waves/*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert KeptWaves(str(tmp_path)).load("waves/one.arrow") is None


def test_without_a_work_dir_nothing_is_kept():
    waves = KeptWaves(None)
    waves.save("waves/one.arrow", TABLES)
    assert waves.load("waves/one.arrow") is None
    waves.forget("waves")
