"""Describe pipeline.yaml and samples.yaml, as users write them, by a JSON Schema.

Pure. The sections' part comes from their pydantic models; the features' short forms are spelled out here. Every value
that is not a string may also be `${NAME}`, which a run resolves. Editors show the descriptions, defaults and examples.
"""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel

from feedline.config.features import BOUND, MEASURES, OnNonfinite
from feedline.config.histories import LAG_PATTERN, MOST_POOLS
from feedline.config.sections import MAX_INT
from feedline.version import VERSION

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_VERBATIM = ("default", "const", "enum", "examples", "not", "propertyNames")
_NAME: Schema = {"type": "string", "pattern": r"\S"}
_RANGE = r"\{\d+\.\.\d+\}"
VARIABLE: Schema = {
    "description": "An environment variable, read as an unquoted YAML scalar.",
    "type": "string",
    "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$",
}
_ANY_OP: Schema = {
    "description": "An op: a word, or a map of one key {op: parameters}.",
    "anyOf": [
        {"type": "string", "pattern": r"\S"},
        {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": {"not": {"type": "null"}}},
    ],
}
# Values that editors show beside a description, by definition ("" for the document) and key.
_EXAMPLES: dict[tuple[str, str], list[Any]] = {
    ("", "name"): ["clicks"],
    ("", "work_dir"): [".feedline", "s3://bucket/feedline"],
    ("", "memory"): ["8GiB"],
    ("SourceSpec", "table"): ["warehouse/clicks", "s3://bucket/warehouse/clicks", ["day1.parquet", "day2.parquet"]],
    ("SourceSpec", "where"): ["ds >= '2026-01-01' and price > 0"],
    ("SourceSpec", "row_key"): ["request_id"],
    ("SampleSpec", "where"): ["clicked == 0"],
    ("BatchSpec", "size"): [8192],
    ("BatchSpec", "buckets"): [[16, 64, 256]],
    ("ShuffleSpec", "by"): ["session_id"],
    ("HistorySpec", "table"): ["warehouse/events"],
    ("HistorySpec", "key"): ["user_id"],
    ("HistorySpec", "time"): ["ts"],
    ("HistorySpec", "known_at"): ["ingested_at"],
    ("HistorySpec", "tie_break"): ["event_no"],
    ("CacheSpec", "dir"): ["/mnt/cache/feedline"],
    ("CacheSpec", "size"): ["200GiB"],
    ("FitSpec", "where"): ["ds < '2026-01-08'"],
    ("ClusterSpec", "workers"): [8, {"min": 2, "max": 32}],
    ("ClusterSpec", "scheduler"): ["tcp://scheduler:8786"],
    ("SourceSpec", "anchors"): ["events"],
    ("WindowsSpec", "every"): ["1d"],
    ("HoldOutSpec", "by"): ["user_id"],
    ("FollowSpec", "landed"): ["_SUCCESS", "quiet 10m"],
    ("MetricsSpec", "listen"): ["0.0.0.0:9400"],
}
_EXAMPLES_OF_SAMPLES: dict[tuple[str, str], list[Any]] = {
    ("", "lateness"): ["1h", 0],
    ("ImpressionsSpec", "table"): ["logs/impressions", "s3://bucket/logs/impressions"],
    ("ImpressionsSpec", "key"): [["request_id", "item_id"]],
    ("ImpressionsSpec", "time"): ["ts"],
    ("OutcomeSpec", "key"): [["request_id", "item_id"]],
    ("OutcomeSpec", "within"): ["30m", "7d"],
    ("OutcomeSpec", "label"): [{"clicked": "exists", "dwell": "sum(dwell_ms)"}],
    ("FeatureTableSpec", "key"): ["user_id"],
    ("FeatureTableSpec", "within"): ["30d"],
    ("NegativesSpec", "where"): ["not clicked"],
    ("NegativesSpec", "keep"): [0.1],
    ("OutSpec", "table"): ["warehouse/samples"],
    ("OutSpec", "by"): ["day(ts)", "hour(ts)"],
    ("OutSpec", "cluster_by"): ["session_id"],
    ("OutSpec", "sort_by"): ["ts"],
    ("OutSpec", "dedup"): [{"user": ["age", "hist_*"]}],
    ("OutSpec", "request"): ["request_id"],
    ("OutSpec", "candidates"): [["item_id", "position", "clicked"]],
}
_OWN_FEATURES = "Features of the pipeline that read other columns here; what is left out is the pipeline's."
_GROUP_DESCRIPTIONS = {
    "dense": "float32 [batch, width]; the order in the file is the order in the tensor.",
    "categorical": "One id per row: int64 [batch, width].",
    "sparse": "Id lists: ragged int64 values with lengths and offsets per feature.",
    "label": "float32 [batch, width]; left out when serving.",
}


def document_schema(model: type[BaseModel], op_schema: Schema | None) -> Schema:
    """The JSON Schema (draft 2020-12) of the document that becomes a `model`.

    Args:
        op_schema: the schema of one op in a list of ops (default: any word or one-key map).
    """
    schema = _allow_variables(_without_titles(model.model_json_schema()))
    definitions = {**schema.pop("$defs", {}), **_feature_definitions(), "op": op_schema or _ANY_OP}
    _add_templates(definitions)
    properties = schema["properties"]
    properties["features"] = _features()
    properties["histories"]["propertyNames"] = {"pattern": r"^[^\W\d]\w*$"}
    properties["dedup"] = _dedup(definitions["feature"]["anyOf"][-1]["properties"]["columns"])
    properties["sources"] = _items(properties["sources"]["items"]) | {
        "description": properties["sources"]["description"]
    }
    properties["source"] = {"description": properties["source"]["description"], "$ref": "#/$defs/SourceSpec"}
    own = {key: value for key, value in _features().items() if key != "minProperties"}
    definitions["MixedSourceSpec"]["properties"]["features"] = own | {"description": _OWN_FEATURES}
    schema["oneOf"] = [{"required": ["source"]}, {"required": ["sources"]}]
    for name in ("SourceSpec", "MixedSourceSpec"):
        source = definitions[name]
        source["required"] = [key for key in source["required"] if key != "table"]
        source["anyOf"] = [{"required": [key]} for key in ("table", "anchors")]
    batch = definitions["BatchSpec"]
    batch["oneOf"] = [{"required": [key]} for key in ("size", "max_tokens")]
    batch["required"] = [key for key in batch["required"] if key != "size"]
    _add_defaults_and_examples(properties, definitions)
    schema |= {
        "title": f"pipeline.yaml of Feedline {VERSION}",
        "description": "Which rows are read, what they become, how they are fed.",
    }
    return {"$schema": DIALECT, **schema, "$defs": definitions}


def samples_schema(model: type[BaseModel]) -> Schema:
    """The JSON Schema (draft 2020-12) of the samples.yaml that becomes a `model`."""
    schema = _allow_variables(_without_titles(model.model_json_schema()))
    definitions = schema.pop("$defs") | {"variable": VARIABLE}
    _add_examples(schema["properties"], definitions, _EXAMPLES_OF_SAMPLES)
    return {"$schema": DIALECT, "title": f"samples.yaml of Feedline {VERSION}", **schema, "$defs": definitions}


def _add_defaults_and_examples(properties: Schema, definitions: Schema) -> None:
    for key in ("dedup", "histories", "shuffle", "fit", "artifacts"):
        properties[key]["default"] = {}
    for key in ("cache", "metrics", "traces"):
        properties[key]["default"] = "off"
    definitions["ClusterSpec"]["properties"]["options"]["default"] = {}
    definitions["MixedSourceSpec"]["properties"]["features"]["default"] = {}
    _add_examples(properties, definitions, _EXAMPLES)


def _add_examples(properties: Schema, definitions: Schema, of: dict[tuple[str, str], list[Any]]) -> None:
    for (definition, key), examples in of.items():
        (definitions[definition]["properties"] if definition else properties)[key]["examples"] = examples


def _mapping(properties: Schema, **rules: Any) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties, **rules}


