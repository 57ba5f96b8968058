"""Files of the least benefit per byte go first, and none that is worth more than what takes its place."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cache_entries import files_of, filled
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.cache.cache_folder import FolderSpace
from feedline.warehouse.cache.entry_file import TEMPORARY_SUFFIX
from feedline.warehouse.cache.eviction import (
    HALF_LIFE_S,
    Candidate,
    CostBook,
    StoredFileStat,
    benefit_per_byte,
    choose_victims,
    disk_bytes,
    is_abandoned,
    list_entries,
    remove_file,
    touched_ns,
    touches_of,
)

FILE = StoredFileStat(path="a", version="v1", nbytes=4_096, used_s=1_000.0, touches=0, temporary=False)


def candidate(number: int, benefit: float, nbytes: int = 100, used_s: float = 0.0) -> Candidate:
    return Candidate(replace(FILE, path=str(number), nbytes=nbytes, used_s=used_s), benefit)


candidates = st.lists(
    st.builds(candidate, st.integers(), st.floats(0, 10), st.integers(1, 1_000), st.floats(0, 10)), max_size=20
)


@given(candidates, st.integers(0, 3_000), st.integers(0, 3_000), st.integers(0, 500), st.floats(0, 20))
def test_victims_free_what_is_asked_and_are_worth_least(
    files: list[Candidate], over: int, room: int, spare: int, benefit: float
):
    victims = choose_victims(files, over, room, spare, benefit)
    freed = sum(each.file.nbytes for each in victims)
    kept = [each for each in files if not any(each is victim for victim in victims)]
    assert len(kept) + len(victims) == len(files)
    if victims and kept:
        assert max(each.benefit for each in victims) <= min(each.benefit for each in kept)
    assert freed >= min(over, sum(each.file.nbytes for each in files))
    if freed >= over + room:
        return
    # room was not found: files of half the benefit or less do not suffice, and only what is over the bound goes
    necessary = choose_victims(files, over, 0, 0, benefit)
    assert [id(each) for each in victims] == [id(each) for each in necessary]
    rest = sum(each.file.nbytes for each in kept if each.benefit <= benefit / 2)
    assert freed + rest < over + room


def test_of_equals_the_one_used_least_recently_goes():
    files = [candidate(number, 1.0, used_s=float(9 - number)) for number in range(10)]
    assert [each.file.path for each in choose_victims(files, 150, 0, 0, 0.0)] == ["9", "8"]


def test_equals_are_not_displaced():
    files = [candidate(number, 1.0) for number in range(10)]
    assert choose_victims(files, 0, 100, 0, benefit=1.9) == []
    assert len(choose_victims(files, 0, 100, 0, benefit=2.0)) == 1
    assert len(choose_victims(files, 0, 100, 300, benefit=2.0)) == 4


def test_benefit_follows_cost_uses_age_and_bytes():
    assert benefit_per_byte(6.0, 0, 0.0, 3) == 2.0
    assert benefit_per_byte(6.0, 2, 0.0, 3) == 6.0
    assert benefit_per_byte(6.0, 0, HALF_LIFE_S, 3) == 1.0
    assert benefit_per_byte(6.0, 0, -1e9, 3) == 2.0  # another host's clock is ahead
    assert benefit_per_byte(6.0, 0, 1e12, 3) == 0.0
    assert benefit_per_byte(6.0, 0, 0.0, 0) == 6.0


@given(st.integers(0, 2**34), st.integers(0, 10**9))
def test_a_time_counts_touches(used_s: int, touches: int):
    mtime_ns = touched_ns(used_s + 0.5, touches)
    assert mtime_ns // 10**9 == used_s
    assert touches_of(mtime_ns) == min(touches, 999_999)


def test_a_time_that_the_kernel_set_counts_none():
    assert touches_of(1_700_000_000_123_456_789) == 0


@pytest.mark.parametrize(("nbytes", "expected"), [(0, 0), (1, 4_096), (4_096, 4_096), (4_097, 8_192)])
def test_bytes_on_disk_are_whole_blocks(nbytes: int, expected: int):
    assert disk_bytes(nbytes) == expected


def test_files_of_all_versions_are_listed_and_nothing_else(tmp_path: Path):
    filled(tmp_path, groups=2)
    first, second = files_of(tmp_path)
    later = tmp_path / "v2" / "ab" / "abcd"
    later.mkdir(parents=True)
    (later / "x.entry").write_bytes(bytes(5_000))
    first.with_name(".x.tmp").write_bytes(b"1")
    first.with_name("notes.txt").write_bytes(b"1")
    (tmp_path / "vx").mkdir()
    (tmp_path / "v1" / "file").touch()
    listed = {file.path: file for file in list_entries(str(tmp_path))}
    assert sorted(listed) == sorted(map(str, [first, second, later / "x.entry", first.with_name(".x.tmp")]))
    assert listed[str(later / "x.entry")].version == "v2"
    assert listed[str(later / "x.entry")].nbytes == 8_192
    assert listed[str(first.with_name(".x.tmp"))].temporary
    assert list(list_entries(str(tmp_path / "missing"))) == []


def test_costs_are_read_once_and_damaged_files_are_worth_nothing(tmp_path: Path):
    filled(tmp_path, groups=3)
    first, second, third = files_of(tmp_path)
    third.write_bytes(b"damaged")
    nbytes = first.stat().st_size
    book, now_s = CostBook(), time.time()
    other = replace(FILE, path="of another version", version="v9", nbytes=8_192, used_s=now_s)
    files = [*list_entries(str(tmp_path)), other]
    for _ in range(2):
        made = {each.file.path: each.benefit for each in book.candidates(files, "v1", now_s)}
        assert made[str(third)] == 0.0
        assert made[str(first)] == made[str(second)] == pytest.approx(1.0 / nbytes, rel=0.5)
        assert made[other.path] == pytest.approx(made[str(first)], rel=0.01)
        first.write_bytes(b"damaged")  # its cost is known
    assert CostBook().candidates([other], "v1", now_s)[0].benefit == 0.0


def test_the_last_file_takes_its_folder_along(tmp_path: Path):
    filled(tmp_path, groups=1)
    [path] = files_of(tmp_path)
    path.with_name("b.entry").touch()
    assert remove_file(str(path))
    assert path.parent.exists()
    assert remove_file(str(path.with_name("b.entry")))
    assert not path.parent.exists()
    assert not remove_file(str(path))


@pytest.mark.parametrize(
    ("age_s", "locked", "expected"),
    [
        (1.0, False, False),  # it may just not be locked yet
        (60.0, True, False),
        (60.0, False, True),
        (-60.0, False, True),
        (7_200.0, True, False),  # another host's clock
        (-7_200.0, True, False),
        (7_200.0, False, True),
    ],
)
def test_a_temporary_file_is_abandoned_by_its_age_and_lock(tmp_path: Path, age_s: float, locked: bool, expected: bool):
    path = tmp_path / "a.tmp"
    path.touch()
    number = os.open(path, os.O_RDONLY)
    if locked:
        fcntl.flock(number, fcntl.LOCK_EX)
    file = replace(FILE, path=str(path), used_s=10_000.0, temporary=True)
    assert is_abandoned(file, 10_000.0 + age_s) is expected
    os.close(number)


@pytest.mark.parametrize(("age_s", "expected"), [(60.0, False), (7_200.0, True)])
def test_without_locks_a_temporary_file_is_abandoned_by_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: float, expected: bool
):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "a.tmp").touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    file = replace(FILE, path=str(tmp_path / "a.tmp"), used_s=10_000.0, temporary=True)
    assert is_abandoned(file, 10_000.0 + age_s) is expected


def test_the_file_of_a_living_writer_stays_whatever_the_clocks_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    filled(tmp_path, groups=1)
    [path] = files_of(tmp_path)
    temporary = path.with_name(f".b.entry.0{TEMPORARY_SUFFIX}")
    temporary.write_bytes(b"half of it")
    os.utime(temporary, (0, 0))
    space = FolderSpace(str(tmp_path), None, 0, 0o600)
    with temporary.open("rb") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        space.rescan()
        assert temporary.exists()
    space.rescan()
    assert not temporary.exists()


def test_a_temporary_file_that_vanished_is_not_abandoned(tmp_path: Path):
    assert not is_abandoned(replace(FILE, path=str(tmp_path / "gone.tmp"), temporary=True), 1_060.0)
