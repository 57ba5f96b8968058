"""Choose the Parquet columns to decode for columns and column parts, and build the requested fields from them.

Runs in every process that reads, on the calling thread; `part_bytes` where a plan is made. Pure, over Arrow arrays.
Each file has its own `FileColumns`: of a struct only the needed fields are decoded; a map is decoded whole, unless all
its requested keys have columns of their own (`column_parts.flattened_name`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, DataError
from feedline.expressions.column_parts import (
    ColumnPart,
    PartTree,
    flattened_column,
    flattened_name,
    has_column,
    part_of,
)
from feedline.expressions.extraction import Keys, extract_parts
from feedline.warehouse.parquet.column_chunk import code_type
from feedline.warehouse.parquet.decode import DecodedRows
from feedline.warehouse.parquet.footer import ChunkFacts
from feedline.warehouse.parquet.schemas import child_fields, conform, is_text, is_unchecked, leaf_count
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.faults import label

# --------------------------------------------------------------------------------------------------------------------
# Take dictionary arrays apart into codes and values, and expand codes to the values that they stand for. Pure; runs
# wherever rows are read or computed. Strings are views: expanding codes copies 16 bytes per value, a fraction of what
# decoding the values takes. Expanding numbers takes as long as decoding them.


def is_coded(kind: pa.DataType) -> bool:
    """Whether a type is that of codes, or of lists of them."""
    return isinstance(kind.value_type if isinstance(kind, pa.ListType | pa.LargeListType) else kind, pa.DictionaryType)


def split_codes(array: pa.Array) -> tuple[pa.Array, pa.Array] | None:
    """The codes and the dictionary of a dictionary array; of lists of such, lists of codes; of all else None."""
    if isinstance(array, pa.DictionaryArray):
        return array.indices, array.dictionary
    if not is_coded(array.type):
        return None
    return with_elements(array, array.values.indices), array.values.dictionary


def with_elements(lists: pa.Array, elements: pa.Array) -> pa.Array:
    """The lists with other elements in the place of theirs."""
    kind = pa.large_list(elements.type) if pat.is_large_list(lists.type) else pa.list_(elements.type)
    return pa.Array.from_buffers(kind, len(lists), lists.buffers()[:2], lists.null_count, lists.offset, [elements])


def expand_codes(frame: pl.DataFrame, dictionaries: Mapping[str, pa.Array]) -> pl.DataFrame:
    """Replace the codes of these columns by the values that they stand for."""
    expanded = [expand_series(frame.get_column(name), values) for name, values in dictionaries.items()]
    return frame.with_columns(expanded) if expanded else frame


def expand_series(codes: pl.Series, dictionary: pa.Array) -> pl.Series:
    """The values of codes, or of lists of these, under the name of the codes."""
    # Of strings, Arrow makes the views with the interpreter's lock released; Polars would hold it.
    values = pl.Series(dictionary.cast(pa.string_view()) if is_text(dictionary.type) else dictionary)
    if not isinstance(codes.dtype, pl.List):
        return values.gather(codes).alias(codes.name)
    array = codes.rechunk().to_arrow()
    kind = pa.large_list(values.to_arrow().type)
    flat = values.gather(pl.Series(array.values)).to_arrow()
    lists = pa.Array.from_buffers(kind, len(array), array.buffers()[:2], array.null_count, array.offset, [flat])
    return pl.Series(codes.name, lists)


def expanded_frame(data: pa.RecordBatch, names: Sequence[str]) -> pl.DataFrame:
    """These columns with values. Dictionary arrays are columns of codes."""
    data = data.select(names)
    arrays, dictionaries = [], {}
    for name, array in zip(names, data.columns, strict=True):
        parts = split_codes(array)
        if parts is not None:
            array, dictionaries[name] = parts
        arrays.append(array)
    frame = pl.from_arrow(pa.RecordBatch.from_arrays(arrays, names=list(names)) if dictionaries else data)
    assert isinstance(frame, pl.DataFrame)
    return expand_codes(frame, dictionaries)


# --------------------------------------------------------------------------------------------------------------------

_ENTRIES = 4_000_000  # map entries decoded at once: keys, values and their indices take about 100 MB
_LEAST_ROWS = 1024
_VALUES = 1 << 27  # values of a column of lists that is repeated, in one chunk: its offsets are 32 bits wide
CHUNK_ROWS = 32_768  # rows read and transformed at once: unlike a row group's, their columns stay in the caches
_CHUNK_BYTES = 128 * 2**20  # of the values of a larger chunk: each column of a chunk costs a quarter of a millisecond
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}  # bytes of a value in memory
_WIDTHS |= {"BYTE_ARRAY": 16, "FIXED_LEN_BYTE_ARRAY": 16}
_DICTIONARY = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_AS_DICTIONARY = _DICTIONARY | {"PLAIN", "RLE", "BIT_PACKED"}  # all that pyarrow can read as a dictionary


@dataclass(frozen=True, slots=True)
class _Source:
    """The origin of a field: a partition key, or a stored column and the keys within it (None: nulls).

    `doubled`: the map's column and keys, if the file has a column for the key but the map is read as well.
    """

    field: pa.Field
    key: bool = False
    column: str | None = None
    keys: Keys = ()
    doubled: tuple[str, Keys] | None = None

    @property
    def inputs(self) -> list[tuple[str, Keys]]:
        """The stored columns, each with the keys within it, that are read."""
        read = [] if self.column is None else [(self.column, self.keys)]
        return read if self.doubled is None else [*read, self.doubled]


class FileColumns:
    """The stored columns of one file from which `fields` are built: columns and parts, in the table's types.

    `stored`: the file's columns, each with its range of Parquet columns. `keys`: those of its partition. `leaves`: the
    Parquet columns to decode. Files of the same columns, and keys, share one.
    """

    def __init__(
        self,
        fields: Sequence[pa.Field],
        schema: pa.Schema,
        stored: Mapping[str, range],
        file_schema: pa.Schema,
        keys: Collection[str],
    ) -> None:
        self._schema = pa.schema(fields)
        self._stored = stored
        self._file_schema = file_schema
        self._trees: dict[str, PartTree] = {}
        sources = [_source(field, schema, stored, keys) for field in fields]
        for source in sources:
            if source.column is not None:
                self._trees.setdefault(source.column, PartTree()).add(source.keys)
        self._sources = [self._find_doubled(source) for source in sources]
        self.leaves: list[int] = []
        self._map_keys: list[tuple[int, bool]] = []
        self._keyed: dict[str, list[int]] = {}  # the leaves of those keys, by column
        for name in list(self._trees):
            first_leaf, first_key = len(self.leaves), len(self._map_keys)
            self._pick(file_schema.field(name).type, stored[name].start, self._trees[name])
            if len(self.leaves) == first_leaf:  # a struct that has none of the fields
                del self._trees[name]
            self._keyed[name] = [leaf for leaf, _ in self._map_keys[first_key:]]
        # Decoded in the table's type already, and needing no check: most columns of most files.
        self._plain = {
            source.column
            for source in self._sources
            if source.column in self._trees
            and source.column == source.field.name
            and not self._trees[source.column].parts
            and file_schema.field(source.column).type == source.field.type
            and not is_unchecked(source.field.type)
        }
        self._codable = self._find_codable()
        # Whether each field is a column of its own, as it is stored; and those that are only so as codes.
        self._is_direct = len(self._codable) == len(self._sources)
        self._checked = {field.name for field in fields}.difference(self._plain)

    def are_direct(self, decoded: DecodedRows) -> bool:
        """Whether the fields are the decoded columns, and no others, with nothing to build, cast or check."""
        return self._is_direct and not decoded.arrays and self._checked <= decoded.dictionaries.keys()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._trees)

    def field(self, name: str) -> pa.Field:
        return self._schema.field(name)

    def inputs(self) -> dict[str, frozenset[str]]:
        """The stored columns from which each field is built, and checked."""
        return {
            source.field.name: frozenset(column for column, _ in source.inputs if column in self._trees)
            for source in self._sources
        }

    def coded_leaves(self, names: Mapping[str, int]) -> dict[int, int]:
        """The Parquet columns of those of these columns that may be delivered as codes: stored in the table's type, and
        read for nothing else. With the numbers given for them."""
        return {leaf: names[name] for name, leaf in self._codable.items() if name in names}

    def only(self, names: Collection[str]) -> FileColumns:
        """The same for some of the fields. Each is built, and checked, as it is among all of them."""
        part = copy.copy(self)
        part._sources = [source for source in self._sources if source.field.name in names]
        part._schema = pa.schema([source.field for source in part._sources])
        part._trees = {}
        for source in part._sources:
            for column, keys in source.inputs:
                if column in self._trees:
                    part._trees.setdefault(column, PartTree()).add(keys)
        part._codable = part._find_codable()
        return part

    def dictionaries(self, metadata: pq.FileMetaData, row_groups: Iterable[int]) -> list[str]:
        """Return the paths of map keys to read as dictionaries: 9 million keys decode in 0.15 s instead of 0.8 s."""
        groups = [metadata.row_group(index) for index in row_groups]
        keys = []
        for leaf in [leaf for leaf, as_dictionary in self._map_keys if as_dictionary]:
            encodings = [set(group.column(leaf).encodings) for group in groups]
            if encodings and all(each & _DICTIONARY and each <= _AS_DICTIONARY for each in encodings):
                keys.append(metadata.schema.column(leaf).path)
        paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)] if keys else []
        return [path for path in keys if paths.count(path) == 1]  # with dots in names, two columns can have one path

    def chunk_rows(
        self,
        row_group: pq.RowGroupMetaData,
        most: int,
        copies: Mapping[str, float] | None = None,
        built: Collection[str] = (),
    ) -> int:
        """Return how many rows to decode at once: `most`, or fewer if rows have thousands of map entries, or lists that
        are repeated thousands of values.

        copies: how often a stored column's entries are in memory once it is repeated (default: once). built: the
        columns whose map entries are read before they are repeated.
        """
        entries = max(
            (
                int(row_group.column(leaf).num_values * (1 if column in built else (copies or {}).get(column, 1)))
                for column, leaves in self._keyed.items()
                for leaf in leaves
            ),
            default=0,
        )
        if entries > _ENTRIES:
            most = min(most, max(_LEAST_ROWS, _ENTRIES * row_group.num_rows // entries))
        for column, count in (copies or {}).items():
            values = max(int(row_group.column(leaf).num_values * count) for leaf in self._stored[column])
            most = max(1, min(most, _VALUES * row_group.num_rows // max(values, 1)))
        return most

    def narrow_rows(self, rows: int, chunks: Iterable[ChunkFacts], most: int) -> int:
        """Return how many rows to decode at once: `most`, or of wide rows CHUNK_ROWS. rows, chunks: of a row group."""
        size = sum([facts.values * _WIDTHS[facts.physical] for facts in chunks])
        return max(CHUNK_ROWS, min(most, _CHUNK_BYTES * rows // max(size, 1)))

    def batch(
        self,
        decoded: pa.RecordBatch,
        uri: str,
        row_group: int,
        partition: Mapping[str, object],
        rows: int | None = None,
        coded: Collection[str] = (),
    ) -> pa.RecordBatch:
        """Build the fields from a batch of the file's columns as they are decoded. partition: the values of its keys.
        rows: those of a batch without columns. coded: columns that may be dictionary arrays, or lists of them, and stay
        so; the batch then has the names of the fields alone.

        Raises CorruptFileError for invalid values, DataError for values that do not fit the table's types.
        """
        count = decoded.num_rows if rows is None else rows
        arrays_of_codes = {
            name: self._codes(name, array, uri, row_group)
            for name in coded
            if name in self._trees and is_coded((array := decoded.column(name)).type)
        }
        parts: dict[tuple[str, Keys], pa.Array] = {}
        for name, tree in self._trees.items():
            if name in self._plain or name in arrays_of_codes:
                continue
            array = _validate(decoded.column(name), name, uri, row_group)
            parts.update({(name, keys): part for keys, part in extract_parts(array, tree).items()})
        arrays = []
        for source in self._sources:
            if source.field.name in arrays_of_codes:
                arrays.append(arrays_of_codes[source.field.name])
            elif source.column in self._plain:
                arrays.append(decoded.column(source.column))
            elif source.key:
                constant = pa.scalar(partition[source.field.name], source.field.type)
                arrays.append(pa.repeat(constant, count))
            elif source.column not in self._trees:
                arrays.append(pa.nulls(count, source.field.type))
            else:
                array = parts[source.column, source.keys]
                if source.doubled is not None:
                    _refuse_doubled(source, array, parts[source.doubled], uri, row_group)
                arrays.append(_conform(array, source.field, uri, row_group))
        if not arrays_of_codes:
            return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return pa.RecordBatch.from_arrays(arrays, names=self._schema.names)

    def _codes(self, name: str, array: pa.Array, uri: str, row_group: int) -> pa.Array:
        """A column of codes as the kernel delivers it: checked, of 16 or 32 bits, into entries of the table's type.

        Those of a file's own dictionary type come from pyarrow, with codes of 8 to 64 bits and entries of the file's
        type.
        """
        if not is_coded(self._file_schema.field(name).type):
            return array
        field, is_flat = self._schema.field(name), isinstance(array, pa.DictionaryArray)
        values = array if is_flat else array.values
        entries = values.dictionary
        _validate(array, name, uri, row_group)
        if entries.null_count:  # which no code tells
            return _conform(array, field, uri, row_group)
        element = field.type if is_flat else field.type.value_type
        entries = _conform(entries, field.with_type(element), uri, row_group)
        codes = values.indices.cast(code_type(len(entries)))
        elements = pa.DictionaryArray.from_arrays(codes, entries, safe=False)
        return elements if is_flat else with_elements(array, elements)

    def _find_codable(self) -> dict[str, int]:
        readers = Counter(column for source in self._sources for column, _ in source.inputs)
        return {
            name: self._stored[name].start
            for source in self._sources
            if source.column == (name := source.field.name)
            and readers[name] == 1
            and name in self._trees
            and not self._trees[name].parts
            and self._file_schema.field(name).type == source.field.type
            and len(self._stored[name]) == 1
        }

    def _find_doubled(self, source: _Source) -> _Source:
        part = None if source.column == source.field.name else part_of(source.field.name)
        if part is None or source.column in (None, part.column) or not self._reads_keys(part.column):
            return source
        self._trees[part.column].add(part.keys)
        return _Source(source.field, column=source.column, keys=source.keys, doubled=(part.column, part.keys))

    def _reads_keys(self, column: str) -> bool:
        return column in self._trees and bool(self._trees[column].parts)

    def _pick(self, kind: pa.DataType, start: int, tree: PartTree) -> None:
        """Add the leaves that hold the parts in `tree` of a type whose first leaf is `start`."""
        if pat.is_map(kind):
            self.leaves.append(start)
            if tree.parts:
                self._map_keys.append((start, not tree.whole and is_text(kind.key_type)))
            below = PartTree(whole=tree.whole)
            for each in tree.parts.values():
                _join(below, each)
            self._pick(kind.item_type, start + leaf_count(kind.key_type), below)
        elif pat.is_struct(kind) and not tree.whole:
            for field in child_fields(kind):
                if field.name in tree.parts:
                    self._pick(field.type, start, tree.parts[field.name])
                start += leaf_count(field.type)
        else:
            self.leaves.extend(range(start, start + leaf_count(kind)))


def part_bytes(snapshot: Snapshot, names: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return the compressed bytes per row group of the columns that these columns and parts are read from.

    Exact for columns and map keys. A struct counts in full, whichever of its fields are read: an upper bound.
    """
    total = np.zeros(len(snapshot.rows_per_row_group), np.int64)
    for _, sizes in column_bytes(snapshot, names):
        total += sizes
    return total


