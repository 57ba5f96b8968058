"""Define the section `sources`: several tables whose rows each step mixes in fixed numbers.

Runs in: every process that reads a pipeline.yaml. Pure. `divide_rows` turns weights into the rows of each source in a
lane's share of a step, once and for all steps. A source may redefine features of the pipeline where its columns have
other names; what it leaves out, such as the ops, is the pipeline's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SkipValidation, WithJsonSchema, model_validator

from feedline.config.dedup_section import DedupSpec
from feedline.config.features import GROUPS, FeatureInput, FeatureSpec, read_features
from feedline.config.sections import BatchSpec, Count, NonEmptyString, Section, keys_of, rule_error, value_error
from feedline.config.source_section import SourceSpec
from feedline.config.yaml_document import Document, Path, Problems, describe_value, unknown_message

_SHARE = "weight, rows_per_batch"


class MixedSourceSpec(SourceSpec):
    """One of several sources: its rows, and its share of every step."""

    name: NonEmptyString = Field(description="Name of the source, in reports, errors and its order of rows.")
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Share of a lane's rows of a step, in proportion to the other sources' weights."
    )
    rows_per_batch: Count | None = Field(default=None, description="Rows of a lane's share of a step, instead.")
    features: Annotated[tuple[FeatureSpec, ...], SkipValidation, WithJsonSchema({})] = ()

    @model_validator(mode="after")
    def _one_share(self) -> MixedSourceSpec:
        if (self.weight is None) == (self.rows_per_batch is None):
            got = "neither" if self.weight is None else "both"
            raise rule_error("weight", f"each source has exactly one of {_SHARE}: got {got}. Write weight: 1, say")
        return self


def _mapping(value: object) -> object:
    if value is None:  # the default of a pipeline with `sources`, which nobody writes
        keys = ", ".join(keys_of(SourceSpec))
        raise value_error(f"a mapping with the keys {keys}", "Write one of its keys below it")
    return value


OnlySource = Annotated[SourceSpec | None, BeforeValidator(_mapping)]


def _list(value: object) -> object:
    if isinstance(value, tuple) and all(isinstance(item, MixedSourceSpec) for item in value):
        return value
    if not isinstance(value, list) or not value:
        got = "Each has a name, a table and a weight"
        raise value_error("a non-empty list of sources", got)
    return tuple(value)


Sources = Annotated[tuple[MixedSourceSpec, ...], BeforeValidator(_list)]


def _stop(value: object) -> object:
    if value in ("first", "all") or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise value_error("first, all, or a number of steps")


class MixSpec(Section):
    """How the sources of a pipeline are mixed."""

    stop: Annotated[Literal["first", "all"] | Count, BeforeValidator(_stop)] = Field(
        default="first",
        description="An epoch ends with the first source that ends (first), when each was read once (all: shorter ones "
        "begin again, in another order), or after this many steps, and goes on there in the next epoch.",
    )


def divide_rows(size: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide a lane's rows of a step in proportion to weights, by largest remainder; of equal ones the first. The
    result may hold zeros. Exact: weights are the decimal numbers that pipeline.yaml shows."""
    # 10 rows by weights 1, 1, 1: quotas 10/3 each, floors 3, 3, 3, and the row that is left goes to the first: 4, 3, 3
    exact = [Fraction(repr(float(weight))) for weight in weights]
    total = sum(exact)
    quotas = [size * weight / total for weight in exact]
    rows = [math.floor(quota) for quota in quotas]
    largest = sorted(range(len(rows)), key=lambda index: (rows[index] - quotas[index], index))
    for index in largest[: size - sum(rows)]:
        rows[index] += 1
    return tuple(rows)


def rows_of_sources(sources: Sequence[MixedSourceSpec], size: int) -> tuple[int, ...]:
    """The rows of each source in a lane's share of a step."""
    stated = [source.rows_per_batch for source in sources if source.rows_per_batch is not None]
    return tuple(stated) or divide_rows(size, [source.weight or 0.0 for source in sources])


def check_source_keys(content: Mapping[str, Any], problems: Problems) -> None:
    """Add what is wrong with the keys `source`, `sources` and `mix` together."""
    if "source" in content and "sources" in content:
        message = "a pipeline has one of source, sources: got both. Add the table to the list, or remove one"
        problems.add(("sources",), message, key=True)
    elif "source" not in content and "sources" not in content:
        message = "missing key: expected a value. The table and its rows"
        problems.add(("source",), f"{message}. Several tables are a list of `sources`")
    elif "source" in content and content.get("mix") is not None:
        problems.add(("mix",), "has no meaning with one source: expected `sources`. Remove it", key=True)


def check_sources(sources: Sequence[MixedSourceSpec], batch: BatchSpec, problems: Problems) -> None:
    """Add what contradicts itself among the sources, and between them and the batch."""
    first: dict[str, int] = {}
    for index, source in enumerate(sources):
        if (earlier := first.setdefault(source.name, index)) != index:
            message = f"is the name of sources[{earlier}], too: got {source.name!r} twice. Rename one of the two"
            problems.add(("sources", index, "name"), message)
    if batch.max_tokens is not None:
        message = "cannot be combined with sources: a step has rows of one bucket, and of every source. Write size"
        problems.add(("batch", "max_tokens"), message)
    if batch.tail != "drop":
        message = f"needs `tail: drop` with sources, as every step has the same rows of each: got {batch.tail}"
        problems.add(("batch", "tail"), f"{message}. Remove this line")
    stated = [source.rows_per_batch for source in sources if source.rows_per_batch is not None]
    if stated and len(stated) < len(sources):
        index = next(index for index, source in enumerate(sources) if source.rows_per_batch is None)
        message = "is given beside rows_per_batch of other sources: expected the same key in all of them"
        problems.add(("sources", index, "weight"), f"{message}. Write rows_per_batch")
        return
    if stated and sum(stated) != batch.size:
        message = f"the sources' rows_per_batch do not add up to batch.size: got {' + '.join(map(str, stated))} = "
        problems.add(("sources",), f"{message}{sum(stated)}, expected {batch.size}. Change one of them")
        return
    for index, rows in enumerate(rows_of_sources(sources, batch.size)):
        if not rows:
            message = f"leaves no row of {sources[index].name!r} in a step: got 0 of {batch.size} rows of a lane"
            problems.add(
                ("sources", index, "weight"), f"{message}, expected at least 1. Raise batch.size or the weight"
            )


