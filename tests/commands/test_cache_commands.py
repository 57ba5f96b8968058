"""`feedline cache`: what it prints, removes and exits with."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from cache_entries import columns_of, files_of, group_of, ref_of
from processes import ended_here

from feedline.commands.cache_commands import folder_of, parse_age
from feedline.errors import SpecError
from feedline.warehouse.cache.cache_folder import CacheFolder, EntryGroup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two row groups of clicks in two days, and one of users."""
    cache = CacheFolder(ref_of(tmp_path / "cache"))
    for number in range(2):
        group = group_of(number, partition={"day": datetime.date(2026, 1, 1 + number)})
        cache.put(group, columns_of(group, 2), cpu_s=1.0)
    group = group_of(0, table="users")
    cache.put(group, columns_of(group, 5), cpu_s=1.0)
    return tmp_path / "cache"


def shown(*arguments: object, status: int = 0) -> str:
    done = ended_here("cache", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def told(*arguments: object, status: int = 0) -> Any:
    """The one JSON document on standard output."""
    return json.loads(shown(*arguments, "--json", status=status))


def test_ls_lists_row_groups(folder: Path):
    report = told("ls", folder)
    assert [(each["table"], each["row_group"], each["columns"]) for each in report["groups"]] == [
        ("clicks", 0, 2),
        ("clicks", 1, 2),
        ("users", 0, 5),
    ]
    assert report["groups"][0]["partition"] == {"day": "2026-01-01"}
    assert [each["table"] for each in told("ls", folder, "--table", "users")["groups"]] == ["users"]
    text = shown("ls", folder)
    assert "day=1/part.parquet" in text
    assert "users" in text


def test_du_sums_tables(folder: Path):
    report = told("du", folder)
    assert [(each["table"], each["files"], each["columns"]) for each in report["groups"]] == [
        ("clicks", 2, 4),
        ("users", 1, 5),
    ]
    assert report["whole"]["bytes"] == sum(each["bytes"] for each in report["groups"])
    assert f"{report['whole']['bytes']:,}" in shown("du", folder)


def test_du_tells_of_other_files(folder: Path):
    first, second, _ = files_of(folder)
    first.write_bytes(b"damaged")
    second.with_name(".x.tmp").touch()
    done = ended_here("cache", "du", folder)
    assert "1 cannot be read; 1 being written, or left by a writer that died" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "removed"),
    [
        (["--table", "users"], 1),
        (["--where", "day < '2026-01-02'"], 1),
        (["--where", "day >= '2026-01-01'", "--table", "clicks"], 2),
        (["--older-than", "1h"], 0),
        (["--all"], 3),
    ],
)
def test_prune_removes_what_meets_all_conditions(folder: Path, arguments: list[str], removed: int):
    report = told("prune", folder, *arguments)
    assert (report["files"], len(files_of(folder))) == (removed, 3 - removed)


def test_a_table_without_entries_is_an_error(folder: Path):
    """A deletion that deletes nothing for want of the right name must not look done."""
    done = ended_here("cache", "prune", folder, "--table", "none")
    assert done.returncode == 2
    assert "no entry is of the table none" in done.stderr
    assert "The cache has those of clicks, users" in done.stderr
    assert len(files_of(folder)) == 3


def test_prune_says_what_cannot_be_decided(folder: Path):
    text = shown("prune", folder, "--where", "day == '2026-01-01'")
    assert "removed 1 files" in text
    assert "kept, as it cannot be decided: 1 without the partition key day" in text


def test_a_deletion_request_is_carried_out_whatever_jobs_named_the_table(tmp_path: Path):
    table, cache = tmp_path / "w/clicks", CacheFolder(ref_of(tmp_path / "cache"))
    for number, (name, path) in enumerate(
        [(tmp_path / "w", "clicks/month=01/a"), (table / "month=01", "a"), (table, "a")]
    ):
        group = EntryGroup(f"{number:032x}", str(name), path, number, {"month": 1} if number == 0 else {})
        cache.put(group, columns_of(group, 1), cpu_s=1.0)
    text = shown("prune", tmp_path / "cache", "--table", table, "--where", "month == 1", status=1)
    assert "removed 2 files" in text
    assert f"removed, of the table that jobs named {table}/month=01: 1" in " ".join(text.split()).replace("- ", "-")
    assert "kept, as it cannot be decided: 1 without the partition key month" in text
    assert told("prune", tmp_path / "cache", "--table", table)["files"] == 1


def test_prune_without_a_condition_removes_nothing(folder: Path):
    for arguments in ([], ["--all", "--table", "users"], ["--older-than", "soon"], ["--where", "day =="]):
        done = ended_here("cache", "prune", folder, *arguments)
        assert done.returncode not in (0, 1), arguments
        assert "Traceback" not in done.stderr
    assert len(files_of(folder)) == 3


def test_verify_exits_with_1_if_there_is_damage(folder: Path):
    assert told("verify", folder)["files"] == 3
    assert "verified 3 files" in shown("verify", folder)
    path = files_of(folder)[0]
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    text = shown("verify", folder, status=1)
    assert "1 damaged" in text
    assert path.name in text.replace("\n", "")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    assert told("verify", folder, status=1)["damaged"] == [str(path)]
    assert not path.exists()
    assert told("verify", folder)["damaged"] == []


def test_what_is_no_cache_is_refused(tmp_path: Path, folder: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.parquet").touch()
    with pytest.raises(SpecError, match=r"must be a folder: got nothing there\. Name the folder"):
        folder_of(tmp_path / "missing")
    with pytest.raises(SpecError, match=r"must be a folder: got a file\. Name the folder"):
        folder_of(tmp_path / "foreign" / "a.parquet")
    with pytest.raises(SpecError, match=r"is not a cache: got an empty folder\. Name the folder"):
        folder_of(tmp_path / "empty")
    with pytest.raises(SpecError, match=r"is not a cache: got 1 files or folders"):
        folder_of(tmp_path / "foreign")
    assert folder_of(folder) == str(folder)
    for command in (["ls"], ["du"], ["prune", "--all"], ["verify"]):
        done = ended_here("cache", command[0], tmp_path / "foreign", *command[1:])
        assert done.returncode not in (0, 1)
        assert "is not a cache" in " ".join(done.stderr.split())
    assert (tmp_path / "foreign" / "a.parquet").exists()


@pytest.mark.parametrize(
    ("text", "expected"), [("5s", 5.0), ("2 m", 120.0), ("12h", 43_200.0), ("1.5d", 129_600.0), ("2w", 1_209_600.0)]
)
def test_ages_are_numbers_and_units(text: str, expected: float):
    assert parse_age(text) == expected


@pytest.mark.parametrize("text", ["", "5", "d", "-1d", "5 years", "1e3s", "nan h"])
def test_other_ages_are_refused(text: str):
    with pytest.raises(SpecError, match=r"is not an age: got .*, expected a number and s, m, h, d or w"):
        parse_age(text)
