"""Choose each column's encoding and codec by measuring candidates on a sample of its rows.

Runs where `optimize` is planned, on one thread. A candidate is written to memory and read back as the hot path reads
(`decode`), to codes where a reader may get codes. It costs, per value,

    decode time + bytes / bandwidth + 1 ns if it could come as a code, and does not (docs/decisions/0037)

The bandwidth per reading core is 2 GB/s for `decode`, 200 MB/s for `balanced`; for `size` only bytes count. A candidate
must be 3 % better than a simpler one, 0.2 % for `size`.

Candidates are dictionary and plain for every type; DELTA_BINARY_PACKED and BYTE_STREAM_SPLIT for integers, dates and
times; BYTE_STREAM_SPLIT for floats; DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY for strings and binary values; each
under zstd, lz4, snappy and none. Every encoding is measured under lz4 (for `size`: zstd), then the two best ones under
the other codecs.

Where readers take single pages (`page_rows`), pages are measured at that size, and a flat column of more distinct
values than a page has rows gets no dictionary: it would be read with every page, and is larger.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Collection, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.native import parquet as native
from feedline.progress import track
from feedline.warehouse.parquet.column_kinds import ColumnKind
from feedline.warehouse.parquet.decode import DecodeRequest, FileDecoder, FileVersion, kernel_refusal
from feedline.warehouse.parquet.footer import open_parquet
from feedline.warehouse.parquet.schemas import is_list, nested_like
from feedline.warehouse.parquet.writer import DICTIONARY, PLAIN, Encoding, leaf_paths, writer_options
from feedline.warehouse.storage.file_identity import Stamp

Goal = Literal["decode", "balanced", "size"]
GOALS: tuple[Goal, ...] = ("decode", "balanced", "size")
NS_PER_BYTE: dict[Goal, float] = {"decode": 0.5, "balanced": 5.0, "size": 1e9}
CODECS = ("zstd", "lz4", "snappy", "none")
_BY_PHYSICAL = {
    "INT32": (DICTIONARY, PLAIN, "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"),
    "INT64": (DICTIONARY, PLAIN, "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"),
    "FLOAT": (DICTIONARY, PLAIN, "BYTE_STREAM_SPLIT"),
    "DOUBLE": (DICTIONARY, PLAIN, "BYTE_STREAM_SPLIT"),
    "BYTE_ARRAY": (DICTIONARY, PLAIN, "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"),
    "FIXED_LEN_BYTE_ARRAY": (DICTIONARY, PLAIN),
    "BOOLEAN": (PLAIN, "RLE"),
}
_FINALISTS = 2
_MARGIN: dict[Goal, float] = {"decode": 0.97, "balanced": 0.97, "size": 0.998}
_REPEATS, _REPEATS_LATER, _ENOUGH_S = 3, 7, 0.02
_CHUNK_ROWS = 32_768  # rows decoded at once, as blocks read lists
_USUAL_DICTIONARY_BYTES = 1 << 20
_OP_NS = 1.0  # measured: `modulo` on lists 0.9, `hash_bucket` on strings 1.3
_COLUMN_BYTES = 8 << 20  # a column's decoded sample: enough for a steady ratio; 40 candidates take a second


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingCost:
    """One leaf under one encoding and codec: its values in the sample, their bytes, and the time to decode one.

    op_ns: what an op costs more on a value than on codes, if a reader could get codes and does not.
    """

    column: str
    leaf: str
    encoding: str
    codec: str
    values: int
    bytes: int
    ns_per_value: float
    op_ns: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best encoding of a leaf, and the usual writer's default (dictionary, zstd, nullable) for comparison."""

    chosen: EncodingCost
    default: EncodingCost

    @property
    def encoding(self) -> Encoding:
        return Encoding(leaf=self.chosen.leaf, encoding=self.chosen.encoding, codec=self.chosen.codec)


def decoder_name() -> str:
    """The decoder that encodings are measured with in this process, and its version."""
    return f"pyarrow {pa.__version__}" if kernel_refusal() else f"kernel {native.VERSION}"


