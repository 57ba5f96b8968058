"""Store golden vectors beside the artifacts, and find those of a pipeline.

Runs in: the process that fits and the processes that serve. The folder of artifacts holds, for the vectors of some
features of a pipeline,

    serving/<name>/<features>-<source>.json            the features, the origin of the vectors, digests of both files
    serving/<name>/<features>-<source>.in.parquet      rows
    serving/<name>/<features>-<source>.out.parquet     their features, bit by bit

`<features>` is a digest of the features in pipeline.yaml and the versions of their ops, `<source>` one of the source of
their fits. Vectors of more features also serve to check fewer. Those of a set that names no pipeline lie in `serving`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import pyarrow as pa

from feedline.artifacts.artifact_files import (
    FORMAT,
    altered_error,
    content_digest,
    list_files,
    list_names,
    parquet_bytes,
    parse_json,
    parsed_parquet,
    read_checked,
    read_file,
    write_file,
)
from feedline.artifacts.artifact_sets import ArtifactSetKey, safe_name
from feedline.artifacts.type_records import FOLDER
from feedline.spec.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.ops import bind
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, join, locate


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
    name = _name(request, features)
    files = {"in": parquet_bytes(golden.rows), "out": parquet_bytes(golden.expected)}
    record = {
        "format": FORMAT,
        "features": {feature.name: features_id([feature]) for feature in features},
        "rows": golden.rows.num_rows,
        "sha256": {key: content_digest(content) for key, content in files.items()},
        "real": golden.rows.num_rows,
        "made": asdict(golden.origin),
    }
    with content_store.lock_file(locate(absolute(folder)), _home(request.pipeline)):  # three files that belong together
        for key, content in files.items():
            write_file(folder, f"{name}.{key}.parquet", content)
        write_file(folder, f"{name}.json", json.dumps(record, indent=1).encode())


def delete_golden(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> None:
    """Delete the vectors of these features, of every source: they may hold rows that must not be kept."""
    location, id = locate(absolute(folder)), features_id(features)
    for home in (_home(request.pipeline), FOLDER):
        for info in list_files(folder, home):
            if info.is_file and re.split(r"[-.]", info.base_name)[0] == id:
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
        record = _load_record(folder, name)
        if ids.items() <= record["features"].items():
            golden = _load_vectors(folder, name, record)
            if matches(golden):
                return golden
            nearest = nearest or golden
    return nearest


def _home(pipeline: str) -> str:
    return f"{FOLDER}/{safe_name(pipeline)}"


def _name(request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> str:
    return f"{_home(request.pipeline)}/{features_id(features)}-{request.source.id}"


def _names(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> list[str]:
    """Names of the existing records, in order of preference: the one of exactly these features first."""
    ordered = []
    for home in dict.fromkeys((_home(request.pipeline), _home(request.owner))):
        names = [name.removesuffix(".json") for name in list_names(folder, home, ".json")]
        ordered += sorted(names, key=lambda name: (name != _name(request, features), features_id(features) not in name))
    return ordered


def _load_record(folder: str, name: str) -> dict[str, Any]:
    path = join(folder, f"{name}.json")
    content = read_file(folder, f"{name}.json")
    if content is None:
        raise altered_error(path)
    record = parse_json(content, path, {"features": dict, "sha256": dict, "made": dict})
    if record["made"].keys() != {each.name for each in fields(GoldenOrigin)}:
        raise altered_error(path)
    return record


def _load_vectors(folder: str, name: str, record: Mapping[str, Any]) -> GoldenVectors:
    tables = []
    for key in ("in", "out"):
        file = f"{name}.{key}.parquet"
        content = read_checked(folder, file, record["sha256"].get(key, ""), expected="golden vectors")
        tables.append(parsed_parquet(content, join(folder, file)).read())
    rows, expected = tables
    return GoldenVectors(rows=rows, expected=expected, origin=GoldenOrigin(**record["made"]))