def column_bytes(snapshot: Snapshot, names: Iterable[str]) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield each column that these columns and parts are read from, once, with its compressed bytes per row group.

    A map has no bytes in row groups where every requested key has a column of its own.
    """
    whole: set[str] = set()
    keyed: dict[str, set[str | None]] = {}
    for name in names:
        part = None if has_column(snapshot.schema, name) else part_of(name)
        if part is None:
            whole.add(name)
            continue
        if not has_column(snapshot.schema, part.column) or not pat.is_map(snapshot.schema.field(part.column).type):
            whole.add(flattened_column(snapshot.schema, part) or part.column)
            continue
        keyed.setdefault(part.column, set()).add(flattened_column(snapshot.schema, part))
    for column, flattened in keyed.items():
        if column in whole:
            whole.update(name for name in flattened if name is not None)
            continue
        unmapped = np.full(len(snapshot.rows_per_row_group), None not in flattened)
        for flat in flattened - {None}:
            assert flat is not None
            stored = _bytes(snapshot, flat)
            unmapped &= stored > 0
            if flat not in whole:
                yield flat, stored
        yield column, np.where(unmapped, 0, _bytes(snapshot, column))
    for name in whole.intersection(snapshot.partition_columns):
        yield name, _bytes(snapshot, name)
    yield from snapshot.column_parts(sorted(whole.difference(snapshot.partition_columns)), "bytes")


def _bytes(snapshot: Snapshot, name: str) -> npt.NDArray[np.int64]:
    if name in snapshot.partition_columns:
        return np.zeros(len(snapshot.rows_per_row_group), np.int64)
    return snapshot.column_part(name, "bytes")


def _source(field: pa.Field, schema: pa.Schema, stored: Mapping[str, range], keys: Collection[str]) -> _Source:
    if field.name in keys:
        return _Source(field, key=True)
    if has_column(schema, field.name):
        return _Source(field, column=field.name if field.name in stored else None)
    part = part_of(field.name)
    assert part is not None
    flattened = flattened_column(schema, part)
    if flattened is not None and flattened in stored:
        return _Source(field, column=flattened, keys=part.keys[1:])
    return _Source(field, column=part.column if part.column in stored else None, keys=part.keys)


def _join(into: PartTree, other: PartTree) -> None:
    into.whole |= other.whole
    for key, below in other.parts.items():
        _join(into.parts.setdefault(key, PartTree()), below)


def _validate(array: pa.Array, name: str, uri: str, row_group: int) -> pa.Array:
    """Return the array after the checks that pyarrow's reader omits."""
    if is_unchecked(array.type):
        try:
            array.validate(full=True)
        except (pa.ArrowInvalid, pa.ArrowIndexError) as error:
            raise CorruptFileError(
                f"column {name!r} of {label(uri, row_group)} is not valid Parquet: {error}. Restore or rewrite the file"
            ) from error
    return array


def is_same(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are views of the same memory."""
    places = [
        (len(array), array.offset, *(buffer and (buffer.address, buffer.size) for buffer in array.buffers()))
        for array in (one, other)
    ]
    return bool(one.type == other.type and places[0] == places[1])


def _conform(array: pa.Array, field: pa.Field, uri: str, row_group: int) -> pa.Array:
    if pat.is_null(array.type):
        return pa.nulls(len(array), field.type)
    try:
        return conform(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"column {field.name!r} of {label(uri, row_group)} does not fit the table's type: "
            f"got {array.type}, expected {field.type} ({error}). Rewrite the file"
        ) from error


def _refuse_doubled(source: _Source, array: pa.Array, doubled: pa.Array, uri: str, row_group: int) -> None:
    """Raise DataError where a map holds a value for a key whose own column is null."""
    assert source.doubled is not None
    column, keys = source.doubled
    if pc.any(pc.and_(array.is_null(), doubled.is_valid())).as_py():
        raise DataError(
            f"{ColumnPart(column, keys)} of {label(uri, row_group)} is stored twice: the map holds values where column "
            f"{flattened_name(column, keys[0])!r} is null. Keep each value in one of them, as feedline optimize does"
        )