def choose(
    sample: pa.Table,
    goal: Goal,
    *,
    repeated: Collection[str] = (),
    page_rows: int | None = None,
    timed: bool = True,
) -> list[Choice]:
    """Choose the encoding of every leaf of a sample of rows by measurement; leaves in the file's order.

    The sample has the target's schema and its rows the target's order. The leaves of one column (a struct, a map) are
    chosen one after the other, each measured with the whole column. repeated: columns that are stored once per run, of
    which readers get values, not codes. page_rows: of every page (default: as pyarrow's writer ends pages). timed:
    whether decoding is timed; for `size`, which looks at bytes only, it need not be.
    """
    assert timed or goal == "size"
    choices: list[Choice] = []
    names = sample.schema.names
    for name in track(names, "measuring encodings", [1] * len(names), "columns"):
        column = sample.select([name])
        rows = max(1, int(sample.num_rows * min(1.0, _COLUMN_BYTES / max(column.nbytes, 1))))
        column = column.slice(0, rows).combine_chunks()
        choices += _choose_column(column, goal, name not in repeated, page_rows, timed=timed)
    return choices


def _choose_column(column: pa.Table, goal: Goal, codes: bool, page_rows: int | None, *, timed: bool) -> list[Choice]:
    paths = leaf_paths(column.schema)
    encodings = {path: Encoding(leaf=path, encoding=DICTIONARY, codec="zstd") for path in paths}
    nullable = pa.schema([_nullable(field) for field in column.schema])
    [field], [values] = nullable, column.columns
    values = values if values.type == field.type else values.cast(field.type)  # pyarrow casts no vectors to themselves
    defaults = _measure(
        pa.Table.from_arrays([values], schema=nullable),
        list(encodings.values()),
        _REPEATS if timed else 0,
        codes,
        usual=True,
    )
    choices = []
    for path, physical in paths.items():
        candidates = _BY_PHYSICAL[physical] if defaults[path].values else _BY_PHYSICAL[physical][:1]
        if page_rows and not pa.types.is_nested(field.type) and len(values.unique()) > page_rows:
            candidates = tuple(one for one in candidates if one != DICTIONARY)
        best = _best(column, encodings, path, candidates, goal, codes, page_rows, timed=timed)
        encodings[path] = Encoding(leaf=path, encoding=best.encoding, codec=best.codec)
        choices.append(Choice(chosen=best, default=defaults[path]))
    return choices


def _best(
    column: pa.Table,
    encodings: dict[str, Encoding],
    path: str,
    candidates: Sequence[str],
    goal: Goal,
    codes: bool,
    page_rows: int | None,
    *,
    timed: bool,
) -> EncodingCost:
    """The best candidate for one leaf, with the current encodings of the other leaves."""

    def trial(encoding: str, codec: str, repeats: int) -> EncodingCost:
        trials = {**encodings, path: Encoding(leaf=path, encoding=encoding, codec=codec)}
        return _measure(column, list(trials.values()), repeats if timed else 0, codes, page_rows=page_rows)[path]

    first = "zstd" if goal == "size" else "lz4"
    repeats = 1 if goal == "size" else _REPEATS
    costs = [trial(encoding, first, repeats) for encoding in candidates]
    if len(costs) == 1:
        return costs[0]
    costs.sort(key=lambda one: cost(one, goal))
    if goal != "size":
        for one in costs[:_FINALISTS]:
            costs += [trial(one.encoding, codec, _REPEATS) for codec in CODECS if codec != first]
        costs.sort(key=lambda one: cost(one, goal))
    near = [one for one in costs[1:] if _MARGIN[goal] * cost(one, goal) <= cost(costs[0], goal)]
    finalists = [costs[0], *sorted(near, key=_simplicity)[:_FINALISTS]]
    again = (trial(one.encoding, one.codec, _REPEATS_LATER) for one in finalists) if timed else finalists
    finalists = sorted(again, key=_simplicity)
    best = finalists[0]
    for one in finalists[1:]:
        if cost(one, goal) < _MARGIN[goal] * cost(best, goal):
            best = one
    return best


def cost(one: EncodingCost, goal: Goal) -> float:
    """The cost in ns per value: decoding, fetching at the goal's bandwidth, and what an op costs more on values."""
    # 3 ns to decode and 2 bytes a value, for `decode` -> 3 + 2 * 0.5 = 4 ns
    if goal == "size":  # the same choice in every run, whatever was measured
        return NS_PER_BYTE[goal] * one.bytes / max(one.values, 1)
    return one.ns_per_value + one.op_ns + NS_PER_BYTE[goal] * one.bytes / max(one.values, 1)


