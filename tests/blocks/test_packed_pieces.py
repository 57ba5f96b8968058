"""A block's pieces come back from their packed form, which is small."""

from __future__ import annotations

import datetime
import pickle
from decimal import Decimal

from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.blocks.request import BlockRequest, PackedRequest, PieceRequest, pack_request
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.reading.fragment import Fragment


def sent(request: BlockRequest) -> BlockRequest:
    """The request that a worker gets."""
    packed = pickle.loads(pickle.dumps(pack_request(request)))
    assert isinstance(packed, PackedRequest) == (len(request.pieces) >= 4)
    return packed.unpack() if isinstance(packed, PackedRequest) else packed


whole = st.integers(0, 2**63 - 1)
values = st.none() | st.text() | st.integers() | st.dates() | st.decimals(allow_nan=False) | st.booleans()


@st.composite
def pieces(draw: st.DrawFn) -> PieceRequest:
    groups = draw(st.integers(0, 4))
    fragment = Fragment(
        table=draw(st.sampled_from(["s3://a/t", "/b"])),
        path=draw(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)),
        bytes=draw(whole),
        mtime_ns=draw(st.integers(-1, 2**63 - 1)),
        footer_digest=draw(st.binary(max_size=32)),
        footer_bytes=draw(whole),
        row_groups=tuple(draw(st.lists(st.integers(0, 2**31), min_size=groups, max_size=groups))),
        expected=tuple(draw(st.lists(st.integers(-1, 2**40), min_size=groups, max_size=groups))),
        partition=tuple(draw(st.lists(st.tuples(st.text(max_size=3), values), max_size=2))),
        proofs=tuple(draw(st.lists(st.integers(0, 255), max_size=groups))),
        excluded=tuple(draw(st.lists(st.none() | st.binary(max_size=3), max_size=groups))),
        stored_names=draw(st.none() | st.builds(StoredNames, st.sampled_from(["[true,[]]", "[false,[]]"]))),
        source_cache=draw(st.sampled_from([None, CacheRef(folder="/c", size=None, free=1, shared=False)])),
    )
    return PieceRequest(fragment=fragment, skip=draw(whole), rows=draw(whole))


@examples(60)
@given(st.lists(pieces(), max_size=8), st.none() | st.tuples(st.just("rows"), st.integers(), st.text(max_size=4)))
def test_a_packed_request_comes_back(parts: list[PieceRequest], permutation: tuple[int | str, ...] | None) -> None:
    request = BlockRequest(pieces=tuple(parts), rows=7, permutation=permutation, nbytes=9)
    back = sent(request)
    assert back == request
    assert repr(back) == repr(request), "keys of tasks are made of it"


def test_partition_values_that_compare_equal_stay_apart() -> None:
    """True == 1 == Decimal(1): a value of one type must not come back as another's."""
    same = (True, 1, Decimal(1), 1.0, datetime.date(2026, 1, 1))
    parts = tuple(
        PieceRequest(
            fragment=Fragment(
                table="/t",
                path=f"{index}",
                bytes=1,
                mtime_ns=1,
                footer_digest=b"",
                footer_bytes=1,
                row_groups=(0,),
                expected=(1,),
                partition=(("k", value),),
            ),
            skip=0,
            rows=1,
        )
        for index, value in enumerate(same)
    )
    request = BlockRequest(pieces=parts, rows=5, permutation=None, nbytes=1)
    assert repr(sent(request)) == repr(request)
