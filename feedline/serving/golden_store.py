"""Keep golden vectors beside the artifacts, and find those of a pipeline.

Runs in: the process that fits and the processes that serve. In the folder of artifacts lie

    serving/<name>/<features>-<source>.json     of some features of a pipeline: what their vectors are, who made them
                                                where, digests of both files
    serving/<name>/<features>-<source>.in.parquet, ….out.parquet    rows, and what they became, bit by bit

`<features>` names the features by what pipeline.yaml says of them and by the versions of their ops, `<source>` what
their fits are learnt from. Vectors of more features prove fewer of them, too. Earlier versions kept theirs in `serving`
itself. Files are proved by their digests before they are used.
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

    fingerprints: of each feature alone, by its name. environment: versions and processor, by name. table, snapshot:
    where the rows of a table come from.
    """

    fingerprints: Mapping[str, str]
    environment: Mapping[str, str]
    table: str
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Rows and what they became, as `feedline transform` writes it.

    real: so many of them, from the first on, are a table's: all but in vectors of earlier versions.
    """

    rows: pa.Table
    expected: pa.Table
    real: int
    made: GoldenOrigin


def features_id(features: Sequence[FeatureSpec]) -> str:
    """A name for features, whatever the types of their columns and what was learnt."""
    content = [
        [feature.name, feature.group, *_source(feature), _op(feature.op), [_source(given) for given in feature.inputs]]
        for feature in features
    ]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:16]


def _source(given: FeatureSpec | FeatureInput) -> list[Any]:
    return [given.column, given.expr, [_op(call) for call in given.ops]]


def _op(call: OpCall | None) -> Any:
    return None if call is None else bind(call).identity


def save_golden(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec], golden: Golden) -> None:
    """Keep vectors, in place of those of the same features and source."""
    name, location = _name(request, features), locate(absolute(folder))
    files = {"in": _parquet(golden.rows), "out": _parquet(golden.expected)}
    record = {
        "format": FORMAT,
        "features": {feature.name: features_id([feature]) for feature in features},
        "rows": golden.rows.num_rows,
        "sha256": {key: _digest(content) for key, content in files.items()},
        "real": golden.real,
        "made": asdict(golden.made),
    }
    for key, content in files.items():
        content_store.put(location, f"{name}.{key}.parquet", [content])
    content_store.put(location, f"{name}.json", [json.dumps(record, indent=1).encode()])


def forget_golden(folder: str, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> None:
    """Delete the vectors of these features, whatever their source: they may hold rows that must not be kept."""
    location, id = locate(absolute(folder)), features_id(features)
    for home in (_home(request.pipeline), FOLDER):
        for info in _listed(location, home):
            if info.is_file and re.split(r"[-.]", info.base_name)[0] == id:
                location.filesystem.delete_file(info.path)


def load_golden(
    folder: str,
    request: ArtifactSetKey,
    features: Sequence[FeatureSpec],
    proves: Callable[[Golden], bool] = lambda golden: True,
) -> Golden | None:
    """The vectors of these features, or of these and others: those that prove what is there, else the nearest.

    The pipeline's own, those of the same source first; then those of the pipeline whose fits it uses, and of earlier
    versions. None where there are none. Raises CorruptFileError where the files are not what was written; SpecError
    where they are of another format.
    """
    location = locate(absolute(folder))
    wanted = {feature.name: features_id([feature]) for feature in features}
    nearest: Golden | None = None
    for name in _names(location, request, features):
        record = _record(location, folder, name)
        if wanted.items() <= record["features"].items():
            golden = _golden(location, folder, name, record)
            if proves(golden):
                return golden
            nearest = nearest or golden
    return nearest


def _home(pipeline: str) -> str:
    return f"{FOLDER}/{safe_name(pipeline)}"


def _name(request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> str:
    return f"{_home(request.pipeline)}/{features_id(features)}-{request.source.id}"


def _names(location: Location, request: ArtifactSetKey, features: Sequence[FeatureSpec]) -> list[str]:
    """The records there are, in the order in which they count: the one of exactly these features first."""
    found = []
    for home in dict.fromkeys((_home(request.pipeline), _home(request.owner), FOLDER)):
        names = [f"{home}/{info.base_name}" for info in _listed(location, home) if info.base_name.endswith(".json")]
        names = sorted(name.removesuffix(".json") for name in names)
        found += sorted(names, key=lambda name: (name != _name(request, features), features_id(features) not in name))
    return found


def _listed(location: Location, home: str) -> list[pafs.FileInfo]:
    selector = pafs.FileSelector(join(location.path, home), allow_not_found=True)
    infos: list[pafs.FileInfo] = with_retries(
        lambda: location.filesystem.get_file_info(selector), location.filesystem, redact(location.uri)
    )
    return infos


def _record(location: Location, folder: str, name: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(bytes(content_store.get(location, f"{name}.json")))
        form = record["format"]
        if form == FORMAT:
            GoldenOrigin(**record["made"])
            assert {"features", "sha256", "real"} <= record.keys()
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise _altered(folder, f"{name}.json") from error
    if form != FORMAT:
        raise SpecError(
            f"the golden vectors {redact(join(folder, name))} are of another format: got {form}, expected {FORMAT}. "
            "Make them anew with `feedline fit`"
        )
    return record


def _golden(location: Location, folder: str, name: str, record: Mapping[str, Any]) -> Golden:
    tables = {}
    for key in ("in", "out"):
        try:
            file = content_store.get(location, f"{name}.{key}.parquet")
        except FileNotFoundError as error:
            raise _altered(folder, f"{name}.{key}.parquet") from error
        if _digest(file) != record["sha256"][key]:
            raise _altered(folder, f"{name}.{key}.parquet")
        tables[key] = _table(file, folder, f"{name}.{key}.parquet")
    return Golden(rows=tables["in"], expected=tables["out"], real=record["real"], made=GoldenOrigin(**record["made"]))


def _parquet(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", use_dictionary=False)
    return sink.getvalue()


def _table(content: bytes | pa.Buffer, folder: str, name: str) -> pa.Table:
    try:
        return pq.ParquetFile(pa.BufferReader(content)).read()
    except (pa.ArrowException, OSError) as error:
        raise _altered(folder, name) from error


def _digest(content: bytes | pa.Buffer) -> str:
    return hashlib.sha256(memoryview(content)).hexdigest()


def _altered(folder: str, name: str) -> CorruptFileError:
    return CorruptFileError(
        f"{redact(join(folder, name))} does not hold what was written: it is missing, truncated or altered. Make it "
        "anew with `feedline fit`"
    )
