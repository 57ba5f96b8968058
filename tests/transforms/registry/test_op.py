"""Declarations of ops are complete, wrong calls are refused, and schema and documentation follow."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML

from feedline.expressions.types import FLOAT
from feedline.spec.features import OpCall
from feedline.spec.pipeline_spec import json_schema
from feedline.transforms.catalogue import SECTIONS, document, op_schema
from feedline.transforms.ops import OPS, resolve
from feedline.transforms.registry.op import Op, OpError
from feedline.transforms.values.kinds import ANYTHING, Value

ROOT = Path(__file__).resolve().parents[3]
PLACE = ("features", "dense", "price", 1)
CATALOGUE = {
    *("fill_null", "fill_nonfinite", "clip", "log", "log1p", "logit", "box_cox", "cast"),
    *("standardize", "min_max", "fill_median", "fill_mean", "quantile_bucketize"),
    *("onehot", "vector", "pad"),
    *("hash_bucket", "sigrid_hash", "modulo", "map_id", "first_x", "list_slice", "id_list_transform"),
    "vocabulary",
    *("weighted", "ids", "weights"),
    *("bucketize", "enumerate", "ngram", "get_local_hour", "expr"),
    *("hashed_cross", "cartesian", "positive_intersect"),
    *("target_encoding", "group_statistics"),
    *("id_overlap_count", "has_id_overlap", "get_max_count", "get_jaccard_similarity", "get_cosine_similarity"),
    *("join_external", "embedding"),
    *("get_score_sum", "get_score_min", "get_score_max", "column_similarity"),
}
EXAMPLES = [(op, example) for op in OPS.values() for example in op.examples]


def call(op: str, arguments: object = None) -> OpCall:
    """A call as the spec layer hands it over; anything but a mapping is a bare value."""
    value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
    return OpCall(op=op, arguments=json.dumps(value), path=PLACE)


def test_the_catalogue_is_complete():
    assert set(OPS) == CATALOGUE


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
def test_declarations_are_complete(op: Op):
    assert op.text.partition("\n\n")[0].endswith((".", ":"))
    assert "ull" in op.text, "what becomes of nulls?"
    if FLOAT in op.takes | frozenset().union(*(given.takes for given in op.inputs)) and op.takes != ANYTHING:
        assert "NaN" in op.text or "not finite" in op.text, "what becomes of NaN?"
    assert op.examples
    assert op.takes <= ANYTHING
    assert op.version >= 1
    assert all(field.description for field in op.parameters.model_fields.values())


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
        (call("JoinGroupby"), "unknown op: got 'JoinGroupby'. It is called group_statistics here", ()),
        (call("TargetEncoding"), "unknown op: got 'TargetEncoding'. It is written target_encoding here", ()),
        (call("Dropna"), "unknown op: got 'Dropna'. Only source.where drops rows", ()),
        (call("DifferenceLag"), "unknown op: got 'DifferenceLag'. A feature depends on one row alone", ()),
        (call("clip", {"mim": 1}), r"unknown parameter of clip: got 'mim'.* Did you mean 'min'\?", ("clip", "mim")),
        (call("clip", {"min": "a"}), "clip.min must be a number: got 'a'", ("clip", "min")),
        (call("clip", {"min": True}), "clip.min must be a number: got true", ("clip", "min")),
        (call("clip"), "clip: min, max or both must be given", ("clip",)),
        (call("clip", {"min": 2, "max": 1}), "clip: min must not be above max: got min 2, max 1", ("clip",)),
        (call("hash_bucket"), "hash_bucket needs buckets: write {hash_bucket: {buckets: …}}", ()),
        (call("hash_bucket", 0), "hash_bucket.buckets must be greater than or equal to 1: got 0", ("hash_bucket",)),
        (call("hash_bucket", 1.5), "hash_bucket.buckets must be an integer: got 1.5", ("hash_bucket",)),
        (call("hash_bucket", True), "hash_bucket.buckets must be an integer: got true", ("hash_bucket",)),
        (call("hash_bucket", "10"), "hash_bucket.buckets must be an integer: got '10'", ("hash_bucket",)),
        (call("modulo", -3), "modulo.divisor must be greater than or equal to 1", ("modulo",)),
        (call("modulo", 2**63), "modulo.divisor must be less than or equal to", ("modulo",)),
        (call("first_x", 0), "first_x.count must be greater than or equal to 1", ("first_x",)),
        (call("bucketize", []), "borders must not be empty", ("bucketize",)),
        (call("bucketize", [3, 1]), "borders must ascend: got 3 before 1 at position 0", ("bucketize",)),
        (call("bucketize", {"borders": [1, "a"]}), r"borders\[1\] must be a number", ("bucketize", "borders", 1)),
        (call("bucketize", [1, float("nan")]), r"borders\[1\] must be a finite number: got nan", ("bucketize",)),
        (call("standardize", {"mean": 1, "std": 0}), "std must be greater than 0: got 0", ("standardize", "std")),
        (call("standardize", {"mean": 1}), "mean and std are both given .*: got mean alone", ("standardize",)),
        (call("min_max", {"max": 1}), "min and max are both given or both learnt: got max alone", ("min_max",)),
        (call("min_max", {"min": 2, "max": 1}), "min must not be above max: got min 2, max 1", ("min_max",)),
        (call("min_max", {"to": [1, 1]}), "to must be a begin and an end above it: got", ("min_max", "to")),
        (call("fill_median", {"error": 0}), "error must be greater than or equal to 0.0001", ("fill_median", "error")),
        (call("quantile_bucketize", 1), "buckets must be greater than or equal to 2: got 1", ("quantile_bucketize",)),
        (call("log1p", 3), "log1p takes no parameters: got 3", ("log1p",)),
        (call("cast", "int46"), r"cast.to must be .*: got 'int46'. Did you mean 'int64'\?", ("cast",)),
        (call("fill_null", [1]), "fill_null.value must be a number or a boolean or a string: got a", ("fill_null",)),
        (call("expr", 5), "expr.expression must be a string: got 5", ("expr",)),
    ],
)  # fmt: skip
def test_errors_of_wrong_calls_name_value_and_position(wrong: OpCall, message: str, place: tuple[str | int, ...]):
    with pytest.raises(OpError, match=message) as caught:
        resolve(wrong)
    assert caught.value.path == (*PLACE, *place)


@pytest.mark.parametrize(
    ("right", "dtype", "message"),
    [
        (call("log1p"), pl.String(), "log1p takes numbers, or lists of them: got string. .*hash_bucket.*cast"),
        (call("log1p"), pl.Boolean(), "log1p takes numbers, or lists of them: got boolean. .*cast: int64"),
        (call("clip", 0), pl.Datetime("us"), "clip takes numbers, or lists of them: got timestamp. .*expr"),
        (call("modulo", 5), pl.Float32(), "modulo takes integers, or lists of them: got float. .*bucketize"),
        (call("modulo", 5), pl.List(pl.Float32()), "got float list"),
        (call("hash_bucket", 5), pl.Float64(), "hash_bucket takes integers, strings or binary values.*: got float"),
        (call("first_x", 5), pl.Int64(), "first_x takes lists: got integer. It works on a whole list"),
        (call("log1p"), pl.Struct({"a": pl.Int64()}), 'got struct. .*NAME."field"'),
        (call("log1p"), pl.List(pl.List(pl.Int64())), "got list list"),
        (call("log1p"), pl.Null(), "got null"),
        (call("fill_null", "x"), pl.Int64(), "fill_null: .*: got 'x', expected type integer"),
        (call("fill_null", 0.5), pl.Int64(), "fill_null: .*: got 0.5, expected an integer"),
        (call("fill_null", 300), pl.Int8(), "the value does not fit the column: got 300, expected type int8"),
        (call("fill_null", -1), pl.List(pl.UInt64()), "does not fit the column: got -1, expected type uint64"),
        (call("fill_null", 1e39), pl.Float32(), "does not fit the column"),
        (call("fill_null", 10**400), pl.Float64(), "does not fit the column"),
        (call("fill_null", 1), pl.Boolean(), "got 1, expected type boolean"),
        (call("fill_null", True), pl.Int64(), "got True, expected type integer"),
        (call("clip", {"max": -1}), pl.UInt64(), "a bound does not fit the column"),
        (call("clip", {"min": 2**70}), pl.Int64(), "a bound does not fit the column"),
        (call("clip", {"max": 1e39}), pl.Float32(), "a bound does not fit the column"),
        (call("cast", "string"), pl.Float64(), "cast: a float cannot become string"),
        (call("cast", "bool"), pl.List(pl.String()), "cast: a string cannot become bool"),
        (call("bucketize", [0.1, 0.1 + 1e-12]), pl.Float32(), "borders must differ in the column's type"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_its_column(right: OpCall, dtype: pl.DataType, message: str):
    with pytest.raises(OpError, match=message) as caught:
        resolve(right).apply(Value(expr=pl.col("a"), dtype=dtype))
    assert caught.value.path == PLACE


def test_errors_survive_a_pickle():
    error = pickle.loads(pickle.dumps(OpError(PLACE, "wrong")))
    assert (error.path, str(error)) == (PLACE, "wrong")


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema of the keywords that `op_schema` uses."""
    types = {
        "integer": lambda item: isinstance(item, int) and not isinstance(item, bool),
        "number": lambda item: isinstance(item, (int, float)) and not isinstance(item, bool),
        "boolean": lambda item: isinstance(item, bool),
        "string": lambda item: isinstance(item, str),
        "array": lambda item: isinstance(item, list),
        "object": lambda item: isinstance(item, dict),
    }
    known = {"anyOf", "enum", "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"}
    known |= {"pattern", "items", "minItems"}
    known |= {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}
    assert set(schema) <= known | {"description", "default"}, "a keyword that this check does not know"
    checks = {
        "anyOf": lambda choices: any(accepts(choice, value) for choice in choices),
        "enum": lambda values: value in values,
        "minimum": lambda bound: value >= bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "exclusiveMaximum": lambda bound: value < bound,
        "minItems": lambda count: len(value) >= count,
        "minLength": lambda length: len(value) >= length,
        "pattern": lambda pattern: re.search(pattern, value) is not None,
        "items": lambda items: all(accepts(items, item) for item in value),
        "required": lambda names: set(names) <= set(value),
        "minProperties": lambda count: len(value) >= count,
        "maxProperties": lambda count: len(value) <= count,
        "properties": lambda named: all(accepts(named[key], item) for key, item in value.items() if key in named),
        "additionalProperties": lambda allowed: allowed or set(value) <= set(schema["properties"]),
    }
    if "type" in schema and not types[schema["type"]](value):
        return False
    return all(check(schema[key]) for key, check in checks.items() if key in schema)


