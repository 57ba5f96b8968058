"""What does serving keep beside the artifacts: the types of training's columns, and golden vectors?

Runs in: the process that fits and the processes that serve. In the folder of artifacts lie

    serving/columns.parquet       no rows: the table's columns, in the types that training saw
    serving/<features>.json       of some features: what their vectors are, who made them where, digests of both files
    serving/<features>.in.parquet, serving/<features>.out.parquet      rows, and what they became, bit by bit

`<features>` names the features by what pipeline.yaml says of them and by the versions of their ops. Files are proved by
their digests before they are used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.errors import CorruptFileError, SpecError
from feedline.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.registry import resolve
from feedline.warehouse import store
from feedline.warehouse.locations import absolute, join, locate, shown

FORMAT = 1
_FOLDER = "serving"
_COLUMNS = f"{_FOLDER}/columns.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """Rows of a table and what they became.

    rows: of the input. expected: what they became, as `feedline transform` writes it. real: how many of the rows are
    the table's; the others are made up. features: the fingerprint of what rows became. environment: versions and
    processor that computed it, by name. table, snapshot: where real rows come from.
    """

    rows: pa.Table
    expected: pa.Table
    real: int
    features: str
    environment: Mapping[str, str]
    table: str
    snapshot: str


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
    return None if call is None else resolve(call).identity


def save_columns(folder: str, schema: pa.Schema) -> None:
    """Keep the types of a table's columns."""
    store.put(locate(absolute(folder)), _COLUMNS, [_parquet(schema.remove_metadata().empty_table())])


def load_columns(folder: str) -> pa.Schema | None:
    """The types of the columns as the table had them at the last fit; None where there was none.

    Raises CorruptFileError.
    """
    try:
        content = store.get(locate(absolute(folder)), _COLUMNS)
    except FileNotFoundError:
        return None
    return _table(content, folder, _COLUMNS).schema.remove_metadata()


def save_golden(folder: str, features: Sequence[FeatureSpec], golden: Golden) -> None:
    """Keep vectors, in place of those of the same features."""
    name, location = f"{_FOLDER}/{features_id(features)}", locate(absolute(folder))
    files = {"in": _parquet(golden.rows), "out": _parquet(golden.expected)}
    record = {
        "format": FORMAT,
        "rows": {"all": golden.rows.num_rows, "real": golden.real},
        "features": golden.features,
        "names": [feature.name for feature in features],
        "environment": dict(golden.environment),
        "table": golden.table,
        "snapshot": golden.snapshot,
        "sha256": {key: _digest(content) for key, content in files.items()},
    }
    for key, content in files.items():
        store.put(location, f"{name}.{key}.parquet", [content])
    store.put(location, f"{name}.json", [json.dumps(record, indent=1).encode()])


def load_golden(folder: str, features: Sequence[FeatureSpec]) -> Golden | None:
    """The vectors of these features; None where there are none.

    Raises CorruptFileError where the files are not what was written; SpecError where they are of another format.
    """
    name, location = f"{_FOLDER}/{features_id(features)}", locate(absolute(folder))
    try:
        content = bytes(store.get(location, f"{name}.json"))
    except FileNotFoundError:
        return None
    try:
        record = json.loads(content)
        form, digests = record["format"], record["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise _altered(folder, f"{name}.json") from error
    if form != FORMAT:
        raise SpecError(
            f"the golden vectors {shown(join(folder, name))} are of another format: got {form}, expected {FORMAT}. "
            "Make them anew with `feedline fit`"
        )
    tables = {}
    for key in ("in", "out"):
        try:
            file = store.get(location, f"{name}.{key}.parquet")
        except FileNotFoundError as error:
            raise _altered(folder, f"{name}.{key}.parquet") from error
        if _digest(file) != digests[key]:
            raise _altered(folder, f"{name}.{key}.parquet")
        tables[key] = _table(file, folder, f"{name}.{key}.parquet")
    return Golden(
        rows=tables["in"],
        expected=tables["out"],
        real=record["rows"]["real"],
        features=record["features"],
        environment=record["environment"],
        table=record["table"],
        snapshot=record["snapshot"],
    )


def described(golden: Golden) -> dict[str, Any]:
    """The vectors in plain values, without the rows."""
    facts = {key: value for key, value in asdict(golden).items() if key not in ("rows", "expected")}
    return {"rows": golden.rows.num_rows, **facts}


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
        f"{shown(join(folder, name))} does not hold what was written: it is missing, truncated or altered. Make it "
        "anew with `feedline fit`"
    )