def _simplicity(one: EncodingCost) -> tuple[int, int]:
    """The order among equals: plain, then dictionary, then the rest; fewer bytes first."""
    simple = (PLAIN, DICTIONARY)
    return simple.index(one.encoding) if one.encoding in simple else len(simple), one.bytes


def _measure(
    column: pa.Table,
    encodings: Sequence[Encoding],
    repeats: int,
    codes: bool,
    *,
    page_rows: int | None = None,
    usual: bool = False,
) -> dict[str, EncodingCost]:
    """Write the column and read it back `repeats` times (0: not at all); per leaf its bytes, and the whole column's
    time per value of that leaf."""
    sink, options = pa.BufferOutputStream(), writer_options(encodings, page_rows)
    if usual:
        options["dictionary_pagesize_limit"] = _USUAL_DICTIONARY_BYTES
    with pq.ParquetWriter(sink, column.schema, **options) as writer:
        writer.write_table(column, row_group_size=max(column.num_rows, 1))
    buffer = sink.getvalue()
    metadata = pq.read_metadata(pa.BufferReader(buffer))
    seconds, op_ns, sizes = 0.0, 0.0, [(0, 0)] * len(encodings)  # values and bytes of each chunk
    if metadata.num_row_groups:
        seconds, op_ns = _decode(buffer, metadata, repeats, codes) if repeats else (0.0, 0.0)
        chunks = [metadata.row_group(0).column(index) for index in range(metadata.num_columns)]
        sizes = [(chunk.num_values, chunk.total_compressed_size) for chunk in chunks]
    return {
        one.leaf: EncodingCost(
            column=column.schema.names[0],
            leaf=one.leaf,
            encoding=one.encoding,
            codec=one.codec,
            values=values,
            bytes=size,
            ns_per_value=seconds * 1e9 / max(values, 1),
            op_ns=op_ns,
        )
        for one, (values, size) in zip(encodings, sizes, strict=True)
    }


def _decode(buffer: pa.Buffer, metadata: pq.FileMetaData, repeats: int, codes: bool) -> tuple[float, float]:
    """The median CPU time of this thread to decode the row group (the machine may be busy), fewer repeats if long; and
    `EncodingCost.op_ns`.
    """
    parquet = open_parquet(pa.BufferReader(buffer), metadata, pre_buffer=False)
    [field], leaves = parquet.schema_arrow, range(metadata.num_columns)
    version = FileVersion(uri="the sample", stamp=Stamp(len(buffer), -1), footer_digest=b"", footer_bytes=0)
    decoder = FileDecoder(parquet.schema_arrow, {field.name: leaves}, metadata, version)
    worth = codes and _is_worth_codes(field.type) and isinstance(decoder.kind(0), ColumnKind)
    coded = dict.fromkeys(leaves, 0) if worth else {}
    request = DecodeRequest(row_group=0, leaves=leaves, chunk_rows=_CHUNK_ROWS, coded=coded)
    kind = field.type
    times: list[float] = []
    while len(times) < repeats and (len(times) < min(2, repeats) or sum(times) < _ENOUGH_S * repeats):
        start_s = time.thread_time()
        for decoded in decoder.batches(lambda: parquet, request, lambda start, stop: buffer.slice(start, stop - start)):
            kind = decoded.batch.schema.field(0).type
            del decoded  # its memory is free for the next one
        times.append(time.thread_time() - start_s)
    as_values = kind == field.type
    return statistics.median(times), _OP_NS if coded and as_values else 0.0


def _is_worth_codes(kind: pa.DataType) -> bool:
    """Whether pipelines read codes of such a column, whatever its ops: of lists and strings. Of flat numbers they do
    only for costly ops.
    """
    if is_list(kind):
        return not pa.types.is_nested(kind.value_type)
    return not (pa.types.is_primitive(kind) or pa.types.is_nested(kind))


def _nullable(field: pa.Field) -> pa.Field:
    """The field as most writers write it: nullable, its lists' elements too."""
    kind = field.type
    kind = nested_like(kind, [_nullable(kind.value_field)]) if is_list(kind) else kind
    return pa.field(field.name, kind, nullable=True)
