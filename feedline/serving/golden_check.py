"""Record golden vectors, rows and their features, and check an installation against them.

Runs in: the process that fits (`record`) and the process that checks an installation (`check`). Ids and lengths must be
equal. Floats must be bit-equal if versions and processor are those of the vectors, else within `ULPS`, because numpy
chooses its logarithms by the processor's instructions. NaN equals NaN.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.artifacts.artifact_sets import (
    FORMAT,
    ArtifactSetKey,
    altered_error,
    list_files,
    list_names,
    parquet_bytes,
    parse_json,
    parsed_parquet,
    read_file,
    safe_name,
    write_file,
)
from feedline.artifacts.type_records import FOLDER, save_types
from feedline.blocks.environment import environment_differences, local_environment
from feedline.config import PipelineSpec
from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError, SpecError
from feedline.expressions import BoundExpression
from feedline.loader.encoding.encoded_rows import arrow_table
from feedline.planning.read_columns import bound_sample, bound_where
from feedline.planning.table_features import artifact_set_key, artifacts_dir, served_schema
from feedline.serving.encoder import Serving
from feedline.transforms.ops import bind
from feedline.warehouse.histories.joined_rows import read_rows
from feedline.warehouse.reading.read import ReadRequest
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.selection.select import screened_splits
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import absolute, join, locate, redact

# --------------------------------------------------------------------------------------------------------------------
# Store golden vectors beside the artifacts, and find those of a pipeline. The vectors of some features of a pipeline
# are one Parquet file, serving/<name>/<features>-<source>.golden.parquet: the columns `row.<column>` and
# `feature.<feature>`, bit by bit; the schema's metadata hold the features and the origin of the vectors. `<features>`
# is a digest of the features in pipeline.yaml and the versions of their ops, `<source>` one of the source of their
# fits. Vectors of more features also serve to check fewer.

_SUFFIX = ".golden.parquet"
_RECORD = b"feedline.golden"  # the key in the schema's metadata
_ROW, _FEATURE = "row.", "feature."  # prefixes of columns


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenOrigin:
    """The installation and table that vectors were made with.

    fingerprints: of each feature alone, by name. environment: versions and processor, by name. table, snapshot: those
    of the rows.
    """

    fingerprints: Mapping[str, str]
    environment: Mapping[str, str]
    table: str
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenVectors:
    """Rows and their features, as `feedline transform` writes them."""

    rows: pa.Table
    expected: pa.Table
    origin: GoldenOrigin


def features_id(features: Sequence[FeatureSpec]) -> str:
    """Identify features, independent of the types of their columns and of fits."""
    content = [
        [
            feature.name,
            feature.group,
            *_source_facts(feature),
            _op_identity(feature.op),
            [_source_facts(part) for part in feature.inputs],
        ]
        for feature in features
    ]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:16]


def _source_facts(part: FeatureSpec | FeatureInput) -> list[Any]:
    return [part.column, part.expr, [_op_identity(call) for call in part.ops]]


def _op_identity(call: OpCall | None) -> Any:
    return None if call is None else bind(call).identity


def save_golden(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec], golden: GoldenVectors) -> None:
    """Write vectors, replacing those of the same features and source."""
    record = {
        "format": FORMAT,
        "features": {feature.name: features_id([feature]) for feature in features},
        "made": asdict(golden.origin),
    }
    names = [_ROW + name for name in golden.rows.column_names] + [
        _FEATURE + name for name in golden.expected.column_names
    ]
    table = pa.table([*golden.rows.columns, *golden.expected.columns], names)
    table = table.replace_schema_metadata({_RECORD: json.dumps(record)})
    write_file(folder, _name(request, features) + _SUFFIX, parquet_bytes(table))


def delete_golden(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> None:
    """Delete the vectors of these features, of every source: they may hold rows that must not be kept."""
    location, id = locate(absolute(folder)), features_id(features)
    for info in list_files(folder, _home(request.pipeline)):
        if info.is_file and info.base_name.endswith(_SUFFIX) and info.base_name.startswith(f"{id}-"):
            location.filesystem.delete_file(info.path)


def load_golden(
    folder: str,
    request: ArtifactSetKey,
    features: Sequence[FeatureSpec],
    matches: Callable[[GoldenVectors], bool] = lambda golden: True,
) -> GoldenVectors | None:
    """Load vectors of these features, or of these and others: the first that match, else the nearest.

    The pipeline's own vectors come first, those of the same source before others; then those of the pipeline whose fits
    it uses. None if there are none. Raises CorruptFileError if the files are not what was written; SpecError if they
    have another format.
    """
    ids = {feature.name: features_id([feature]) for feature in features}
    nearest: GoldenVectors | None = None
    for name in _names(folder, request, features):
        golden, recorded = _load(folder, name)
        if ids.items() <= recorded.items():
            if matches(golden):
                return golden
            nearest = nearest or golden
    return nearest


def _home(pipeline: str) -> str:
    return f"{FOLDER}/{safe_name(pipeline)}"


def _name(request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> str:
    return f"{_home(request.pipeline)}/{features_id(features)}-{request.source.id}"


def _names(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> list[str]:
    """Files of vectors, in order of preference: the one of exactly these features first."""
    ordered = []
    for home in dict.fromkeys((_home(request.pipeline), _home(request.owner))):
        names = [name.removesuffix(_SUFFIX) for name in list_names(folder, home, _SUFFIX)]
        ordered += sorted(names, key=lambda name: (name != _name(request, features), features_id(features) not in name))
    return ordered


def _load(folder: str, name: str) -> tuple[GoldenVectors, dict[str, str]]:
    """Vectors, and the ids of their features by name."""
    path = join(folder, name + _SUFFIX)
    content = read_file(folder, name + _SUFFIX)
    if content is None:
        raise altered_error(path)
    table = parsed_parquet(content, path)
    record = parse_json((table.schema.metadata or {}).get(_RECORD, b""), path, {"features": dict, "made": dict})
    if record["made"].keys() != {field.name for field in fields(GoldenOrigin)}:
        raise altered_error(path)
    table = table.replace_schema_metadata()
    parts = []
    for prefix in (_ROW, _FEATURE):
        part = table.select([name for name in table.column_names if name.startswith(prefix)])
        parts.append(part.rename_columns([name.removeprefix(prefix) for name in part.column_names]))
    rows, expected = parts
    return GoldenVectors(rows=rows, expected=expected, origin=GoldenOrigin(**record["made"])), record["features"]


# --------------------------------------------------------------------------------------------------------------------
# Choose the rows of golden vectors: the first ones of splits spread over the table.

SPLITS, ROWS_OF_SPLIT = 10, 24
# Rows per chunk, and chunks read of a split before it is given up where the filter keeps few rows.
_CHUNK_ROWS, _CHUNKS = 2_048, 16


def first_rows_of_splits(
    snapshot: Snapshot,
    columns: Sequence[str],
    schema: pa.Schema,
    *,
    where: BoundExpression | None,
    sample: BoundSample | None,
) -> pa.Table:
    """Read the first kept rows of some splits: these columns, in the types of `schema`."""
    target = pa.schema([schema.field(name) for name in columns])
    tables = [target.empty_table()]
    for fragment in screened_splits(snapshot, where, sample, _spread):
        remaining = ROWS_OF_SPLIT
        chunks = read_rows(fragment, ReadRequest(columns, schema, where, sample=sample, chunk_rows=_CHUNK_ROWS))
        for _, chunk in zip(range(_CHUNKS), chunks, strict=False):
            table = chunk.frame.head(remaining).to_arrow()
            tables.append(pa.table([table[name].cast(target.field(name).type) for name in columns], schema=target))
            remaining -= table.num_rows
            if not remaining:
                break
    return pa.concat_tables(tables).combine_chunks()


def _spread(splits: int) -> list[int]:
    """Indices of `SPLITS` splits, evenly spread."""
    return list(dict.fromkeys(np.linspace(0, splits - 1, SPLITS).astype(int).tolist())) if splits else []


def rows_that_encode(rows: pa.Table, encode: Callable[[pa.Table], object]) -> pa.Table:
    """Keep the rows that `encode` accepts; tried together first, then one by one."""
    if not rows.num_rows or _encodes(rows, encode):
        return rows
    kept = [row for row in range(rows.num_rows) if _encodes(rows.slice(row, 1), encode)]
    return rows.take(pa.array(kept, pa.int64()))


def _encodes(rows: pa.Table, encode: Callable[[pa.Table], object]) -> bool:
    try:
        encode(rows)
    except DataError:
        return False
    return True


# --------------------------------------------------------------------------------------------------------------------

ULPS = 4
_SHOWN_CHARACTERS = 200
_INFINITE_ULPS = 2**40  # more than between any two floats: NaN and a number, an infinity and a finite number


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a feature differs: in `values` values, the first in `row`; ulps: the largest distance (None: no floats)."""

    feature: str
    row: int
    got: str
    expected: str
    values: int
    ulps: int | None
    allowed: bool

    def __str__(self) -> str:
        if self.ulps is None:
            distance = ""
        else:
            distance = ", one of two is not finite" if self.ulps >= _INFINITE_ULPS else f", {self.ulps} ulps"
        return (
            f"feature {self.feature!r} at row {self.row}: got {self.got}, expected {self.expected} "
            f"({self.values} values differ{distance})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check. other: what differs from the environment of the vectors: name, value here, value there."""

    rows: int
    features: int
    ulps: int
    other: tuple[tuple[str, str, str], ...]
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Whether this installation may serve."""
        return all(difference.allowed for difference in self.differences)

    def text(self) -> str:
        """The result for people."""
        environment = ", ".join(f"{name} {here} (the vectors: {there})" for name, here, there in self.other)
        lines = [f"another environment than that of the vectors: {environment}"] if environment else []
        wrong = [difference for difference in self.differences if not difference.allowed]
        lines += [f"differs: {difference}" for difference in wrong]
        head = f"{self.rows} rows of {self.features} features"
        close = len(self.differences) - len(wrong)
        if wrong:
            lines.append(f"failed: {head}: {len(wrong)} features differ by more than {self.ulps} ulps")
        elif close:
            most = max(difference.ulps or 0 for difference in self.differences)
            lines.append(f"passed: {head}: {close} features differ by at most {most} ulps, {self.ulps} are allowed")
        else:
            lines.append(f"passed: {head}: every bit is the same")
        return "\n".join(lines)


def record(spec: PipelineSpec, snapshots: Sequence[Snapshot]) -> GoldenVectors | None:
    """Record the types of the tables' columns and, unless `fit.golden` is `none`, golden vectors beside the artifacts.

    Of several sources, the rows are of the first that redefines no feature: serving has the pipeline's own ones.
    Returns the vectors, the existing ones if nothing has changed. Returns None, and deletes existing vectors, if
    `fit.golden` is `none`, nothing is served, or no row suits all features.
    """
    folder, schema = (
        artifacts_dir(spec),
        served_schema(spec, [snapshot.schema for snapshot in snapshots], snapshots[0].histories),
    )
    request = artifact_set_key(spec)
    save_types(folder, request, schema)
    serving = Serving(spec, types=schema)
    parts = list(serving.per_feature())
    sources = zip(spec.per_source(), snapshots, strict=True)
    source, snapshot = next((pair for pair in sources if pair[0].features == spec.features), (None, snapshots[0]))
    if not parts or spec.fit.golden == "none" or source is None:
        delete_golden(folder, request, serving.features)
        return None
    origin = GoldenOrigin(
        fingerprints={part.features[0].name: part.form(schema).features.fingerprint for part in parts},
        environment=dict(local_environment()),
        table=redact(snapshot.uri),
        snapshot=snapshot.id,
    )
    existing = _existing_vectors(folder, request, serving)
    if existing is not None and existing.origin == origin:
        return existing
    rows = _rows(source, snapshot, schema, serving)
    if not rows.num_rows:
        delete_golden(folder, request, serving.features)
        return None
    expected = arrow_table(*serving.encode(rows))
    golden = GoldenVectors(rows=rows, expected=expected, origin=origin)
    save_golden(folder, request, serving.features, golden)
    return golden


def _existing_vectors(folder: str, request: ArtifactSetKey, serving: Serving) -> GoldenVectors | None:
    """Load existing vectors; damaged ones, or of another format, will be replaced."""
    try:
        return load_golden(folder, request, serving.features)
    except (CorruptFileError, SpecError):
        return None


def _rows(spec: PipelineSpec, snapshot: Snapshot, schema: pa.Schema, serving: Serving) -> pa.Table:
    """Rows of the table that all features accept."""
    columns = list(serving.form(schema).features.columns)
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    rows = first_rows_of_splits(snapshot, columns, schema, where=where, sample=sample)
    return rows_that_encode(rows, serving.encode)


def check(spec: PipelineSpec, *, ulps: int | None = None) -> CheckResult:
    """Transform the golden rows and compare. `ulps`: allowed distance of floats (default: see the module).

    Raises SpecError if there are no vectors of these features, or they belong to other artifacts.
    """
    folder, serving = artifacts_dir(spec), Serving(spec)
    golden = load_golden(
        folder, artifact_set_key(spec), serving.features, lambda vectors: not _mismatched_features(serving, vectors)
    )
    if golden is None:
        raise SpecError(
            f"{redact(folder)} has no golden vectors of these features: expected those that `feedline fit` writes. "
            "Fit with the same overrides, or name the folder in `artifacts`"
        )
    for name, fingerprint in _mismatched_features(serving, golden).items():
        raise SpecError(
            f"the golden vectors of feature {name!r} belong to other artifacts: got the fingerprint "
            f"{fingerprint[:32]}, expected {golden.origin.fingerprints[name][:32]}. Copy the whole folder, or fit again"
        )
    encoded = arrow_table(*serving.encode(golden.rows))
    other = environment_differences(dict(local_environment()), golden.origin.environment)
    allowed = (ULPS if other else 0) if ulps is None else ulps
    return CheckResult(
        rows=golden.rows.num_rows,
        features=len(serving.features),
        ulps=allowed,
        other=tuple(other),
        differences=compare(encoded, golden.expected, ulps=allowed),
    )


def _mismatched_features(serving: Serving, golden: GoldenVectors) -> dict[str, str]:
    """Fingerprints here of the features whose op, artifact or type is not that of the vectors, by name."""
    schema, expected = golden.rows.schema, golden.origin.fingerprints
    fingerprints = {part.features[0].name: part.form(schema).features.fingerprint for part in serving.per_feature()}
    return {name: fingerprint for name, fingerprint in fingerprints.items() if fingerprint != expected[name]}


def compare(actual: pa.Table, expected: pa.Table, *, ulps: int) -> tuple[Difference, ...]:
    """Compare the features of two tables of the same rows."""
    differences = [_difference(name, actual[name], expected[name], ulps) for name in actual.schema.names]
    return tuple(difference for difference in differences if difference is not None)


def _difference(name: str, actual: pa.ChunkedArray, expected: pa.ChunkedArray, ulps: int) -> Difference | None:
    one, two = actual.combine_chunks(), expected.combine_chunks()
    distance, allowed = None, False
    if one.type != two.type or len(one) != len(two):
        row, count = 0, max(len(two), 1)
    else:
        (lengths, values), (expected_lengths, expected_values) = _flat(one), _flat(two)
        uneven = np.flatnonzero(lengths != expected_lengths)
        if len(uneven):
            row, count = int(uneven[0]), len(uneven)
        else:
            distances = [_distances(*pair) for pair in zip(values, expected_values, strict=True)]
            wrong = np.logical_or.reduce([values > 0 for values in distances])
            if not wrong.any():
                return None
            # lists of lengths [2, 0, 1] whose third value differs: row 2
            row, count = int(np.repeat(np.arange(len(one)), lengths)[wrong.argmax()]), int(wrong.sum())
            most = [int(values.max()) for values in distances]
            allowed = max(most) <= ulps
            distance = max(
                (m for m, column in zip(most, values, strict=True) if column.dtype.kind == "f"), default=None
            )
    got, shown = (
        repr(array[row].as_py())[:_SHOWN_CHARACTERS] if row < len(array) else "no row" for array in (one, two)
    )
    return Difference(feature=name, row=row, got=got, expected=shown, values=count, ulps=distance, allowed=allowed)


def _distances(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """Distances of values: floats in ulps; other unequal values are infinitely far apart."""
    return ulps_between(one, other) if one.dtype.kind == "f" else np.where(one == other, 0, _INFINITE_ULPS)


def _flat(array: pa.Array) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """Lengths of the rows, and their flat values: for a weighted list, ids and weights."""
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size), [array.flatten().to_numpy(zero_copy_only=False)]
    if not pa.types.is_large_list(array.type):
        return np.ones(len(array), np.int64), [array.to_numpy(zero_copy_only=False)]
    flat = array.flatten()
    parts = flat.flatten() if pa.types.is_struct(flat.type) else [flat]
    return np.diff(array.offsets.to_numpy()), [part.to_numpy(zero_copy_only=False) for part in parts]


def ulps_between(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """Distance of float32 values in ulps, elementwise: 0 for equal bits and for two NaN, 1 for zeros of two signs."""
    ranks = [values.astype(np.float32).view(np.int32).astype(np.int64) for values in (one, other)]
    # by the bits, neighbours differ by 1 on either side of 0: -1e-45 -> -2, -0.0 -> -1, 0.0 -> 0, 1e-45 -> 1
    ranks = [np.where(rank < 0, -(rank & 0x7FFFFFFF) - 1, rank) for rank in ranks]
    distances: NDArray[np.int64] = np.abs(ranks[0] - ranks[1])
    distances[~np.isfinite(one) | ~np.isfinite(other)] = _INFINITE_ULPS
    distances[(one == other) & ~np.isfinite(one)] = 0
    distances[np.isnan(one) & np.isnan(other)] = 0
    return distances