def _items(schema: Schema) -> Schema:
    return {"type": "array", "items": schema, "minItems": 1}


def _feature_definitions() -> Schema:
    ops: Schema = {"description": "Applied in this order.", "type": "array", "items": {"$ref": "#/$defs/op"}}
    column = _NAME | {"description": "The column that the feature reads."}
    expr = _NAME | {"description": "An expression over the table's columns."}
    column_or_expr = [{"required": ["column"]}, {"required": ["expr"]}]
    item = _mapping({"column": column, "expr": expr, "ops": ops}, oneOf=column_or_expr)
    inputs = {
        "description": "The columns of the op, as they are or through ops of their own.",
        **_items({"anyOf": [_NAME, item]}),
    }
    on_nonfinite: Schema = {
        "description": "What to do with finished numbers that are NaN or infinite.",
        "anyOf": [{"enum": list(get_args(OnNonfinite))}, {"$ref": "#/$defs/variable"}],
    }
    op = {"$ref": "#/$defs/op"}
    one_source = [
        *({**source, "not": {"required": ["inputs"]}} for source in column_or_expr),
        {"required": ["op", "inputs"]},
    ]
    own = {"column": column, "expr": expr, "op": op, "inputs": inputs, "ops": ops, "on_nonfinite": on_nonfinite}
    long_form = _mapping({**own, "expect": _expect()}, oneOf=one_source)
    extra = _mapping({"column": column, "expr": expr, "expect": _expect()}, oneOf=column_or_expr)
    rest = {"on_nonfinite": on_nonfinite, "expect": _expect()}
    return {
        "variable": VARIABLE,
        "ops": ops,
        "feature": {"anyOf": [{"$ref": "#/$defs/ops"}, long_form, _of_history({"ops": _ops_of_columns(), **rest})]},
        "extra_feature": {"anyOf": [{"type": "array", "maxItems": 0}, extra, _of_history({"expect": _expect()})]},
    }


