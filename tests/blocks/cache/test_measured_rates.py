"""Are the rates of disk, memory and store plausible, measured in little time and without traces?"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.cache import measured_rates
from feedline.blocks.cache.measured_rates import FetchSample, cache_rates, disk_rates, memory_rate, store_rates


def sample(requests: int, size: int, seconds: float, begin_s: float = 0.0) -> FetchSample:
    return FetchSample(requests=requests, bytes=size, begin_s=begin_s, end_s=begin_s + seconds)


def test_a_disk_is_measured_once_and_leaves_nothing(tmp_path: Path):
    rates = disk_rates(str(tmp_path))
    assert rates is not None
    assert rates.write_bytes_per_s > 0
    assert rates.read_bytes_per_s > 0
    assert not list(tmp_path.iterdir())
    assert disk_rates(str(tmp_path)) is rates


def test_pieces_end_when_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    clock = [0.0]

    def write(_: int, piece: memoryview) -> int:
        sizes.append(len(piece))
        clock[0] += len(piece) / 100e6
        return len(piece)

    monkeypatch.setattr(measured_rates.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(measured_rates.os, "write", write)
    monkeypatch.setattr(measured_rates.os, "fdatasync", lambda _: None)
    written, rate = measured_rates._write_rate(-1)
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


@given(
    st.floats(1e-4, 1),
    st.floats(1e5, 1e9),
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 10**8)), min_size=4, max_size=30),
)
def test_latency_and_bandwidth_are_told_apart(latency: float, rate: float, fetches: list[tuple[int, int]]):
    varied = [*fetches, (40, 10**3), (1, 10**8)]
    found = store_rates([sample(count, size, count * latency + size / rate) for count, size in varied])
    assert found is not None
    assert found.latency_s == pytest.approx(latency, rel=1e-3)
    assert found.stream_bytes_per_s == pytest.approx(rate, rel=1e-3)


def test_samples_that_are_alike_are_latency_where_requests_are_small():
    small = store_rates([sample(10, 10_000, 0.5)] * 3)
    large = store_rates([sample(1, 10**7, 0.5)] * 3)
    assert small is not None
    assert large is not None
    assert small.latency_s == pytest.approx(0.05)
    assert large.latency_s == 0
    assert large.stream_bytes_per_s == pytest.approx(2e7)


def test_threads_together_get_more_of_a_store_than_one():
    samples = [sample(1, 10**7, 1.0, begin_s=0.1 * place) for place in range(4)]
    found = store_rates(samples)
    assert found is not None
    assert found.stream_bytes_per_s == pytest.approx(1e7)
    assert found.bytes_per_s == pytest.approx(4e7 / 1.3)


def test_requests_in_flight_share_their_latency():
    found = store_rates([sample(8, 0, 0.1)], parallel=4, remote=False)
    assert found is not None
    assert found.latency_s == pytest.approx(0.05)
    assert (found.parallel, found.remote) == (4, False)


def test_without_fetches_a_store_has_no_rates():
    assert store_rates([]) is None
    assert store_rates([sample(0, 10, 1.0), sample(3, 10, 0.0)]) is None


def test_a_measurement_is_short(tmp_path: Path):
    disk_rates.cache_clear()
    memory_rate.cache_clear()
    begin = time.thread_time()
    cache_rates(str(tmp_path))
    assert time.thread_time() - begin < 1.0  # CPU: what others do to the disk is not in it
