"""Which files of a growing table have landed, and which of them no epoch has read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import TableError
from feedline.warehouse.discovery.hive import Listing
from feedline.warehouse.snapshot.arrived_files import (
    LandingRule,
    arrivals,
    landed,
    partition_names,
    seen_files,
)

S = 10**9


def listing(files: dict[str, int], *, markers=None, schema=None, partition=None, sizes=None) -> Listing:
    """A listing of files with their times in seconds."""
    times = [-1 if time < 0 else time * S for time in files.values()]
    table = pa.table(
        {
            "path": pa.array(list(files), pa.string()),
            "bytes": pa.array(sizes or [100] * len(files), pa.int64()),
            "mtime_ns": pa.array(times, pa.int64()),
        }
    )
    found = {folder: time * S for folder, time in (markers or {}).items()}
    return Listing(uri="/t", files=table, partition=partition or {}, ignored=0, schema=schema, markers=found)


def paths(found: Listing) -> list[str]:
    return found.files["path"].to_pylist()


def record(files: Listing, epoch: int = 0) -> pa.Table:
    digests = pa.array([b"d"] * len(files.files), pa.binary())
    return seen_files(files.files.append_column("footer_digest", digests), partition_names(files), epoch)


def test_a_partition_counts_once_it_holds_the_marker():
    files = {"ds=1/a": 1, "ds=1/b": 1, "ds=2/a": 1, "ds=3/h=1/a": 1, "ds=3/h=2/a": 1, "ds=4/h=1/a": 1}
    table = listing(files, markers={"ds=1": 2, "ds=3": 2, "ds=4/h=2": 2, "": 2})
    found = landed(table, LandingRule())
    assert paths(found.listing) == ["ds=1/a", "ds=1/b", "ds=3/h=1/a", "ds=3/h=2/a"], "a marker above serves"
    assert found.left_out == {"ds=2": "holds no _SUCCESS", "ds=4/h=1": "holds no _SUCCESS"}
    assert found.describe() == ("3 partitions have landed, 2 not: ds=2 holds no _SUCCESS, ds=4/h=1 holds no _SUCCESS")


def test_files_outside_partition_folders_have_no_marker():
    with pytest.raises(TableError, match=r"^/t/a is in no partition folder, .*quiet 10m"):
        landed(listing({"a": 1}, markers={"": 1}), LandingRule())


def test_a_partition_counts_once_none_of_its_files_changed_for_a_while():
    table = listing({"ds=1/a": 10, "ds=1/b": 40, "ds=2/a": 41, "ds=2/b": 1, "c": 40, "d": 41})
    found = landed(table, LandingRule(quiet_s=60, now_ns=100 * S))
    assert paths(found.listing) == ["ds=1/a", "ds=1/b", "c"], "files beside folders count one by one"
    assert found.left_out == {"ds=2": "was written 59 s ago", "d": "was written 59 s ago"}


def test_nothing_joins_after_the_end():
    table = listing({"ds=1/a": 10, "ds=1/late": 130, "ds=2/a": 100, "ds=3/a": 130}, markers={"ds=1": 20, "ds=2": 121})
    found = landed(table, LandingRule(now_ns=500 * S, until_ns=120 * S))
    assert paths(found.listing) == ["ds=1/a"], "a late file, and a late marker, do not exist"
    quiet = landed(table, LandingRule(quiet_s=30, now_ns=500 * S, until_ns=120 * S))
    assert paths(quiet.listing) == ["ds=1/a"], "ds=2 had been quiet for 20 s at the end"
    assert set(quiet.left_out) == {"ds=2", "ds=3"}


def test_times_that_a_store_lacks_are_refused_where_they_decide():
    table = listing({"ds=1/a": -1}, markers={"ds=1": 1})
    assert len(landed(table, LandingRule()).listing.files) == 1
    for rule in (LandingRule(quiet_s=1, now_ns=S), LandingRule(until_ns=S)):
        with pytest.raises(TableError, match="files without modification times"):
            landed(table, rule)


def test_the_rule_must_fit_the_table():
    log = listing({"a": 1}, schema=pa.schema([("x", pa.int64())]))
    assert paths(landed(log, LandingRule(logged=True)).listing) == ["a"]
    with pytest.raises(TableError, match="/t has a log, which says what has landed"):
        landed(log, LandingRule(quiet_s=1, now_ns=S))
    with pytest.raises(TableError, match="/t has no log"):
        landed(listing({"a": 1}), LandingRule(logged=True))


@given(
    st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 3)), st.integers(0, 200), min_size=1),
    st.integers(0, 250),
)
def test_quiet_partitions_are_those_whose_newest_file_is_old_enough(times, now):
    files = {f"ds={folder}/{name}": time for (folder, name), time in times.items()}
    found = landed(listing(files), LandingRule(quiet_s=50, now_ns=now * S))
    newest = {folder: max(time for (each, _), time in times.items() if each == folder) for folder, _ in times}
    expected = [path for path in files if newest[int(path[3])] + 50 <= now]
    assert paths(found.listing) == expected
    assert found.partitions + len(found.left_out) == len(newest)


# -- what no epoch has read -----------------------------------------------------------------------------------------


def test_new_files_are_those_that_no_epoch_has_read():
    seen = record(listing({"ds=1/a": 1, "ds=2/a": 1}))
    found = arrivals(listing({"ds=1/a": 1, "ds=1/late": 2, "ds=2/a": 1, "ds=3/a": 3}), seen)
    assert found.new.tolist() == [1, 3]
    assert not len(found.altered)
    assert found.rewritten == ()


def test_a_file_of_another_size_or_time_is_altered():
    seen = record(listing({"ds=1/a": 1, "ds=1/b": 1, "ds=1/c": 1}))
    found = arrivals(listing({"ds=1/a": 1, "ds=1/b": 2, "ds=1/c": 1}, sizes=[100, 100, 101]), seen)
    assert (found.altered.tolist(), found.of.tolist()) == ([1, 2], [1, 2])
    assert not len(found.new)


def test_a_partition_that_lost_files_and_gained_others_was_rewritten():
    seen = record(listing({"ds=1/a": 1, "ds=1/b": 1, "ds=2/a": 1, "ds=3/a": 1}))
    found = arrivals(listing({"ds=1/b": 1, "ds=1/c": 2, "ds=3/a": 1}), seen)
    assert found.rewritten == (("ds=1", "ds=1/a", "ds=1/c"),), "a partition that is gone as a whole is no rewriting"
    flat = arrivals(listing({"b": 2}), record(listing({"a": 1})))
    assert (flat.new.tolist(), flat.rewritten) == ([0], ()), "a file beside folders is a partition of its own"


def test_partitions_of_a_log_are_values_of_its_keys():
    schema = pa.schema([("x", pa.int64())])
    before = listing({"data/1": 1, "data/2": 1}, schema=schema, partition={"ds": pa.array([1, None], pa.int32())})
    assert partition_names(before).to_pylist() == ["ds=1", "ds=null"]
    after = listing({"data/2": 1, "other/3": 2}, schema=schema, partition={"ds": pa.array([None, 1], pa.int32())})
    assert arrivals(after, record(before)).rewritten == (("ds=1", "data/1", "other/3"),)
    whole = listing({"a": 1}, schema=schema)
    assert arrivals(listing({"b": 2}, schema=schema), record(whole)).rewritten == (("", "a", "b"),)


def test_an_empty_record_knows_no_file():
    found = arrivals(listing({"a": 1}), record(listing({})))
    assert np.array_equal(found.new, [0])


def test_a_file_of_the_future_says_what_to_correct():
    found = landed(listing({"ds=1/a": 0, "ds=2/a": 1_000, "ds=3/a": 130}), LandingRule(quiet_s=60, now_ns=100 * S))
    assert paths(found.listing) == ["ds=1/a"]
    ahead = "has a file whose time lies 900 s ahead of this host's clock: correct it (touch), or the clock"
    assert found.left_out == {"ds=2": ahead, "ds=3": "was written 0 s ago"}
