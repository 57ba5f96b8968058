"""Compare the features of two plans: which were added, removed or changed, and how.

Runs in: the process of the command. Pure. Features are compared by name; one has changed if its own fingerprint has,
which covers its definition, the types of its columns, the versions of its ops and what these have learnt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from feedline.spec.features import FeatureSpec, OpCall
from feedline.transforms.compile.compiled import CompiledFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureChange:
    """One difference of a feature. what: "group", "column", "expr", "op", "inputs", "ops", "parameters of OP",
    "on_nonfinite", "dedup", "types", "artifacts" or "expect", which decides no value."""

    what: str
    a: Any
    b: Any


def describe_features(a: CompiledFeatures, b: CompiledFeatures) -> dict[str, Any]:
    """The names that only one of them has, the changes of those that both have, and whether the order of the latter,
    which is that of a batch's tensors, is another."""
    before, after = _by_name(a), _by_name(b)
    common = [name for name in before if name in after]
    changes = {name: changes_of(a, before[name], b, after[name]) for name in common}
    return {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": [
            {"name": name, "how": [asdict(each) for each in found]} for name, found in changes.items() if found
        ],
        "same": sum(not found for found in changes.values()),
        "reordered": common != [name for name in after if name in before],
    }


def differing_features(facts: dict[str, Any]) -> list[str]:
    """The names of all features that `describe_features` tells apart by their values."""
    changed = [each["name"] for each in facts["changed"] if any(how["what"] != "expect" for how in each["how"])]
    return [*facts["removed"], *changed, *facts["added"]]


def changes_of(a: CompiledFeatures, index_a: int, b: CompiledFeatures, index_b: int) -> list[FeatureChange]:
    """How one feature differs between two plans, by its index in each."""
    one, other = a.features[index_a], b.features[index_b]
    found = list(_definition_changes(one, other))
    if (types := _types(a, index_a)) != (other_types := _types(b, index_b)):
        names = sorted(name for name in types.keys() & other_types.keys() if types[name] != other_types[name])
        if names:
            found.append(_change("types", *({name: each[name] for name in names} for each in (types, other_types))))
    if not found and a.alone(index_a)[0] != b.alone(index_b)[0]:
        found.append(_change("artifacts", _fitted(a, index_a), _fitted(b, index_b)))
    expects = [feature.long_form().get("expect") for feature in (one, other)]
    return [*found, *([] if expects[0] == expects[1] else [_change("expect", *expects)])]


def _definition_changes(one: FeatureSpec, other: FeatureSpec) -> Iterator[FeatureChange]:
    for key in ("group", "column", "expr"):
        if (before := getattr(one, key)) != (after := getattr(other, key)):
            yield _change(key, before, after)
    ops = [() if each.op is None else (each.op,) for each in (one, other)]
    yield from _op_changes("op", *ops)
    inputs = [[item.to_yaml() for item in each.inputs] for each in (one, other)]
    if inputs[0] != inputs[1]:
        yield _change("inputs", *inputs)
    yield from _op_changes("ops", one.ops, other.ops)
    for key in ("on_nonfinite", "dedup"):
        if (before := getattr(one, key)) != (after := getattr(other, key)):
            yield _change(key, before, after)


def _op_changes(what: str, before: Sequence[OpCall], after: Sequence[OpCall]) -> Iterator[FeatureChange]:
    """Of the same ops, the parameters; of others, all of them."""
    if [call.op for call in before] == [call.op for call in after]:
        for one, other in zip(before, after, strict=True):
            if one.value != other.value:
                yield _change(f"parameters of {one.op}", one.value.get("", one.value), other.value.get("", other.value))
    else:
        yield _change(what, [call.to_yaml() for call in before], [call.to_yaml() for call in after])


def _change(what: str, before: Any, after: Any) -> FeatureChange:
    return FeatureChange(what=what, a=before, b=after)


def _types(features: CompiledFeatures, index: int) -> dict[str, str]:
    schema = features.schema
    reads = {name.split("[")[0].split(".")[0]: None for name in features.outputs[index].reads}
    return {name: str(schema.field(name).type) for name in reads if name in schema.names}


def _fitted(features: CompiledFeatures, index: int) -> str:
    missing = {request.key for request in features.missing_fits}
    return "not fitted" if features.fits_of(index) & missing else f"as of {features.alone(index)[0][:12]}"


def _by_name(features: CompiledFeatures) -> dict[str, int]:
    return {feature.name: index for index, feature in enumerate(features.features)}


def change_text(change: dict[str, Any]) -> str:
    """A change in one line: `parameters of first_x: 3 → 5`."""
    return f"{change['what']}: {_text(change['a'])} → {_text(change['b'])}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value:
        return ", ".join(map(_text, value))
    return "none" if value is None or value in ([], {}) else json.dumps(value)
