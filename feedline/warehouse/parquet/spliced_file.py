"""Join row groups of Parquet files of one layout into a file, without decoding them.

Pure, but for the bytes that it is handed and hands on; runs where files are rewritten in part. The pages of a row
group, its bloom filters and its page index are copied as they are; only the offsets in footer and page index change
(FileMetaData and OffsetIndex of parquet-format's `parquet.thrift`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from feedline.dataclass import dataclass
from feedline.warehouse.parquet.bloom import header_of
from feedline.warehouse.parquet.thrift_fields import (
    Field,
    Fields,
    binary,
    bytes_of,
    fields_of,
    i16,
    i32,
    i64,
    items_of,
    list_of,
    number_of,
    structure,
    structure_of_fields,
)

MAGIC = b"PAR1"
_COPY_BYTES = 8 << 20
_BLOOM_HEADER_BYTES = 64

# ids of fields of FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and SchemaElement
_SCHEMA, _NUM_ROWS, _ROW_GROUPS, _NOTES = 2, 3, 4, 5
_COLUMNS, _GROUP_ROWS, _SORTING, _GROUP_OFFSET, _ORDINAL = 1, 3, 4, 5, 7
_PATH, _CHUNK_OFFSET, _META = 1, 2, 3
_OFFSET_INDEX, _COLUMN_INDEX = (4, 5), (6, 7)  # offset and length
_NAMES, _COMPRESSED_BYTES, _BLOOM, _BLOOM_BYTES = 3, 7, 14, 15
_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE = 9, 10, 11
_LAYOUT = (1, 2, 3, 5)  # physical type, its length, repetition, children

ReadAt = Callable[[int, int], bytes]  # bytes and offset
Write = Callable[[bytes], object]


class Part(NamedTuple):
    """A row group to copy: of which source, and its index there. origin: the row group of the first source that it has
    rows of, whose order of rows is noted for it."""

    source: int
    row_group: int
    origin: int


@dataclass(frozen=True, slots=True)
class Source:
    """A file to copy row groups of. footer: without its trailer."""

    footer: bytes
    read_at: ReadAt

    def row_groups(self) -> list[bytes]:
        return items_of(fields_of(self.footer).get(_ROW_GROUPS))


def is_copyable(footer: bytes) -> bool:
    """Whether the column chunks of a file's row groups lie in that file, each where its footer says."""
    for group in items_of(fields_of(footer).get(_ROW_GROUPS)):
        for chunk in items_of(fields_of(group).get(_COLUMNS)):
            fields = fields_of(chunk)
            if _PATH in fields or _META not in fields:
                return False
    return True


def have_same_layout(one: bytes, other: bytes) -> bool:
    """Whether the row groups of two footers store the same columns alike: physical types, nesting and nullability."""
    layouts = []
    for footer in (one, other):
        root, *elements = items_of(fields_of(footer).get(_SCHEMA))
        children = number_of(fields_of(root).get(_LAYOUT[-1]))
        own = [fields_of(element) for element in elements]
        layouts.append((children, [[number_of(fields.get(number)) for number in _LAYOUT] for fields in own]))
    return layouts[0] == layouts[1]


def notes_of(footer: bytes) -> dict[bytes, bytes]:
    """The key-value metadata of a footer."""
    pairs = [fields_of(pair) for pair in items_of(fields_of(footer).get(_NOTES))]
    return {bytes_of(pair.get(1)): bytes_of(pair.get(2)) for pair in pairs}


def splice(
    sources: Sequence[Source], parts: Sequence[Part], notes: Mapping[bytes, bytes], write: Write, *, like: int = 0
) -> list[int]:
    """Write a file of these row groups, in their order; returns the bytes that were copied from each source.

    like: the source whose schema, names of columns, version and other facts the file has. notes: the key-value
    metadata. Raises MalformedError for a footer that cannot be taken apart.
    """
    writer = _Writer(write)
    groups = [source.row_groups() for source in sources]
    copied = [0] * len(sources)
    names = _names_of(groups[like])
    placed: list[tuple[Source, dict[int, Field], list[dict[int, Field]]]] = []
    for ordinal, part in enumerate(parts):
        source, group = sources[part.source], fields_of(groups[part.source][part.row_group])
        before = writer.position
        chunks = _copy_pages(writer, source, items_of(group.get(_COLUMNS)), names)
        group.pop(_SORTING, None)
        order = fields_of(groups[0][part.origin]).get(_SORTING)
        if order is not None and not like:  # it names columns by their places
            group[_SORTING] = order
        copied[part.source] += writer.position - before
        if _GROUP_OFFSET in group:
            group[_GROUP_OFFSET] = i64(before)
        if _ORDINAL in group:
            group[_ORDINAL] = i16(ordinal)
        placed.append((source, group, chunks))
    for copy in (_copy_bloom_filter, _copy_column_index, _copy_offset_index):
        for source, _, chunks in placed:
            for chunk in chunks:
                copy(writer, source, chunk)
    rows = 0
    for _, group, chunks in placed:
        group[_COLUMNS] = list_of([structure_of_fields(_without_shift(chunk)) for chunk in chunks])
        rows += number_of(group.get(_GROUP_ROWS))
    footer = fields_of(sources[like].footer)
    footer[_NUM_ROWS] = i64(rows)
    footer[_ROW_GROUPS] = list_of([structure_of_fields(group) for _, group, _ in placed])
    pairs = [structure_of_fields({1: binary(key), 2: binary(value)}) for key, value in notes.items()]
    footer.pop(_NOTES, None)
    if pairs:
        footer[_NOTES] = list_of(pairs)
    writer.end(structure_of_fields(footer))
    return copied


