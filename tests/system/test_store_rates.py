"""Are latency and bandwidth of a store told apart by what fetches took?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from store_rates import FetchSample, store_rates


def sample(requests: int, size: int, seconds: float, begin_s: float = 0.0) -> FetchSample:
    return FetchSample(requests=requests, bytes=size, begin_s=begin_s, end_s=begin_s + seconds)


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
