"""Show the first rows of a table beside the features that they become, for `feedline head`.

Runs in: the process of the command. It reads a few rows and counts nothing. Ids of a vocabulary are shown with their
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import polars as pl
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.artifacts.store import StoredArtifactSet
from feedline.config import PipelineSpec
from feedline.config.features import FeatureInput, FeatureSpec
from feedline.dataclass import dataclass
from feedline.errors import DataError, PlanError
from feedline.expressions.moments import python_values
from feedline.pipeline import Pipeline
from feedline.planning.exclusions import named_exclusion
from feedline.planning.read_columns import bound_marks, bound_sample, bound_where, rows_of
from feedline.planning.table_features import artifact_set_ref, compile_spec, planned_schema
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.transforms.ops import bind
from feedline.transforms.ops.vocabulary import Vocabulary, decode
from feedline.transforms.registry.op import same_ids
from feedline.warehouse.histories.joined_rows import read_rows
from feedline.warehouse.reading.read import ReadRequest
from feedline.warehouse.selection.select import first_rows, screened_splits

_MAX_ELEMENTS = 4  # shown of a list
_MAX_CHARACTERS = 28  # shown of a value
_NOT_FITTED = "not fitted"
_CHUNK_ROWS = 2_048

Decoder = Callable[[int], Any]


@dataclass(slots=True)
class _RecordingSet:
    """The stored artifact set; records the artifacts that were requested."""

    artifact_set: StoredArtifactSet
    artifacts: dict[str, Artifact] = field(default_factory=dict)  # by op, of one feature

    def seen_rows(self, key: str) -> bool | str:
        return self.artifact_set.seen_rows(key)

    def find_artifact(self, request: FitRequest) -> Artifact | None:
        artifact = self.artifact_set.find_artifact(request)
        if artifact is not None:
            self.artifacts[request.op[0]] = artifact
        return artifact

    def read(self, reading: Reading) -> Artifact:
        return self.artifact_set.read(reading)


def preview(spec: PipelineSpec, count: int) -> dict[str, Any]:
    """Compute the first `count` rows that the pipeline keeps, per feature: sources, values, decoded ids.

    Raises SpecError as a plan does, PlanError if no row is kept.
    """
    snapshot = Pipeline(spec).snapshot()
    schema = planned_schema(spec, snapshot.schema, snapshot.histories)
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    artifact_set = StoredArtifactSet(replace(artifact_set_ref(spec), rows=rows_of(spec.source, snapshot)), newest=True)
    compiled = compile_spec(spec, schema, artifacts=artifact_set)
    sources = {feature.name: _sources(feature) for feature in spec.features}
    inputs = [part for parts in sources.values() for part in parts]
    compiled_inputs = compile_spec(spec, schema, inputs, artifacts=artifact_set)
    columns = list(dict.fromkeys([*compiled.parts, *compiled_inputs.parts]))
    marks = bound_marks(spec, compiled)
    splits = screened_splits(snapshot, where, sample, exclusion=named_exclusion(spec, snapshot))
    request = ReadRequest(columns, schema, where, sample=sample, marks=marks, chunk_rows=_CHUNK_ROWS)
    every_chunk = (chunk for split in splits if split.row_groups for chunk in read_rows(split, request))
    chunks = first_rows(every_chunk, count)
    if not chunks:
        raise PlanError(f"no row is kept: got none of {snapshot.rows:,} rows of {spec.source.table}")
    frame = pl.concat([chunk.frame for chunk in chunks], rechunk=True)
    input_frame = compiled_inputs.apply(frame)
    features = []
    for feature in spec.features:
        values, decoder = _values(spec, schema, feature, artifact_set, frame)
        features.append(
            {
                "name": feature.name,
                "group": feature.group,
                "source": _input_values(input_frame, sources[feature.name]),
                "value": values,
                "decoded": None
                if decoder is None or values is None
                else [_decode_each(decoder, value) for value in values],
            }
        )
    return {
        "table": spec.source.table,
        "files": list(dict.fromkeys(chunk.uri for chunk in chunks)),
        "rows": frame.height,
        "features": features,
    }


def _sources(feature: FeatureSpec) -> list[FeatureSpec]:
    """The inputs of a feature, as features without ops."""
    inputs = feature.inputs or (FeatureInput(column=feature.column, expr=feature.expr),)
    return [
        FeatureSpec(
            name=f"{feature.name}:{index}", group="observed", column=one.column, expr=one.expr, path=feature.path
        )
        for index, one in enumerate(inputs)
    ]


def _input_values(inputs: pl.DataFrame, sources: Sequence[FeatureSpec]) -> list[Any]:
    columns = [python_values(inputs.get_column(source.name)) for source in sources]
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]


def _values(
    spec: PipelineSpec, schema: Any, feature: FeatureSpec, artifact_set: StoredArtifactSet, frame: pl.DataFrame
) -> tuple[list[Any] | None, Decoder | None]:
    """The feature's value per row, None if it is not fitted, and the decoder of its ids.

    A row that cannot be computed has its error as value.
    """
    recording = _RecordingSet(artifact_set)
    alone = compile_spec(spec, schema, [feature], artifacts=recording)
    if alone.missing_fits:
        return None, None
    values: list[Any] = []
    for row in range(frame.height):
        try:
            [value] = python_values(alone.apply(frame.slice(row, 1)).to_series())
        except DataError as error:
            values.append(_RowError(str(error)))
        else:
            values.append(_finite(value) if feature.on_nonfinite == "zero" else value)
    return values, _decoder(feature, recording.artifacts)


class _RowError(str):
    """The error of a row."""

    __slots__ = ()


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value


def _decoder(feature: FeatureSpec, artifacts: Mapping[str, Artifact]) -> Decoder | None:
    """Return the decoder of the feature's ids, if they are still those of a vocabulary after all ops."""
    calls = [bind(call) for call in feature.ops]
    vocabularies = [index for index, call in enumerate(calls) if call.op.name == "vocabulary"]
    if not vocabularies or any(call.op.ids is not same_ids for call in calls[vocabularies[-1] + 1 :]):
        return None
    parameters, artifact = calls[vocabularies[-1]].parameters, artifacts["vocabulary"]
    assert isinstance(parameters, Vocabulary)
    return lambda id: decode(id, parameters, artifact)


