"""What blocks found in a cache adds up, and is said in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.loader.encoding.cache_counts import CacheCounts

UNIT = "features x row groups"

counts = st.builds(CacheCounts, **{name: st.integers(0, 2**40) for name in CacheCounts.__slots__ if name != "waited_s"})


@given(counts, counts, counts)
def test_sums_are_those_of_each_count_in_any_order(one: CacheCounts, two: CacheCounts, three: CacheCounts):
    assert (one + two) + three == three + (two + one)
    assert (one + two).found == one.found + two.found
    assert (one + two).nbytes_written == one.nbytes_written + two.nbytes_written
    assert one + CacheCounts() == one


def test_waiting_adds_up():
    assert (CacheCounts(waited_s=1.5) + CacheCounts(waited_s=0.25)).waited_s == 1.75


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        (
            CacheCounts(found=1234, computed=66, nbytes_read=2_100_000_000, nbytes_written=300_000_000),
            "cache: 1,234 of 1,300 features x row groups found (2.1 GB read), 66 computed (0.3 GB written)",
        ),
        (CacheCounts(), "cache: 0 of 0 features x row groups found (0 B read), 0 computed (0 B written)"),
        (
            CacheCounts(
                found=1, computed=2, skipped=1, nbytes_read=99, nbytes_written=1_500_000, damaged=1, waited_s=2.04
            ),
            f"cache: 1 of 3 {UNIT} found (99 B read), 2 computed (1.5 MB written, 1 skipped), 1 damaged, 2.0 s waited",
        ),
    ],
)
def test_one_line_says_it(counts: CacheCounts, line: str):
    assert counts.describe() == line
