"""Does writing keep to its share of the time of computing, and use it?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.cache.cache_folder import WriteBudget

SECONDS = st.floats(1e-4, 10)


@given(st.floats(0.01, 1), SECONDS, SECONDS, st.integers(1, 300))
def test_writing_keeps_to_its_share_after_the_first_entry(share: float, made_s: float, written_s: float, count: int):
    budget, written = WriteBudget(share), 0
    for _ in range(count):
        writes = budget.allows()
        written += writes
        budget.spend(made_s=made_s, written_s=written_s if writes else 0.0)
    assert written * written_s <= max(share * count * made_s, written_s) * (1 + 1e-9)
    if written < count and share * made_s <= written_s:  # what is left is too little for another entry
        assert (written + 1) * written_s >= share * (count - 1) * made_s * (1 - 1e-9)


def test_the_first_entry_is_written():
    assert WriteBudget(0.01).allows()


def test_no_share_is_no_bound():
    budget = WriteBudget(None)
    budget.spend(made_s=1.0, written_s=100.0)
    assert budget.allows()


def test_some_seconds_are_free():
    budget, written = WriteBudget(0.01, free_s=1.0), 0
    while budget.allows():
        budget.spend(made_s=1.0, written_s=0.125)
        written += 1
    assert written == 8