def test_the_schema_takes_right_calls_and_no_others():
    schema = op_schema()
    for op in OPS.values():
        for example in op.examples:
            assert accepts(schema, example.call.to_yaml()), example
        assert accepts(schema, op.name) is op.is_word
    for right in ({"hash_bucket": "${BUCKETS}"}, {"clip": {"max": 1}}, {"bucketize": [1, 2.5]}):
        assert accepts(schema, right)
    for wrong in (
        *("clip", "nothing", 5, {}, {"nothing": 1}, {"hash_bucket": 0}, {"hash_bucket": {"seed": 1}}, {"clip": None}),
        *(
            {"clip": {"mim": 1}},
            {"standardize": 0.5, "log": 1},
            {"cast": "int46"},
            {"log1p": 1},
            {"clip": 0, "modulo": 2},
        ),
        *({"hash_bucket": True}, {"standardize": {"mean": 0, "std": 0}}),
    ):
        assert not accepts(schema, wrong), wrong


def test_the_schema_fits_into_that_of_the_pipeline():
    assert json_schema(op_schema())["$defs"]["op"] == op_schema()


def test_the_documentation_is_that_of_the_registry():
    remedy = "write docs/ops.md anew: feedline.transforms.catalogue.document() is its text"
    assert (ROOT / "docs" / "ops.md").read_text(encoding="utf-8") == document(), remedy


def test_documented_calls_are_yaml():
    yaml = YAML(typ="safe", pure=True)
    shown = [tuple(re.findall(r"`([^`]*)`", line)) for line in document().splitlines() if line.startswith("| `")]
    calls = [cells for cells in shown if len(cells) == 4 and cells[2].startswith("[")]
    assert len(calls) == len(EXAMPLES)
    for (written, _, given, result), (_, example) in zip(
        calls, sorted(EXAMPLES, key=lambda pair: [*SECTIONS].index(pair[0].placement)), strict=True
    ):
        assert yaml.load(written) == example.call.to_yaml()
        columns = [list(held) for _, held in example.columns]
        assert str(yaml.load(given)) == str(columns if len(columns) > 1 else columns[0])
        assert str(yaml.load(result)) == str(list(example.result))