def read_source_features(
    document: Document, pipeline: Sequence[FeatureSpec], problems: Problems, code: str | None
) -> list[Any]:
    """The document's `sources`, the `features` of each as feature specs: complete ones, in place of the pipeline's.

    code: as of `read_features`. Adds errors to `problems`."""
    sources: Any = document.value["sources"]
    if not isinstance(sources, list):
        return sources  # type: ignore[no-any-return]  # pydantic refuses it
    found: list[Any] = []
    for index, source in enumerate(sources):
        if isinstance(source, dict) and "features" in source:
            path: Path = ("sources", index, "features")
            own = read_features(document, problems, code, at=path)
            complete = tuple(_complete(document, own, pipeline, source.get("name"), problems))
            found.append({**source, "features": complete})
        else:
            found.append(source)
    return found


def _complete(
    document: Document, own: Sequence[FeatureSpec], pipeline: Sequence[FeatureSpec], name: object, problems: Problems
) -> Iterator[FeatureSpec]:
    """The features of a source, with what they leave out from those of the pipeline."""
    of_pipeline = {feature.name: feature for feature in pipeline}
    for feature in own:
        whole = of_pipeline.get(feature.name)
        if whole is None:
            message = unknown_message("feature", feature.name, list(of_pipeline))
            problems.add(feature.path, f"{message}. A source redefines features of the pipeline: add it there, too")
        elif whole.group != feature.group:
            message = f"the pipeline has {feature.name!r} in another group: got {feature.group}, expected {whole.group}"
            problems.add(feature.path, f"{message}. Move it")
        else:
            body = _at(document.value, feature.path)
            given = body if isinstance(body, dict) else {"ops": body}
            if "expect" in given:
                message = f"is checked over the rows of all sources: got it for {describe_value(name)} alone"
                problems.add((*feature.path, "expect"), f"{message}. Move it to the pipeline's features", key=True)
            yield replace(
                feature,
                ops=feature.ops if "ops" in given else whole.ops,
                on_nonfinite=feature.on_nonfinite if "on_nonfinite" in given else whole.on_nonfinite,
                expect=whole.expect,
                inputs=_known_inputs(feature, whole),
                known_as=_origin(whole) if feature.op is None and whole.op is None else None,
            )


def _known_inputs(feature: FeatureSpec, whole: FeatureSpec) -> tuple[FeatureInput, ...]:
    """The inputs of an op over several columns, each known to fits as the pipeline's at its position."""
    if len(feature.inputs) != len(whole.inputs):
        return feature.inputs
    pairs = zip(feature.inputs, whole.inputs, strict=True)
    return tuple(replace(own, known_as=_origin(other)) for own, other in pairs)


def _origin(source: FeatureSpec | FeatureInput) -> tuple[str, str]:
    """Column or expression, and its text."""
    if source.expr is not None:
        return "expr", source.expr
    return "column", source.column or (source.name if isinstance(source, FeatureSpec) else "")


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def features_of(features: Sequence[FeatureSpec], source: MixedSourceSpec) -> tuple[FeatureSpec, ...]:
    """The pipeline's features as a source defines them, in the pipeline's order."""
    own = {feature.name: feature for feature in source.features}
    return tuple(own.get(feature.name, feature) for feature in features)


def groups_of(groups: Sequence[DedupSpec], features: Sequence[FeatureSpec]) -> tuple[DedupSpec, ...]:
    """The pipeline's deduplicated groups as a source has them: columns under the names that its features give them."""
    renamed: dict[str, list[str]] = {}
    for feature in features:
        parts: list[FeatureSpec | FeatureInput] = [feature, *feature.inputs]
        for each in parts:
            if each.known_as is not None and each.known_as[0] == "column" and each.column is not None:
                renamed.setdefault(each.known_as[1], []).append(each.column)
    columns = [[own for name in group.columns for own in renamed.get(name, [name])] for group in groups]
    return tuple(replace(group, columns=tuple(dict.fromkeys(own))) for group, own in zip(groups, columns, strict=True))


def plain_source(source: MixedSourceSpec) -> SourceSpec:
    """What a pipeline of this source alone has as its `source`."""
    keys = {name: getattr(source, name) for name in SourceSpec.model_fields}
    own = source.model_fields_set & SourceSpec.model_fields.keys()
    return SourceSpec.model_construct(_fields_set=set(own), **keys)


def canonical_features(features: Sequence[FeatureSpec]) -> list[list[Any]]:
    """A source's features as the canonical text has them: nothing is left to the pipeline's but expectations."""
    return [
        [
            feature.group,
            feature.name,
            {
                **({"ops": []} if feature.group != "extra" else {}),
                **{key: value for key, value in feature.long_form().items() if key != "expect"},
            },
        ]
        for feature in features
    ]


def grouped_entries(entries: Sequence[Sequence[Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Features of a canonical text as the mapping of a document, group by group."""
    groups: dict[str, dict[str, Any]] = {}
    for group, name, body in entries:
        groups.setdefault(group, {})[name] = body
    return {group: groups[group] for group in GROUPS if group in groups}