def _of_history(rest: Schema) -> Schema:
    """A feature of the events that a row sees, with keys that are not about these."""
    last = _integer("The most events of a row, the last ones.", 1, 2**31 - 1)
    where = _NAME | {"description": "An expression over the events' columns: only these events."}
    pool = _mapping({"where": where, "last": last}, required=["last"])
    pools = {
        "description": "Kinds of events by name, each with its own `last`; merged in the order of time.",
        "type": "object",
        "minProperties": 1,
        "maxProperties": MOST_POOLS,
        "additionalProperties": {"description": "One kind of events.", **pool},
    }
    lag: Schema = {
        "description": "Events are seen this long after they happened: 10m, or an integer of the time's unit.",
        "anyOf": [{"type": "string", "pattern": f"^({LAG_PATTERN})$"}, *_integer("", 0, MAX_INT)["anyOf"]],
    }
    own = {
        "history": _NAME | {"description": "The name of a history."},
        "column": _NAME | {"description": "The column of the events that the feature holds."},
        "columns": {"description": "Several, as features NAME.COLUMN.", **_items(_NAME)},
        "tag": _NAME | {"description": "A feature NAME.TAG: the pools that each event is of, as bits."},
        "at": _NAME | {"description": "The row's column with the time before which it sees events."},
        "last": last,
        "lag": lag,
        "where": where,
        "scan": _integer("Only so many of the last events before the time are looked at.", 1, 2**31 - 1),
        "recent": _NAME | {"description": "The row's column of newer events, which follow the stored ones."},
        "min_history": _integer("Rows that see fewer events are left out.", 1, 2**31 - 1),
        "pools": pools,
    }
    no_columns = {"not": {"anyOf": [{"required": ["column"]}, {"required": ["columns"]}]}}
    rules = [
        {"not": {"required": ["column", "columns"]}},
        {"anyOf": [{"required": [key]} for key in ("column", "columns", "tag")]},
        {"anyOf": [{"not": {"required": ["tag"]}}, {"required": ["pools"]}, no_columns]},
        {
            "oneOf": [
                {"required": ["last"]},
                {"required": ["pools"], "not": {"required": ["where"]}},
            ]
        },
    ]
    return _mapping({**own, **rest}, required=["history"], allOf=rules)


