"""Values become the type of their group, or an error names the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from columns_of_kinds import ROWS, SCHEMA, feature, frame
from reference_hash import hash_of

from feedline.config.features import FeatureSpec
from feedline.errors import SpecError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import OpError


def values(*features: FeatureSpec) -> dict[str, list[Any]]:
    return compile_features(features, SCHEMA).apply(frame()).to_dict(as_series=False)


def test_groups_give_their_type():
    found = values(
        feature("dense", "count"),
        feature("dense", "amount"),
        feature("label", "paid"),
        feature("categorical", "flag", column="paid"),
        feature("categorical", "id", column="count"),
        feature("categorical", "city", {"hash_bucket": 9}),
        feature("categorical", "raw", {"hash_bucket": 9}),
        feature("sparse", "triple"),
        feature("sparse", "history"),
        feature("extra", "user"),
        feature("extra", "tags"),
    )
    assert found == {
        "count": [1.0, -2.0, 3.0, None],
        "amount": [1.25, None, pytest.approx(-3.1), 0.0],
        "paid": [1.0, 0.0, None, 1.0],
        "flag": [1, 0, None, 1],
        "id": [1, -2, 3, None],
        "city": [hash_of("Bonn") % 9, hash_of("Bonn") % 9, None, hash_of("Ulm") % 9],
        "raw": [hash_of(b"\0\1") % 9, hash_of(b"") % 9, None, hash_of(b"x" * 20) % 9],
        "triple": ROWS["triple"],
        "history": ROWS["history"],
        "user": ROWS["user"],
        "tags": ROWS["tags"],
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (feature("dense", "country"), r"country: \[dense\]: dense takes one number per row: got string. .*hash_bucket"),
        (feature("dense", "history"), "got integer list. Put the feature under sparse"),
        (feature("dense", "ts"), r"got timestamp. .*expr.*dt.hour"),
        (feature("dense", "day"), "got date"),
        (feature("dense", "user"), r'got struct. .*NAME."field"'),
        (feature("dense", "nothing"), "got null"),
        (feature("label", "country"), "label takes one number per row: got string"),
        (feature("categorical", "country"), "categorical takes one integer id per row: got string. .*hash_bucket"),
        (feature("categorical", "city"), "got string"),
        (feature("categorical", "price"), "got float. .*bucketize"),
        (feature("categorical", "history"), "got integer list. Put the feature under sparse"),
        (feature("categorical", "tags"), "got string list. .*hash_bucket.* and put the feature under sparse"),
        (feature("categorical", "ts"), "got timestamp"),
        (feature("sparse", "country"), "floats, or one per row: got string. .*hash_bucket"),
        (feature("sparse", "tags"), "got string list. .*hash_bucket"),
        (feature("sparse", "flags"), "got boolean list. .*cast: int64"),
        (feature("sparse", "user"), "got struct"),
        (
            feature("dense", "country", {"fill_null": "x"}, "log1p", {"clip": 1}),
            r"country: fill_null → \[log1p\] → clip: log1p takes numbers, or lists of them: got string",
        ),
        (
            feature("dense", "price", {"fill_null": 0}, "log1pp"),
            r"price: fill_null → \[log1pp\]: unknown op: .*Did you mean 'log1p'",
        ),
        (feature("dense", "price", {"clip": {"mim": 1}}), r"price: \[clip\]: unknown parameter of clip: got 'mim'"),
        (feature("dense", "p", column="prize"), "p: unknown column: got 'prize'.* Did you mean `price`"),
        (feature("dense", "p*"), r"unknown column: got 'p\*'.* There is no wildcard: write a range, such as C\{1"),
        (feature("dense", "p", column="zzz"), "unknown column: got 'zzz'.* There are price, count, .* and 7 more"),
        (feature("dense", "p", expr="prize + 1"), "p: .*prize"),
        (feature("dense", "p", expr="1 + 1"), "p: .*names no column"),
        (feature("dense", "p", {"hash_bucket": 5}, expr="price > 1"), r"p: \[hash_bucket\]: .*got boolean"),
    ],
)  # fmt: skip
def test_errors_of_kinds_and_parameters_show_the_chain(wrong: FeatureSpec, message: str):
    with pytest.raises(OpError, match=message) as caught:
        compile_features([wrong], SCHEMA)
    assert isinstance(caught.value, SpecError)
    assert caught.value.path[:3] == wrong.path
