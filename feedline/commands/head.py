"""Show the first rows of a table beside the features that they become, for `feedline head`.

Runs in: the process of the command. It reads a few rows and counts nothing. Ids of a vocabulary are shown with the
values that they stand for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.artifacts.store import StoredArtifactSet
from feedline.errors import DataError, PlanError
from feedline.pipeline import Pipeline
from feedline.planning.binding import (
    artifact_set_ref,
    bound_marks,
    bound_sample,
    bound_where,
    compile_spec,
    planned_schema,
    rows_of,
)
from feedline.spec import PipelineSpec
from feedline.spec.features import FeatureInput, FeatureSpec
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.transforms.ops import bind
from feedline.transforms.ops.vocabulary import Vocabulary, decode
from feedline.transforms.registry.op import same_ids
from feedline.warehouse.selection.first_rows import first_rows

_ELEMENTS = 4  # of a list that are shown
_CHARACTERS = 28  # of a value that are shown
_NOT_FITTED = "not fitted"

Decoder = Callable[[int], Any]


@dataclass(slots=True)
class _Recorded:
    """The stored artifact set, which remembers what was asked for."""

    stored: StoredArtifactSet
    artifacts: dict[str, Artifact] = field(default_factory=dict)  # by the op's name, of one feature

    def seen_rows(self, key: str) -> bool | str:
        return self.stored.seen_rows(key)

    def find_artifact(self, wanted: FitRequest) -> Artifact | None:
        found = self.stored.find_artifact(wanted)
        if found is not None:
            self.artifacts[wanted.op[0]] = found
        return found

    def read(self, reading: Reading) -> Artifact:
        return self.stored.read(reading)


def preview(spec: PipelineSpec, count: int) -> dict[str, Any]:
    """The first `count` rows that the pipeline keeps, feature by feature: sources, values, what ids stand for.

    Raises SpecError as a plan does, PlanError where no row is kept.
    """
    snapshot = Pipeline(spec).snapshot()
    schema = planned_schema(spec, snapshot.schema)
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    stored = StoredArtifactSet(replace(artifact_set_ref(spec), rows=rows_of(spec, snapshot)), newest=True)
    compiled = compile_spec(spec, schema, artifacts=stored)
    sources = {feature.name: _sources(feature) for feature in spec.features}
    read = compile_spec(spec, schema, [part for parts in sources.values() for part in parts], artifacts=stored)
    columns = list(dict.fromkeys([*compiled.parts, *read.parts]))
    marks = bound_marks(spec, compiled)
    chunks = first_rows(snapshot, columns, schema, count, where=where, sample=sample, marks=marks)
    if not chunks:
        raise PlanError(f"no row is kept: got none of {snapshot.rows:,} rows of {spec.source.table}")
    frame = pl.concat([chunk.frame for chunk in chunks], rechunk=True)
    given = read.apply(frame)
    features = []
    for feature in spec.features:
        values, decoder = _values(spec, schema, feature, stored, frame)
        features.append(
            {
                "name": feature.name,
                "group": feature.group,
                "source": _inputs(given, sources[feature.name]),
                "value": values,
                "decoded": None if decoder is None or values is None else [_each(decoder, value) for value in values],
            }
        )
    return {
        "table": spec.source.table,
        "files": list(dict.fromkeys(chunk.uri for chunk in chunks)),
        "rows": frame.height,
        "features": features,
    }


def _sources(feature: FeatureSpec) -> list[FeatureSpec]:
    """What the feature is made of, as features that are handed through."""
    given = feature.inputs or (FeatureInput(column=feature.column, expr=feature.expr),)
    return [
        FeatureSpec(
            name=f"{feature.name}:{place}", group="observed", column=one.column, expr=one.expr, path=feature.path
        )
        for place, one in enumerate(given)
    ]


def _inputs(given: pl.DataFrame, sources: Sequence[FeatureSpec]) -> list[Any]:
    columns = [given.get_column(source.name).to_list() for source in sources]
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]


def _values(
    spec: PipelineSpec, schema: Any, feature: FeatureSpec, stored: StoredArtifactSet, frame: pl.DataFrame
) -> tuple[list[Any] | None, Decoder | None]:
    """The feature of each row, None where it is not fitted; and what its ids stand for.

    A row that cannot be computed has its error for a value.
    """
    recorded = _Recorded(stored)
    alone = compile_spec(spec, schema, [feature], artifacts=recorded)
    if alone.missing_fits:
        return None, None
    values: list[Any] = []
    for row in range(frame.height):
        try:
            [value] = alone.apply(frame.slice(row, 1)).to_series().to_list()
        except DataError as error:
            values.append(_Error(str(error)))
        else:
            values.append(_finite(value) if feature.on_nonfinite == "zero" else value)
    return values, _decoder(feature, recorded.artifacts)


class _Error(str):
    """What went wrong with a row."""

    __slots__ = ()


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return 0.0 if isinstance(value, float) and not math.isfinite(value) else value


def _decoder(feature: FeatureSpec, artifacts: Mapping[str, Artifact]) -> Decoder | None:
    """What the feature's ids stand for, where they are still those of a vocabulary when the ops are through."""
    calls = [bind(call) for call in feature.ops]
    places = [place for place, call in enumerate(calls) if call.op.name == "vocabulary"]
    if not places or any(call.op.ids is not same_ids for call in calls[places[-1] + 1 :]):
        return None
    parameters, artifact = calls[places[-1]].parameters, artifacts["vocabulary"]
    assert isinstance(parameters, Vocabulary)
    return lambda id: decode(id, parameters, artifact)


def _each(decoder: Decoder, value: Any) -> Any:
    if isinstance(value, list):
        return [_each(decoder, item) for item in value]
    return decoder(value["id"]) if isinstance(value, dict) else None if value is None else decoder(value)


def preview_table(facts: Mapping[str, Any]) -> Group:
    """The same for people: a line per feature, a column per row."""
    title = f"{facts['table']}: the first {facts['rows']} rows, and what they become"
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("feature", overflow="fold")
    for row in range(facts["rows"]):
        table.add_column(f"row {row + 1}", overflow="fold")
    for one in facts["features"]:
        cells = [f"{escape(one['name'])}\n[dim]{one['group']}[/dim]"]
        cells += [escape("\n".join(_cell(one, row))) for row in range(facts["rows"])]
        table.add_row(*cells)
    files = ", ".join(facts["files"])
    return Group(
        table, escape(f"A cell: what the table holds → the feature = what its ids stand for. Read from {files}")
    )


def _cell(feature: Mapping[str, Any], row: int) -> list[str]:
    """A feature of one row in up to three lines."""
    if feature["value"] is None:
        return [_text(feature["source"][row]), f"→ {_NOT_FITTED}"]
    lines = [_text(feature["source"][row])]
    became = _text(feature["value"][row])
    lines += [f"→ {became}"] if became != lines[0] else []
    return lines if feature["decoded"] is None else [*lines, f"= {_text(feature['decoded'][row])}"]


def json_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The same as JSON can say it: bytes, times and other values as strings."""
    return {**facts, "features": [{key: _plain(value) for key, value in one.items()} for one in facts["features"]]}


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, _Error):
        return {"error": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, _Error):
        return f"error: {value}"
    if isinstance(value, list):
        shown = ", ".join(_text(item) for item in value[:_ELEMENTS])
        return f"[{shown}]" if len(value) <= _ELEMENTS else f"[{shown}, … {len(value)} in all]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) + "}"
    if value is None:
        return "null"
    text = f"{value:.6g}" if isinstance(value, float) else repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"