def _ops_of_columns() -> Schema:
    """Ops of all columns of a history, or of each by its name."""
    ops = {"$ref": "#/$defs/ops"}
    return {
        "description": "Applied in this order to all columns; or a list for each column, by its name.",
        "anyOf": [ops, {"type": "object", "additionalProperties": ops}],
    }


def _integer(text: str, least: int, most: int) -> Schema:
    return {
        "description": text,
        "anyOf": [{"type": "integer", "minimum": least, "maximum": most}, {"$ref": "#/$defs/variable"}],
    }


def _add_templates(definitions: Schema) -> None:
    feature, extra = definitions["feature"]["anyOf"], definitions["extra_feature"]["anyOf"]
    properties = feature[1]["properties"]
    template = _template(properties, ["ops", "on_nonfinite", "expect"])
    extra_template = _template(properties, ["expect"])
    definitions["features_of_a_range"] = {"anyOf": [feature[0], template]}
    definitions["extra_features_of_a_range"] = {"anyOf": [extra[0], extra_template]}
    feature.append(template | {"required": ["columns"]})
    extra.append(extra_template | {"required": ["columns"]})


def _template(feature: Schema, keys: list[str]) -> Schema:
    columns = {"description": "Columns of like features; C{1..26} stands for C1 … C26.", **_items(_NAME)}
    return _mapping({"columns": columns, **{key: feature[key] for key in keys}})


def _expect() -> Schema:
    bound: Schema = {"type": "string", "pattern": rf"^\s*{BOUND}\s*$"}
    measures = {
        measure: {"description": text, "anyOf": [bound, _items(bound)]} for measure, (_, text) in MEASURES.items()
    }
    return {"description": "Bounds on measures of the feature's values.", **_mapping(measures)}


def _features() -> Schema:
    groups: Schema = {
        group: {"description": text, **_named("feature", "features_of_a_range")}
        for group, text in _GROUP_DESCRIPTIONS.items()
    }
    groups["extra"] = {
        "description": "Passed through unchanged: a list of columns, or a mapping to column or expr.",
        "anyOf": [
            {"type": "array", "items": _NAME, "uniqueItems": True},
            _named("extra_feature", "extra_features_of_a_range"),
        ],
    }
    text = "Features by group; names are unique over all groups, and there is at least one."
    return {"description": text, **_mapping(groups, minProperties=1)}


def _named(feature: str, features_of_a_range: str) -> Schema:
    return {
        "type": "object",
        "propertyNames": _NAME,
        "patternProperties": {_RANGE: {"$ref": f"#/$defs/{features_of_a_range}"}},
        "additionalProperties": {"$ref": f"#/$defs/{feature}"},
    }


def _dedup(columns: Schema) -> Schema:
    columns = columns | {"description": "The group's columns; C{1..26} stands for C1 … C26."}
    group = _mapping({"columns": columns}, required=["columns"])
    return {
        "description": "Groups of columns that repeat together from row to row, by name.",
        "type": "object",
        "propertyNames": _NAME,
        "additionalProperties": {
            "description": "Every feature that reads no other columns belongs to the group.",
            **group,
        },
    }


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: _without_titles(value) for key, value in schema.items() if key != "title" or isinstance(value, dict)
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema


def _allow_variables(schema: Any) -> Any:
    """The schema with `${NAME}` allowed for every number, boolean and enum."""
    if isinstance(schema, list):
        return [_allow_variables(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: item if key in _VERBATIM else _allow_variables(item) for key, item in schema.items()}
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    is_enum = isinstance(schema.get("enum"), list)
    if not is_enum and not (isinstance(kinds, list) and {"integer", "number", "boolean"} & set(kinds)):
        return inner
    outer = {key: inner.pop(key) for key in ("description", "default", "examples") if key in inner}
    return {**outer, "anyOf": [inner, {"$ref": "#/$defs/variable"}]}
