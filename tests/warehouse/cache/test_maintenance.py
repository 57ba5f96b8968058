"""What a folder holds is told by table and row group; what conditions select is removed; what is damaged is found."""

from __future__ import annotations

import datetime
import decimal
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cache_entries import columns_of, digest_of, files_of, group_of, ref_of

from feedline.errors import ExpressionError, SpecError
from feedline.progress import Progress, on_progress
from feedline.warehouse.cache import maintenance
from feedline.warehouse.cache.cache_folder import CacheFolder, EntryGroup
from feedline.warehouse.cache.eviction import touched_ns
from feedline.warehouse.cache.maintenance import PruneChoice, describe_folder, prune_entries, verify_entries

NOW_S = time.time()


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Three row groups of clicks in two days, and one of users without partition keys."""
    cache = CacheFolder(ref_of(tmp_path))
    for number, day in enumerate(("2026-01-01", "2026-01-01", "2026-01-02")):
        group = group_of(number, partition={"day": datetime.date.fromisoformat(day), "hour": number})
        cache.put(group, columns_of(group, 2), cpu_s=1.0)
    group = group_of(0, table="users")
    cache.put(group, columns_of(group, 5), cpu_s=1.0)
    return str(tmp_path)


def left(folder: str) -> list[tuple[str, int | None]]:
    groups = describe_folder(folder, by_row_group=True).groups
    return [(each.table or "", each.row_group) for each in groups]


def test_row_groups_are_described(folder: str):
    report = describe_folder(folder, by_row_group=True)
    assert left(folder) == [("clicks", 0), ("clicks", 1), ("clicks", 2), ("users", 0)]
    first = report.groups[0]
    assert (first.path, first.files, first.columns) == ("day=1/part.parquet", 1, 2)
    assert first.partition == {"day": datetime.date(2026, 1, 1), "hour": 0}
    assert abs(first.used_s - time.time()) < 60
    assert (report.whole.files, report.whole.columns) == (4, 11)
    assert report.whole.bytes == sum(each.bytes for each in report.groups)


def test_tables_are_described(folder: str):
    clicks, users = describe_folder(folder, by_row_group=False).groups
    assert (clicks.table, clicks.path, clicks.row_group, clicks.partition) == ("clicks", None, None, None)
    assert (clicks.files, clicks.columns) == (3, 6)
    assert (users.table, users.row_group, users.files, users.columns) == ("users", 0, 1, 5)
    [alone] = describe_folder(folder, by_row_group=False, table="users").groups
    assert alone == users


def test_files_of_other_kinds_are_counted(folder: str):
    first, second, *_ = files_of(folder)
    first.write_bytes(b"damaged")
    second.with_name(".x.tmp").write_bytes(b"1")
    later = Path(folder, "v2", "ab", "abcd")
    later.mkdir(parents=True)
    (later / "x.entry").write_bytes(b"of a later version")
    report = describe_folder(folder, by_row_group=True)
    assert report.temporary == 1
    assert report.unreadable + report.other_versions == 2
    assert report.whole.files == 6
    assert len(report.groups) == 3


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (PruneChoice(table="users"), [("clicks", 0), ("clicks", 1), ("clicks", 2)]),
        (PruneChoice(where="hour >= 1"), [("clicks", 0), ("users", 0)]),
        (PruneChoice(where="hour == 1 or hour == 0"), [("clicks", 2), ("users", 0)]),
        (PruneChoice(where="day == '2026-01-01'", table="clicks"), [("clicks", 2), ("users", 0)]),
        (PruneChoice(where="day < '2026-01-02' and hour > 0"), [("clicks", 0), ("clicks", 2), ("users", 0)]),
        (PruneChoice(everything=True), []),
        (PruneChoice(older_than_s=0.0), []),
        (PruneChoice(older_than_s=3_600.0), [("clicks", 0), ("clicks", 1), ("clicks", 2), ("users", 0)]),
    ],
)
def test_what_meets_all_conditions_is_removed(folder: str, choice: PruneChoice, expected: list[tuple[str, int]]):
    report = prune_entries(folder, choice, time.time() + 1)
    assert left(folder) == expected
    assert report.files == 4 - len(expected)
    assert report.files + report.kept + sum(report.undecided.values()) == 4
    assert (report.bytes > 0) == (report.files > 0)


def test_a_condition_does_not_decide_for_row_groups_without_its_key(folder: str):
    report = prune_entries(folder, PruneChoice(where="hour == 0"), NOW_S)
    assert report.undecided == {"without the partition key hour": 1}


@pytest.mark.parametrize("where", ["true", "city == 'x'", "day == city"])
def test_a_condition_on_keys_that_no_entry_has_is_refused(folder: str, where: str):
    """A deletion that decides for no entry must not look done."""
    before = left(folder)
    with pytest.raises(SpecError, match=r"partition keys: got (city|true|city, day), expected of day, hour"):
        prune_entries(folder, PruneChoice(where=where), NOW_S)
    assert left(folder) == before


def test_age_is_of_the_last_use(folder: str):
    for number, path in enumerate(files_of(folder)):
        os.utime(path, ns=(0, touched_ns(NOW_S - 100 * number, 0)))
    assert prune_entries(folder, PruneChoice(older_than_s=150.0), NOW_S).files == 2
    os.utime(files_of(folder)[0], ns=(0, touched_ns(NOW_S + 1e6, 0)))  # of a clock that is ahead
    assert prune_entries(folder, PruneChoice(older_than_s=0.0), NOW_S).kept == 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (True, "key"),
        (7, "key == 7"),
        (0.5, "key < 1.0"),
        ("a b", "key == 'a b'"),
        (datetime.datetime(2026, 1, 5, 1), "key == '2026-01-05T01:00:00'"),
        (datetime.date(2026, 1, 5), "key == '2026-01-05'"),
        (decimal.Decimal("1.50"), "key > 1"),
    ],
)
def test_partition_values_of_all_types_are_compared(tmp_path: Path, value: Any, where: str):
    cache = CacheFolder(ref_of(tmp_path))
    for number, each in enumerate((value, None)):
        group = group_of(number, partition={"key": each})
        cache.put(group, columns_of(group, 1), cpu_s=1.0)
    report = prune_entries(str(tmp_path), PruneChoice(where=where), NOW_S)
    assert (report.files, report.kept) == (1, 1)
    assert left(str(tmp_path)) == [("clicks", 1)]


def test_a_condition_that_fits_some_types_is_undecided_for_others(tmp_path: Path):
    cache = CacheFolder(ref_of(tmp_path))
    for number, each in enumerate(("x", 5)):
        group = group_of(number, partition={"key": each})
        cache.put(group, columns_of(group, 1), cpu_s=1.0)
    report = prune_entries(str(tmp_path), PruneChoice(where="key == 'x'"), NOW_S)
    assert (report.files, dict(report.undecided)) == (1, {"with partition keys of other types": 1})
    with pytest.raises(ExpressionError):
        prune_entries(str(tmp_path), PruneChoice(where="key == 'x'"), NOW_S)


def test_prune_needs_a_condition(folder: str):
    with pytest.raises(SpecError, match=r"needs a condition: got none\. Name --table"):
        prune_entries(folder, PruneChoice(), NOW_S)
    with pytest.raises(SpecError, match=r"removes every entry: got conditions, too\. Leave out --all"):
        prune_entries(folder, PruneChoice(everything=True, table="clicks"), NOW_S)
    with pytest.raises(ExpressionError):
        prune_entries(folder, PruneChoice(where="hour =="), NOW_S)
    assert len(files_of(folder)) == 4


def test_files_of_other_versions_are_pruned_by_age_and_all_alone(folder: str):
    later = Path(folder, "v2", "ab", "abcd")
    later.mkdir(parents=True)
    (later / "x.entry").write_bytes(b"of a later version")
    assert prune_entries(folder, PruneChoice(table="clicks"), NOW_S).files == 3
    assert (later / "x.entry").exists()
    assert prune_entries(folder, PruneChoice(everything=True), NOW_S).files == 2
    assert not later.exists()


def test_temporary_files_of_dead_writers_are_pruned(folder: str):
    [path, *_] = files_of(folder)
    old, new = path.with_name(".old.tmp"), path.with_name(".new.tmp")
    old.touch()
    new.touch()
    os.utime(old, (NOW_S - 60,) * 2)
    prune_entries(folder, PruneChoice(older_than_s=1e9), time.time())
    assert (old.exists(), new.exists()) == (False, True)


def test_verify_finds_and_removes_damaged_files(folder: str):
    said: list[Progress] = []
    with on_progress(said.append):
        whole = verify_entries(folder)
    assert (whole.files, whole.damaged, whole.unreadable) == (4, (), ())
    assert [each.total for each in said if each.phase == "verifying"] == [whole.bytes] * 5
    assert said[-1].done == whole.bytes
    first, second, third, _ = files_of(folder)
    content = bytearray(first.read_bytes())
    content[-100] ^= 1  # in an array
    first.write_bytes(content)
    content = bytearray(second.read_bytes())
    content[100] ^= 1  # in the index
    second.write_bytes(content)
    os.truncate(third, third.stat().st_size - 200)
    report = verify_entries(folder)
    assert sorted(report.damaged) == sorted(map(str, (first, second, third)))
    assert report.unreadable == ()
    assert len(files_of(folder)) == 1
    assert verify_entries(folder).damaged == ()


def test_what_cannot_be_read_stays(folder: str, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail)
        report = verify_entries(folder)
    assert (len(report.unreadable), report.damaged) == (4, ())
    assert len(files_of(folder)) == 4


def test_a_foreign_folder_is_refused(tmp_path: Path):
    (tmp_path / "a.parquet").touch()
    for run in (
        lambda: describe_folder(str(tmp_path), by_row_group=True),
        lambda: prune_entries(str(tmp_path), PruneChoice(everything=True), NOW_S),
        lambda: verify_entries(str(tmp_path)),
    ):
        with pytest.raises(SpecError, match="is not a cache"):
            run()


# -- whatever a job named the table ------------------------------------------------------------------------------------


@pytest.fixture
def named(tmp_path: Path) -> tuple[str, Path]:
    """A cache with entries of two days of clicks and of views, by jobs that named the tables in their own ways."""
    cache, root = CacheFolder(ref_of(tmp_path / "cache")), tmp_path / "w"
    for table in ("clicks", "views"):
        for day in (1, 2):
            folder = root / table / f"ds=2026-01-0{day}"
            folder.mkdir(parents=True)
            (folder / "a.parquet").touch()
    (tmp_path / "link").symlink_to(root / "clicks")
    first = {"ds": datetime.date(2026, 1, 1)}
    second = {"ds": datetime.date(2026, 1, 2)}
    for number, (table, path, partition) in enumerate(
        [
            (root / "clicks", "ds=2026-01-01/a.parquet", first),
            (root / "clicks", "ds=2026-01-02/a.parquet", second),
            (root, "clicks/ds=2026-01-02/a.parquet", second),  # as one of a list
            (root, "views/ds=2026-01-02/a.parquet", second),
            (root / "clicks/ds=2026-01-02", "a.parquet", {}),  # the partition's folder
            (tmp_path / "link", "ds=2026-01-02/a.parquet", second),
            (f"file://{root}/clicks", "ds=2026-01-02/a.parquet", second),
            (tmp_path / "w-2/clicks", "ds=2026-01-02/a.parquet", second),
        ]
    ):
        group = EntryGroup(digest_of(f"{table} {path}"), str(table), path, number, partition)
        assert cache.put(group, columns_of(group, 1), cpu_s=1.0)
    return str(tmp_path / "cache"), root


def numbers(folder: str, table: str | None = None) -> list[int | None]:
    return sorted(each.row_group for each in describe_folder(folder, by_row_group=True, table=table).groups)  # type: ignore[type-var]


def keys_of(paths: Sequence[str]) -> list[dict[str, Any]]:
    return [{"ds": path.split("ds=")[1][:10]} for path in paths]


@pytest.mark.parametrize("form", ["{}/clicks", "file://{}/clicks", "{}/../link", "{}/views/../clicks/"])
def test_entries_belong_to_the_files_of_a_table(named: tuple[str, Path], form: str):
    folder, root = named
    assert numbers(folder, form.format(root)) == [0, 1, 2, 4, 5, 6]
    choice = PruneChoice(table=form.format(root), where="ds == '2026-01-02'")
    report = prune_entries(folder, choice, NOW_S, keys_of)
    assert (report.files, report.kept, report.is_met) == (5, 3, True)
    assert report.names == {
        str(root): 1,
        str(root / "clicks"): 1,
        str(root / "clicks/ds=2026-01-02"): 1,
        str(root.parent / "link"): 1,
        f"file://{root}/clicks": 1,
    }
    assert numbers(folder) == [0, 3, 7]


def test_entries_of_a_partition_or_of_a_file_are_told_from_those_beside_it(named: tuple[str, Path]):
    folder, root = named
    assert numbers(folder, str(root / "clicks/ds=2026-01-02")) == [1, 2, 4, 5, 6]
    assert numbers(folder, str(root / "clicks/ds=2026-01-01/a.parquet")) == [0]
    assert numbers(folder, str(root)) == [0, 1, 2, 3, 4, 5, 6]
    with pytest.raises(SpecError, match=r"no entry is of the table .*/w/click: expected its path or URI, .*/w/clicks"):
        describe_folder(folder, by_row_group=True, table=str(root / "click"))


def test_a_link_that_leads_elsewhere_since_still_names_its_entries(named: tuple[str, Path]):
    """And those that were written through it are of the files that they were computed from."""
    folder, root = named
    link = root.parent / "link"
    link.unlink()
    link.symlink_to(root / "views")
    assert numbers(folder, str(root / "clicks")) == [0, 1, 2, 4, 5, 6]
    assert numbers(folder, str(link)) == [3, 5]


def test_what_may_be_meant_and_is_left_is_not_done(named: tuple[str, Path]):
    folder, root = named
    report = prune_entries(folder, PruneChoice(table=str(root / "clicks"), where="ds == '2026-01-02'"), NOW_S)
    assert report.undecided == {"without the partition key ds": 1}
    assert not report.is_met
    [path, *_] = files_of(folder)
    path.write_bytes(b"damaged")
    report = prune_entries(folder, PruneChoice(where="ds == '2026-01-09'"), NOW_S, keys_of)
    assert (report.files, report.undecided, report.is_met) == (0, {"unreadable": 1}, False)


def test_what_cannot_be_removed_is_counted(named: tuple[str, Path], monkeypatch: pytest.MonkeyPatch):
    folder, root = named
    monkeypatch.setattr(maintenance, "remove_file", lambda path: False)
    report = prune_entries(folder, PruneChoice(table=str(root / "views")), NOW_S)
    assert (report.files, report.failed, report.is_met) == (0, 1, False)
