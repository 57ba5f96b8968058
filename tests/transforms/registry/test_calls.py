"""Calls of ops are checked against their declaration; errors name value, position and remedy."""

from __future__ import annotations

from functools import partial

import op_oracles
import pytest

from feedline.config.features import OpCall
from feedline.transforms.ops import OPS, resolve
from feedline.transforms.registry.op import OpError

PLACE = ("features", "dense", "price", 1)
call = partial(op_oracles.call, path=PLACE)


def test_a_bare_value_is_the_first_parameter():
    assert resolve(call("hash_bucket", 10)) == resolve(call("hash_bucket", {"buckets": 10, "seed": 0}))
    spelled = resolve(call("hash_bucket", {"buckets": 10, "seed": 0, "null_bucket": False}))
    assert spelled.identity[2] == '{"buckets":10,"seed":0}', "the text that older fingerprints hold"
    assert resolve(call("hash_bucket", {"buckets": 10, "null_bucket": True})).identity != spelled.identity
    assert resolve(call("bucketize", [1, 2])).identity == resolve(call("bucketize", {"borders": [1, 2]})).identity
    assert resolve(call("log1p")).op is OPS["log1p"]


@pytest.mark.parametrize(
    ("wrong", "message", "place"),
    [
        (call("log1pp"), r"unknown op: got 'log1pp'.* Did you mean 'log1p'\?", ()),
        (call("Categorify"), "unknown op: got 'Categorify'. It is called vocabulary here", ()),
        (call("vocabulary", {"max_memory": "much"}), "max_memory must be a size in", ("vocabulary", "max_memory")),
        (call("clamp"), "unknown op: got 'clamp'. It is called clip here", ()),
        (call("TargetEncoding"), "unknown op: got 'TargetEncoding'. It is written target_encoding here", ()),
        (call("Dropna"), "unknown op: got 'Dropna'. Only source.where drops rows", ()),
        (call("clip", {"mim": 1}), r"unknown parameter of clip: got 'mim'.* Did you mean 'min'\?", ("clip", "mim")),
        (call("clip", {"min": "a"}), "clip.min must be a number: got 'a'", ("clip", "min")),
        (call("clip"), "clip: min, max or both must be given", ("clip",)),
        (call("clip", {"min": 2, "max": 1}), "clip: min must not be above max: got min 2, max 1", ("clip",)),
        (call("hash_bucket"), "hash_bucket needs buckets: write {hash_bucket: {buckets: …}}", ()),
        (call("hash_bucket", 0), "hash_bucket.buckets must be greater than or equal to 1: got 0", ("hash_bucket",)),
        (call("bucketize", []), "borders must not be empty", ("bucketize",)),
        (call("bucketize", [3, 1]), "borders must ascend: got 3 before 1 at position 0", ("bucketize",)),
        (call("bucketize", {"borders": [1, "a"]}), r"borders\[1\] must be a number", ("bucketize", "borders", 1)),
        (call("bucketize", [1, float("nan")]), r"borders\[1\] must be a finite number: got nan", ("bucketize",)),
        (call("standardize", {"mean": 1, "std": 0}), "std must be greater than 0: got 0", ("standardize", "std")),
        (call("standardize", {"mean": 1}), "mean and std are both given .*: got mean alone", ("standardize",)),
        (call("min_max", {"max": 1}), "min and max are both given or both learnt: got max alone", ("min_max",)),
        (call("min_max", {"min": 2, "max": 1}), "min must not be above max: got min 2, max 1", ("min_max",)),
        (call("min_max", {"to": [1, 1]}), "to must be a begin and an end above it: got", ("min_max", "to")),
        (call("log1p", 3), "log1p takes no parameters: got 3", ("log1p",)),
        (call("map_id", {"keys": [1], "values": []}), "a value for each key: got 1 keys, 0 values", ("map_id",)),
        (call("map_id", {"keys": [1, 1], "values": [2, 3]}), "keys must differ: got 1 twice", ("map_id",)),
        (call("get_local_hour", "Mars/Base"), "the tz database, such as Europe/Zurich: got 'Mars", ("get_local_hour",)),
        (call("cast", "int46"), r"cast.to must be .*: got 'int46'. Did you mean 'int64'\?", ("cast",)),
        (call("fill_null", [1]), "fill_null.value must be a number or a boolean or a string: got a", ("fill_null",)),
    ],
)  # fmt: skip
def test_errors_of_wrong_calls_name_value_and_position(wrong: OpCall, message: str, place: tuple[str | int, ...]):
    with pytest.raises(OpError, match=message) as caught:
        resolve(wrong)
    assert caught.value.path == (*PLACE, *place)
