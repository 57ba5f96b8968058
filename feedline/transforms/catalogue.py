"""Describe the declared ops: their JSON Schema in pipeline.yaml, and the page docs/ops.md.

Runs in: `feedline schema`, and the generation of the page. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feedline.config.json_schema import VARIABLE
from feedline.config.overrides import flow_text
from feedline.expressions.types import type_name
from feedline.transforms.ops import OPS
from feedline.transforms.registry.op import MAX_INT, Op, in_words
from feedline.transforms.registry.user_code import python_schema
from feedline.transforms.registry.user_functions import PYTHON, entry_points

SECTIONS = {  # modules of ops -> headings
    "dense": "Dense: normalisation",
    "fitted_dense": "Dense: normalisation by column statistics",
    "vectors": "Dense: vectors",
    "id_lists": "Sparse: ids and lists",
    "vocabulary": "Sparse: vocabularies",
    "weighted": "Sparse: weighted lists",
    "generated": "Generated",
    "crosses": "Generated: crosses of several columns",
    "list_scores": "Generated: comparisons of two columns",
    "target_encoding": "Generated: the mean target by key",
    "group_statistics": "Generated: statistics by key",
    "joins": "Lookups: external tables",
    "embeddings": "Lookups: vectors",
}


def op_schema() -> dict[str, Any]:
    """The JSON Schema of one op in a list of ops: a word, or a map of one key {op: parameters}."""
    properties: dict[str, Any] = {}
    for found in OPS.values():
        if not found.fields:
            continue
        schema = found.parameters.model_json_schema()
        parameters = {
            name: {
                **{key: value[key] for key in ("description", "default") if key in value},
                "anyOf": [_bare_schema(value), VARIABLE],
            }
            for name, value in schema["properties"].items()
        }
        mapping = {
            "type": "object",
            "properties": parameters,
            "required": schema.get("required", []),
            "additionalProperties": False,
        }
        first = parameters[found.fields[0]]["anyOf"]
        others_required = set(schema.get("required", [])) - {found.fields[0]}
        choices = [mapping] if others_required else [*first, mapping]
        properties[found.name] = {"description": _summary(found), "anyOf": choices}
    properties[PYTHON] = python_schema()
    words = [{"const": found.name, "description": _summary(found)} for found in OPS.values() if found.is_word]
    for name in sorted(entry_points()):
        if name not in OPS:
            text = "An op of an installed package, with allow_code."
            words.append({"const": name, "description": text})
            properties[name] = {"description": text, "type": "object"}
    calls = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    return {"description": "An op: a word, or {op: parameters}.", "anyOf": [{"anyOf": words}, calls]}


def document() -> str:
    """docs/ops.md: every op with its input and output, parameters, semantics and examples."""
    parts = [
        "# Ops",
        "Generated from the declarations in `feedline/transforms`; do not edit.",
        (
            "A feature's list of ops holds each op as a word, or as a map of one key, where a bare value is the op's "
            "first parameter: `price: [{fill_null: 0}, log1p]`, `price: [{clip: {min: 0, max: 1}}]`. Ops are "
            "applied in order. An op on numbers or strings also works on the elements of lists where it says so; a "
            "null list stays null, and becomes an empty list in the batch. The version of an op is part of the "
            "fingerprint of a pipeline's features."
        ),
        "If no op computes what you need, use a Python function: [user-code.md](user-code.md).",
        (
            "An op over several columns is the source of a feature: `NAME: {op: cartesian, inputs: [a, b], ops: "
            "[…]}`. Each input is a column, or a column or an expression with ops of its own: `{column: a, ops: "
            "[{first_x: 10}]}`. A *weighted* list has a float32 weight beside each id; a *vector* is a list of the "
            "same length in every row ([pipeline-rows.md](pipeline-rows.md#features)). Ops over elements keep both."
        ),
    ]
    for placement, title in SECTIONS.items():
        parts.append(f"## {title}")
        for found in OPS.values():
            if found.placement == placement:
                parts.extend(_section(found))
    return "\n\n".join(parts) + "\n"


def _section(found: Op) -> Iterable[str]:
    yield f"### {found.name}"
    yield found.text
    yield f"Takes {found.accepts}; gives {found.gives}. Version {found.version}."
    if found.inputs:
        yield f"Written `NAME: {{op: {found.name}, inputs: [{found.shape}]}}`."
    if found.fields:
        lines = ["| parameter | type | default | |", "|---|---|---|---|"]
        for name, value in found.parameters.model_json_schema()["properties"].items():
            required = found.parameters.model_fields[name].is_required()
            default = "required" if required else flow_text(value.get("default"))
            lines.append(f"| `{name}` | {_type_words(value)} | {default} | {value.get('description', '')} |")
        yield "\n".join(lines)
    if outside := next((example.outside for example in found.examples if example.outside), None):
        yield f"Examples with `{flow_text(outside)}`:"
    lines = ["| example | type | values | become |", "|---|---|---|---|"]
    for example in found.examples:
        dtypes = ", ".join(type_name(dtype) for dtype, _ in example.columns)
        inputs = [values for _, values in example.columns] if len(example.columns) > 1 else example.columns[0][1]
        cells = (flow_text(example.call.to_yaml()), dtypes, flow_text(inputs), flow_text(example.result))
        lines.append("| " + " | ".join(f"`{cell}`" for cell in cells) + " |")
    yield "\n".join(lines)


def _summary(found: Op) -> str:
    return found.text.partition("\n\n")[0].replace("\n", " ")


def _bare_schema(schema: dict[str, Any]) -> dict[str, Any]:
    bare = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
    if "anyOf" in bare:  # null means an omitted parameter
        bare["anyOf"] = [choice for choice in bare["anyOf"] if choice != {"type": "null"}]
    return bare


def _type_words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        words = dict.fromkeys(_type_words(choice) for choice in _bare_schema(schema)["anyOf"])
        return in_words([word for word in words if not (word == "integer" and "number" in words)])
    if schema["type"] == "array":
        return f"list of {_type_words(schema['items'])}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if abs(schema.get(key, MAX_INT)) != MAX_INT]
    return " ".join([schema["type"], ", ".join(bounds)]).strip()


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