class _Writer:
    """Counts what is written, and copies from files."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self.position = 0
        self.write(MAGIC)

    def write(self, content: bytes) -> int:
        """Write and return where it begins."""
        start = self.position
        self._write(content)
        self.position += len(content)
        return start

    def copy(self, source: Source, start: int, nbytes: int) -> int:
        """Copy and return where it begins. Raises OSError where the source has fewer bytes."""
        first = self.position
        for offset in range(start, start + nbytes, _COPY_BYTES):
            size = min(_COPY_BYTES, start + nbytes - offset)
            content = source.read_at(size, offset)
            if len(content) != size:
                raise OSError(f"file ends too early: got {len(content)} bytes at {offset}, expected {size}")
            self.write(content)
        return first

    def end(self, footer: bytes) -> None:
        self.write(footer + len(footer).to_bytes(4, "little") + MAGIC)


_SHIFT = -1  # not an id of the format: by how much a chunk has moved, while it is copied


def _copy_pages(
    writer: _Writer, source: Source, chunks: Sequence[bytes], names: Sequence[Field]
) -> list[dict[int, Field]]:
    """Copy the pages of column chunks; returns their fields as they are in the new file."""
    all_fields = [fields_of(chunk) for chunk in chunks]
    metas = [fields_of(fields[_META].content) for fields in all_fields]
    starts = [_start_of(meta) for meta in metas]
    for leaf in sorted(range(len(chunks)), key=starts.__getitem__):  # as they lie, so that reading is sequential
        fields, meta = all_fields[leaf], metas[leaf]
        shift = writer.copy(source, starts[leaf], number_of(meta.get(_COMPRESSED_BYTES))) - starts[leaf]
        for number in (_DATA_PAGE, _INDEX_PAGE, _DICTIONARY_PAGE):
            if number_of(meta.get(number)) > 0:
                meta[number] = i64(number_of(meta[number]) + shift)
        meta[_NAMES] = names[leaf] if names else meta[_NAMES]
        if number_of(fields.get(_CHUNK_OFFSET)) > 0:
            fields[_CHUNK_OFFSET] = i64(number_of(fields[_CHUNK_OFFSET]) + shift)
        fields[_META] = structure(meta)
        fields[_SHIFT] = i64(shift)
    return all_fields


def _start_of(meta: Fields) -> int:
    places = [number_of(meta.get(number)) for number in (_DICTIONARY_PAGE, _INDEX_PAGE, _DATA_PAGE)]
    return min(place for place in places if place > 0)


def _names_of(groups: Sequence[bytes]) -> list[Field]:
    """The path of each leaf column, as the file's row groups have it; empty without row groups."""
    chunks = items_of(fields_of(groups[0]).get(_COLUMNS)) if groups else []
    return [fields_of(fields_of(chunk)[_META].content)[_NAMES] for chunk in chunks]


def _copy_bloom_filter(writer: _Writer, source: Source, chunk: dict[int, Field]) -> None:
    meta = fields_of(chunk[_META].content)
    start, nbytes = number_of(meta.get(_BLOOM)), number_of(meta.get(_BLOOM_BYTES))
    if start > 0 and not nbytes:  # older writers do not store it
        bitset = header_of(source.read_at(_BLOOM_HEADER_BYTES, start))
        nbytes = bitset[1] if bitset else 0
    meta.pop(_BLOOM, None)
    meta.pop(_BLOOM_BYTES, None)
    if start > 0 and nbytes:
        meta[_BLOOM], meta[_BLOOM_BYTES] = i64(writer.copy(source, start, nbytes)), i32(nbytes)
    chunk[_META] = structure(meta)


def _copy_column_index(writer: _Writer, source: Source, chunk: dict[int, Field]) -> None:
    place = _take_place(chunk, _COLUMN_INDEX)
    if place is not None:
        chunk |= _placed(_COLUMN_INDEX, writer.copy(source, *place), place[1])


def _copy_offset_index(writer: _Writer, source: Source, chunk: dict[int, Field]) -> None:
    place = _take_place(chunk, _OFFSET_INDEX)
    if place is None:
        return
    shift = number_of(chunk[_SHIFT])
    index = fields_of(source.read_at(place[1], place[0]))
    pages = [fields_of(page) for page in items_of(index.get(1))]
    moved = [structure_of_fields({**page, 1: i64(number_of(page.get(1)) + shift)}) for page in pages]
    content = structure_of_fields({**index, 1: list_of(moved)})
    chunk |= _placed(_OFFSET_INDEX, writer.write(content), len(content))


def _take_place(chunk: dict[int, Field], numbers: tuple[int, int]) -> tuple[int, int] | None:
    start, nbytes = (number_of(chunk.pop(number, None)) for number in numbers)
    return (start, nbytes) if start > 0 and nbytes > 0 else None


def _placed(numbers: tuple[int, int], start: int, nbytes: int) -> dict[int, Field]:
    return {numbers[0]: i64(start), numbers[1]: i32(nbytes)}


def _without_shift(chunk: Fields) -> dict[int, Field]:
    return {number: field for number, field in chunk.items() if number != _SHIFT}


def bloom_filter_bytes(footer: bytes, read_at: ReadAt) -> dict[int, int]:
    """The bytes of the largest bitset of each leaf column's bloom filters; columns without any are left out."""
    sizes: dict[int, int] = {}
    for group in items_of(fields_of(footer).get(_ROW_GROUPS)):
        for leaf, chunk in enumerate(items_of(fields_of(group).get(_COLUMNS))):
            start = number_of(fields_of(fields_of(chunk)[_META].content).get(_BLOOM))
            bitset = header_of(read_at(_BLOOM_HEADER_BYTES, start)) if start > 0 else None
            if bitset is not None:
                sizes[leaf] = max(sizes.get(leaf, 0), bitset[1] - bitset[0])
    return sizes
