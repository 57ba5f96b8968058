"""Make impressions of decoded requests: a row of each element of their lists, for `source.explode`.

Runs in every process that reads, on the calling thread, right after decoding; whatever reads rows gets impressions.
Pure, over Arrow arrays. Columns of the request that are asked for as unique rows are one group by construction; they
are compared with the row above once per request, not once per row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.native.unique_rows import UniqueRows
from feedline.warehouse.parquet.open_file import OpenFile
from feedline.warehouse.parquet.request_rows import common_lengths, elements, inverse_of
from feedline.warehouse.parquet.schemas import is_list
from feedline.warehouse.reading.fragment import Fragment, FrameBatch, field_of
from feedline.warehouse.reading.stored_groups import repeat_rows
from feedline.warehouse.snapshot.exploded_lists import stored_schema
from feedline.warehouse.snapshot.snapshot import ExplodedLists
from feedline.warehouse.storage.faults import label


@dataclass(frozen=True, slots=True)
class ExplodedRows:
    """What is read of a fragment's file for columns of impressions. names: the columns asked for. stored: those to
    decode, in the types of `schema`, with one of the lists at least. lists: of those, the lists that the file has."""

    names: tuple[str, ...]
    stored: tuple[str, ...]
    schema: pa.Schema
    fields: Mapping[str, pa.Field]
    lists: tuple[str, ...]
    candidates: frozenset[str]

    @classmethod
    def of(cls, exploded: ExplodedLists, file: OpenFile, schema: pa.Schema, names: Sequence[str]) -> ExplodedRows:
        """schema: of impressions. A list that the file lacks is null in all rows."""
        present = [name for name in exploded.names if name in file.stored]
        asked = [name for name in names if name in present]
        lists = asked or present[:1]  # one says how many rows a request has
        kinds = stored_schema(schema, exploded)
        missing = [exploded.fields.field(name) for name in lists if name not in kinds.names]
        return cls(
            names=tuple(names),
            stored=tuple(dict.fromkeys([*(name for name in names if name not in exploded.names), *lists])),
            candidates=frozenset(exploded.names),
            schema=pa.schema([*kinds, *missing]) if missing else kinds,
            fields={name: field_of(schema, name) for name in names},
            lists=tuple(lists),
        )

    def coded(self, names: Mapping[str, int]) -> dict[str, int]:
        """Those of these columns that may come as codes: not lists of lists, of which the kernel makes none."""
        nested = {name for name in self.candidates.intersection(self.fields) if is_list(self.fields[name].type)}
        return {name: most for name, most in names.items() if name not in nested}

    def of_group(
        self, batches: Iterable[FrameBatch], compact: Collection[str], fragment: Fragment, position: int, first_row: int
    ) -> Iterator[FrameBatch]:
        """The rows of one row group's requests. first_row: of the first, in impressions of the file. Raises DataError
        for lists of unequal lengths."""
        request, row = 0, first_row
        for batch in batches:
            requests = batch.data.num_rows
            rows = self._rows_of(batch, compact, fragment, position, request, row)
            request, row = request + requests, row + rows.data.num_rows
            yield rows

    def _rows_of(
        self, batch: FrameBatch, compact: Collection[str], fragment: Fragment, position: int, request: int, row: int
    ) -> FrameBatch:
        data, row_group = batch.data, fragment.row_groups[position]
        lists = {name: data.column(name) for name in self.lists}
        place = label(fragment.uri, row_group)
        lengths = common_lengths(lists, place, request) if lists else np.zeros(data.num_rows, np.int64)
        total = int(lengths.sum())
        unique = [name for name in data.schema.names if name not in lists and name in compact]
        grouped = {name for group in batch.groups for name in group.rows.schema.names}
        inverse = inverse_of(lengths)
        index, arrays = pa.array(inverse), dict[str, pa.Array]()
        for name in self.names:
            if name in grouped or name in unique:
                continue
            if name in lists:
                arrays[name] = elements(lists[name])
            elif name in self.candidates:
                arrays[name] = pa.nulls(total, self.fields[name].type)
            else:
                arrays[name] = repeat_rows(data.column(name), index, name, fragment.uri, row_group)
        fields = [self.fields[name].with_type(array.type) for name, array in arrays.items()]
        rows = pa.RecordBatch.from_arrays(list(arrays.values()), schema=pa.schema(fields))
        groups = [UniqueRows(group.rows, group.inverse[inverse]) for group in batch.groups]
        if unique:
            groups.append(UniqueRows(data.select(unique), inverse))
        used = tuple(_used_rows(group) for group in groups) if total < len(lengths) or not lengths.all() else groups
        return replace(batch, make_data=lambda: rows, first_row=row, groups=tuple(used), decoded=None)


def _used_rows(group: UniqueRows[pa.RecordBatch]) -> UniqueRows[pa.RecordBatch]:
    """The group without the unique rows that no row uses."""
    # inverse [0, 0, 2] of 3 unique rows -> [0, 0, 1] of 2
    used, inverse = np.unique(group.inverse, return_inverse=True)
    return UniqueRows(group.rows.take(pa.array(used)), inverse.astype(np.int32))


def chunk_requests(rows: int, requests: int, span: tuple[int, int] | None) -> int:
    """How many requests to decode at once for about `rows` impressions. span: the row group's, of its file."""
    # 32,768 rows of a row group of 100 requests with 1,600 impressions -> 2,048 requests
    if span is None or span[1] - span[0] <= requests:
        return rows
    return max(1, rows * requests // (span[1] - span[0]))
