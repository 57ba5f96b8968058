"""Are the rates of disk and memory plausible, measured in little time and without traces?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from feedline.blocks.cache import auto_choice
from feedline.blocks.cache.auto_choice import cache_rates, disk_rates, memory_rate


def test_a_disk_is_measured_once_and_leaves_nothing(tmp_path: Path):
    rates = disk_rates(str(tmp_path))
    assert rates is not None
    assert min(rates) > 0
    assert not list(tmp_path.iterdir())
    assert disk_rates(str(tmp_path)) is rates


def test_pieces_end_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    clock = [0.0]

    def write(_: int, piece: memoryview) -> int:
        sizes.append(len(piece))
        clock[0] += len(piece) / 100e6
        return len(piece)

    monkeypatch.setattr(auto_choice.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(auto_choice.os, "write", write)
    monkeypatch.setattr(auto_choice.os, "fdatasync", lambda _: None)
    written, rate = auto_choice._write_rate(-1)
    assert sizes == [256 << 10, 512 << 10, 1024 << 10]  # 2.6, 5.2 and 10.5 ms
    assert written == sum(sizes)
    assert rate == pytest.approx(100e6)


def test_a_folder_that_cannot_be_written_has_no_rates(tmp_path: Path):
    assert disk_rates(str(tmp_path / "missing")) is None
    assert cache_rates(str(tmp_path / "missing")) is None


def test_rates_of_a_folder_include_memory(tmp_path: Path):
    rates = cache_rates(str(tmp_path))
    assert rates is not None
    assert rates.memory_bytes_per_s == memory_rate() > 1e8
    assert 0 < rates.write_buffer_bytes <= rates.page_cache_bytes


def test_a_measurement_is_short(tmp_path: Path):
    disk_rates.cache_clear()
    memory_rate.cache_clear()
    begin = time.thread_time()
    cache_rates(str(tmp_path))
    assert time.thread_time() - begin < 1.0  # CPU: what others do to the disk is not in it