def _decode_each(decoder: Decoder, value: Any) -> Any:
    if isinstance(value, list):
        return [_decode_each(decoder, item) for item in value]
    return decoder(value["id"]) if isinstance(value, dict) else None if value is None else decoder(value)


def preview_table(facts: Mapping[str, Any]) -> Group:
    """Render a preview: a line per feature, a column per row."""
    title = f"{facts['table']}: the first {facts['rows']} rows and their features"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("feature", overflow="fold")
    for row in range(facts["rows"]):
        table.add_column(f"row {row + 1}", overflow="fold")
    for one in facts["features"]:
        cells = [f"{escape(one['name'])}\n[dim]{one['group']}[/dim]"]
        cells += [escape("\n".join(_cell(one, row))) for row in range(facts["rows"])]
        table.add_row(*cells)
    files = ", ".join(facts["files"])
    return Group(table, escape(f"A cell: table values → feature = decoded ids. Read from {files}"))


def _cell(feature: Mapping[str, Any], row: int) -> list[str]:
    """Render a feature of one row in up to three lines."""
    if feature["value"] is None:
        return [_format_value(feature["source"][row]), f"→ {_NOT_FITTED}"]
    lines = [_format_value(feature["source"][row])]
    value = _format_value(feature["value"][row])
    lines += [f"→ {value}"] if value != lines[0] else []
    return lines if feature["decoded"] is None else [*lines, f"= {_format_value(feature['decoded'][row])}"]


def json_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a preview to JSON values: bytes, times and others as strings."""
    return {**facts, "features": [{key: _json_value(value) for key, value in one.items()} for one in facts["features"]]}


def _json_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, dict):
        return {key: _json_value(item) for key, item in value.items()}
    if isinstance(value, _RowError):
        return {"error": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _format_value(value: Any) -> str:
    if isinstance(value, _RowError):
        return f"error: {value}"
    if isinstance(value, list):
        shown = ", ".join(_format_value(item) for item in value[:_MAX_ELEMENTS])
        return f"[{shown}]" if len(value) <= _MAX_ELEMENTS else f"[{shown}, … {len(value)} in all]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_format_value(item)}" for key, item in value.items()) + "}"
    if value is None:
        return "null"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"
