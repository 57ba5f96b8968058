"""Are the formulas of an epoch right at their ends?"""

from __future__ import annotations

from collections import OrderedDict
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.cache.cache_costs import (
    CacheRates,
    EpochLoad,
    FeatureCost,
    PolicyInputs,
    StoreRates,
    computing,
    epoch_seconds,
    hit_share,
    hitting,
    writing,
)

RATES = CacheRates(read_bytes_per_s=1e8, write_bytes_per_s=5e7, memory_bytes_per_s=5e9, entry_s=1e-4, feature_s=1e-5)


def inputs(**changes: Any) -> PolicyInputs:
    values: dict[str, Any] = {
        "features": (FeatureCost(name="a", cpu_s=4e-6, store_bytes=50),),
        "shared": FeatureCost(name="shared", store_requests=1e-4),
        "store": StoreRates(latency_s=0.05, bytes_per_s=1e8, parallel=2),
        "cache": RATES,
        "threads": 2,
        "rows": 1e6,
        "row_groups": 10,
        "epochs_left": 3,
        "capacity_bytes": 1e12,
    }
    return PolicyInputs(**values | changes)


def test_an_epoch_is_as_slow_as_its_slowest_resource():
    load = EpochLoad(thread_s=4, store_s=1, disk_s=1)
    assert epoch_seconds(inputs(), load) == 2
    assert epoch_seconds(inputs(threads=8), load) == 1


def test_computing_waits_for_requests_and_bytes_of_the_store():
    load = computing(inputs(), (*inputs().features, inputs().shared))
    assert load.thread_s == pytest.approx(4 + 100 * 0.05 / 2 + 0.5)
    assert load.store_s == pytest.approx(0.5)


def test_a_hit_from_the_page_cache_costs_a_copy_and_a_fixed_part():
    warm = inputs(cache=CacheRates(**fields_of(RATES) | {"page_cache_bytes": 1e9}))
    load = hitting(warm, 1e9, 1)
    assert load.thread_s == pytest.approx(0.2 + 10 * (1e-4 + 1e-5))
    assert load.disk_s == 0
    assert hitting(inputs(), 1e9, 1).disk_s == pytest.approx(10)
    assert hitting(inputs(), 0, 0) == EpochLoad()


def test_writes_within_the_buffer_do_not_wait_for_the_disk():
    buffered = inputs(cache=CacheRates(**fields_of(RATES) | {"write_buffer_bytes": 5e8}))
    load = writing(buffered, 1e9)
    assert load.disk_s == pytest.approx(10)
    assert load.thread_s == pytest.approx(10 + 0.1 + 10 * 1e-4)


@given(st.floats(1, 1e15), st.floats(0, 1e18), st.floats(1, 1e15))
def test_no_hit_is_faster_than_a_copy_in_memory(disk: float, kept_bytes: float, memory: float):
    rates = CacheRates(read_bytes_per_s=disk, write_bytes_per_s=disk, memory_bytes_per_s=memory, page_cache_bytes=1e9)
    thread_s, disk_s = rates.read_s(kept_bytes)
    assert thread_s >= kept_bytes / memory * (1 - 1e-9)
    assert 0 <= disk_s <= thread_s
    assert rates.write_s(kept_bytes)[0] >= kept_bytes / memory * (1 - 1e-9)


@pytest.mark.parametrize("memory", [10, 50, 90, 100])
def test_hits_of_an_lru_under_a_new_order_per_epoch(memory: int):
    random, held, hits = Random(0), OrderedDict[int, None](), 0
    for epoch in range(201):
        for entry in random.sample(range(100), 100):
            hits += epoch > 0 and entry in held
            held[entry] = None
            held.move_to_end(entry)
            if len(held) > memory:
                held.popitem(last=False)
    assert hit_share(memory, 100) == pytest.approx(hits / 20_000, abs=0.015)


@given(st.floats(0, 1e18), st.floats(0, 1e18), st.floats(0, 1e18))
def test_more_memory_hits_more(memory: float, more: float, kept: float):
    assert 0 <= hit_share(memory, kept) <= hit_share(memory + more, kept) + 1e-9 <= 1 + 1e-9


def fields_of(rates: CacheRates) -> dict[str, float]:
    return {name: getattr(rates, name) for name in CacheRates.__slots__}
