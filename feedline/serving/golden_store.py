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
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.artifacts.artifact_sets import ArtifactSetKey, safe_name
from feedline.artifacts.type_records import FOLDER
from feedline.errors import CorruptFileError, SpecError
from feedline.spec.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.ops import bind
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

FORMAT = 1


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
    name, location = _name(request, features), locate(absolute(folder))
    files = {"in": _parquet(golden.rows), "out": _parquet(golden.expected)}
    record = {
        "format": FORMAT,
        "features": {feature.name: features_id([feature]) for feature in features},
        "rows": golden.rows.num_rows,
        "sha256": {key: _digest(content) for key, content in files.items()},
        "real": golden.rows.num_rows,
        "made": asdict(golden.origin),
    }
    for key, content in files.items():
        content_store.put(location, f"{name}.{key}.parquet", [content])
    content_store.put(location, f"{name}.json", [json.dumps(record, indent=1).encode()])


def delete_golden(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> None:
    """Delete the vectors of these features, of every source: they may hold rows that must not be kept."""
    location, id = locate(absolute(folder)), features_id(features)
    for home in (_home(request.pipeline), FOLDER):
        for info in _list_files(location, home):
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
    it uses, and of earlier versions. None if there are none. Raises CorruptFileError if the files are not what was
    written; SpecError if they have another format.
    """
    location = locate(absolute(folder))
    ids = {feature.name: features_id([feature]) for feature in features}
    nearest: GoldenVectors | None = None
    for name in _names(location, request, features):
        record = _load_record(location, folder, name)
        if ids.items() <= record["features"].items():
            golden = _load_vectors(location, folder, name, record)
            if matches(golden):
                return golden
            nearest = nearest or golden
    return nearest


def _home(pipeline: str) -> str:
    return f"{FOLDER}/{safe_name(pipeline)}"


def _name(request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> str:
    return f"{_home(request.pipeline)}/{features_id(features)}-{request.source.id}"


def _names(location: Location, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> list[str]:
    """Names of the existing records, in order of preference: the one of exactly these features first."""
    ordered = []
    for home in dict.fromkeys((_home(request.pipeline), _home(request.owner), FOLDER)):
        names = [f"{home}/{info.base_name}" for info in _list_files(location, home) if info.base_name.endswith(".json")]
        names = sorted(name.removesuffix(".json") for name in names)
        ordered += sorted(names, key=lambda name: (name != _name(request, features), features_id(features) not in name))
    return ordered


def _list_files(location: Location, home: str) -> list[pafs.FileInfo]:
    selector = pafs.FileSelector(join(location.path, home), allow_not_found=True)
    infos: list[pafs.FileInfo] = with_retries(
        lambda: location.filesystem.get_file_info(selector), location.filesystem, redact(location.uri)
    )
    return infos


def _load_record(location: Location, folder: str, name: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(bytes(content_store.get(location, f"{name}.json")))
        form = record["format"]
        if form == FORMAT:
            GoldenOrigin(**record["made"])
            assert {"features", "sha256"} <= record.keys()
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise _altered_error(folder, f"{name}.json") from error
    if form != FORMAT:
        raise SpecError(
            f"the golden vectors {redact(join(folder, name))} have another format: got {form}, expected {FORMAT}. "
            "Write them again with `feedline fit`"
        )
    return record


def _load_vectors(location: Location, folder: str, name: str, record: Mapping[str, Any]) -> GoldenVectors:
    tables = {}
    for key in ("in", "out"):
        try:
            file = content_store.get(location, f"{name}.{key}.parquet")
        except FileNotFoundError as error:
            raise _altered_error(folder, f"{name}.{key}.parquet") from error
        if _digest(file) != record["sha256"][key]:
            raise _altered_error(folder, f"{name}.{key}.parquet")
        tables[key] = _table(file, folder, f"{name}.{key}.parquet")
    return GoldenVectors(rows=tables["in"], expected=tables["out"], origin=GoldenOrigin(**record["made"]))


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", use_dictionary=False)
    return sink.getvalue()


def _table(content: bytes | pa.Buffer, folder: str, name: str) -> pa.Table:
    try:
        return pq.ParquetFile(pa.BufferReader(content)).read()
    except (pa.ArrowException, OSError) as error:
        raise _altered_error(folder, name) from error


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.sha256(memoryview(content)).hexdigest()


def _altered_error(folder: str, name: str) -> CorruptFileError:
    return CorruptFileError(
        f"{redact(join(folder, name))} does not hold what was written: it is missing, truncated or altered. Write "
        "it again with `feedline fit`"
    )
