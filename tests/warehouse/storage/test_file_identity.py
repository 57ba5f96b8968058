"""A file is recognised by all that its store says of it, and never by its size and footer alone."""

from __future__ import annotations

import datetime
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.errors import TableChangedError
from feedline.warehouse.storage.file_identity import (
    Stamp,
    is_settled,
    known_files,
    mark_unknown,
    refuse_changed,
    stamp_at,
    stamp_at_index,
    tag_in,
    unsettled_ns,
)
from feedline.warehouse.storage.locations import locate

S = 10**9

STAMPS = st.builds(
    Stamp, st.integers(1, 2), st.sampled_from([-1, 5 * S, 5 * S + 1, 5 * S + 2, 6 * S]), st.sampled_from(["", "a", "b"])
)


def table(files: dict[str, tuple[Stamp, bytes | None]]) -> pa.Table:
    stamps = [stamp for stamp, _ in files.values()]
    return pa.table(
        {
            "path": pa.array(list(files), pa.string()),
            "bytes": pa.array([stamp.size_bytes for stamp in stamps], pa.int64()),
            "mtime_ns": pa.array([stamp.mtime_ns for stamp in stamps], pa.int64()),
            "etag": pa.array([stamp.tag or None for stamp in stamps], pa.string()),
            "footer_digest": pa.array([footer for _, footer in files.values()], pa.binary()),
        }
    )


def verdict(before: Stamp, now: Stamp) -> str:
    """The rule, case by case."""
    if before.size_bytes != now.size_bytes:
        return "other"
    if before.tag and now.tag:
        return "same" if before.tag == now.tag else "other"
    if before.mtime_ns < 0 or now.mtime_ns < 0:
        return "unknown"
    fractions = [stamp.mtime_ns % S for stamp in (before, now)]
    seconds = [stamp.mtime_ns // S for stamp in (before, now)]
    is_same = before.mtime_ns == now.mtime_ns if all(fractions) else seconds[0] == seconds[1]
    return "same" if is_same else "other"


FILES = st.dictionaries(st.sampled_from("pqrst"), st.tuples(STAMPS, st.sampled_from([None, b"x", b"y"])), max_size=5)


@given(FILES, FILES)
def test_files_are_compared_by_the_rule(before: dict[str, Any], now: dict[str, Any]):
    found = known_files(table(now), table(before))
    order = list(before)
    for index, (path, (stamp, footer)) in enumerate(now.items()):
        was, footer_was = before.get(path, (None, None))
        assert found.index[index] == (order.index(path) if path in before else -1)
        rule = "other" if was is None else verdict(was, stamp)
        if footer is not None and footer_was is not None and footer != footer_was:
            rule = "other"
        assert (bool(found.same[index]), bool(found.agrees[index])) == (rule == "same", rule != "other")
        assert found.before[index] == (found.index[index] if rule == "same" else -1)
        assert not (found.retimed[index] and rule != "other")


@given(STAMPS, STAMPS)
@example(Stamp(9, 5 * S + 1), Stamp(9, 5 * S + 2))
@example(Stamp(9, 5 * S, "of a copy"), Stamp(9, 8 * S, "of a copy"))
def test_an_open_file_is_refused_if_the_rule_says_that_it_is_another(before: Stamp, now: Stamp):
    if verdict(before, now) == "other":
        with pytest.raises(TableChangedError, match=r"^f changed then: got .*, expected .*\. Look$"):
            refuse_changed("f", before, now, "then", "Look")
    else:
        refuse_changed("f", before, now, "then", "Look")


def test_what_nobody_can_tell_is_marked_and_never_recognised():
    files = table({name: (Stamp(9, -1, ""), b"footer") for name in "ab"}).drop_columns("etag")
    told = table({name: (Stamp(9, 5, ""), b"footer") for name in "ab"}).drop_columns("etag")
    tags = pa.nulls(2, pa.string())
    assert mark_unknown(told, tags, 7) is None
    first, second = (files.append_column("etag", mark_unknown(files, tags, moment)) for moment in (7, 8))
    assert not known_files(second, first).same.any()
    assert known_files(first, first).same.all(), "in its own snapshot"
    stamp = stamp_at_index(first, 0)
    assert stamp.content_name is None
    refuse_changed("f", stamp, Stamp(9, -1, ""), "then", "Look")  # it is read
    refuse_changed("f", stamp, Stamp(9, -1, "new"), "then", "Look")
    with pytest.raises(TableChangedError, match=r"got 8 bytes of unknown time"):
        refuse_changed("f", stamp, Stamp(8, -1, ""), "then", "Look")


@pytest.mark.parametrize(
    ("details", "tag"),
    [
        ({"ETag": '"9b2c"', "LastModified": datetime.datetime(2026, 1, 1)}, "9b2c"),  # s3fs
        ({"etag": "0x8D", "last_modified": datetime.datetime(2026, 1, 1)}, "0x8D"),  # adlfs, in a listing
        ({"etag": '"0x8D"'}, "0x8D"),  # and of one file
        ({"generation": "17", "mtime": datetime.datetime(2026, 1, 1)}, "17"),  # gcsfs
        ({"blob_id": "f00", "lfs": None}, "f00"),  # hf
        ({"ETag": 'W/"5"'}, "5"),
        ({"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}, "Thu, 01 Jan 2026 00:00:00 GMT"),
        ({"mtime": 5.0, "last_modified": 7}, ""),
        ({"created": 5.0}, ""),
    ],
)
def test_tags_are_found_by_their_names_in_each_store(details: dict[str, Any], tag: str):
    assert tag_in(details) == tag


def test_the_stamp_of_a_file_in_an_fsspec_store_has_its_tag():
    class Tagged(MemoryFileSystem):
        protocol = "identity"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(MemoryFileSystem._strip_protocol(path.replace("identity://", "memory://")))

        def info(self, path: str, **options: object) -> dict[str, Any]:
            return {**super().info(path, **options), "ETag": '"t"', "mtime": 5.5}

    fsspec.register_implementation("identity", Tagged, clobber=True)
    fsspec.filesystem("identity").pipe("/identity/f", b"bytes")
    location = locate("identity://identity/f")
    assert stamp_at(location.filesystem, location.path) == Stamp(5, 5 * S + S // 2, "t")
    with pytest.raises(FileNotFoundError):
        stamp_at(location.filesystem, "/gone")
    plain = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("identity")))
    assert stamp_at(plain, "/identity/f").tag == "t"


def test_fresh_times_are_waited_for_as_long_as_their_file_system_needs():
    now = 100 * S + 7
    assert unsettled_ns(np.array([], np.int64), now) == 0
    assert unsettled_ns(np.array([97 * S, 99 * S + 5]), now) == 0, "both have passed"
    assert unsettled_ns(np.array([99 * S]), now) == S - 7, "it has no fractions: two seconds"
    assert unsettled_ns(np.array([now - 1]), now) == 10**7 - 1, "it has: a tick of the clock"
    assert unsettled_ns(np.array([500 * S]), now) == 2 * S, "of a clock that is ahead"
    assert unsettled_ns(np.array([-1]), now) == 0
    assert is_settled(np.array([-1, 97 * S, 99 * S]), now).tolist() == [False, True, False]
