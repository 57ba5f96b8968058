"""Let the footers of a base file and of its column files stand for one: their row groups, side by side.

Pure; runs in every process that reads. The Parquet columns of the base file come first, then those of the fields of
each column file. Places in files are those of one file that holds all of them end to end: of two files of 100 and 80
bytes, byte 130 is byte 30 of the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.warehouse.parquet.footer import ChunkFacts, chunk_facts


@dataclass(frozen=True, slots=True, eq=False)
class FooterPart:
    """A file's footer; its Parquet columns that are read; where the file begins; its size."""

    metadata: pq.FileMetaData
    leaves: Sequence[int]
    start: int
    size_bytes: int


class JoinedFooter:
    """As much of `pq.FileMetaData` as readers ask for. The first part is the base file's, with all its columns."""

    def __init__(self, parts: Sequence[FooterPart]) -> None:
        self.parts = parts
        self.base = parts[0].metadata
        self.size_bytes = parts[-1].start + parts[-1].size_bytes
        self._places = [(part, leaf) for part in parts for leaf in part.leaves]
        self.num_rows = self.base.num_rows
        self.num_row_groups = self.base.num_row_groups
        self.num_columns = len(self._places)
        self.created_by = self.base.created_by
        self.metadata = self.base.metadata
        self.schema = _JoinedSchema(parts, self._places)

    def row_group(self, index: int) -> _JoinedRowGroup:
        return _JoinedRowGroup(self, index)

    def place(self, leaf: int) -> tuple[FooterPart, int]:
        """The file that holds a Parquet column, and the column's index in it."""
        return self._places[leaf]

    def chunk_facts(self, row_group: int, leaves: Iterable[int]) -> list[ChunkFacts]:
        """As `footer.chunk_facts`, with places in all files end to end."""
        asked = list(leaves)
        here: dict[int, list[int]] = {}  # by where a file begins, the columns that it holds
        for leaf in asked:
            here.setdefault(self._places[leaf][0].start, []).append(leaf)
        found: dict[int, ChunkFacts] = {}
        for start, held in here.items():
            part, own = self._places[held[0]][0], [self._places[leaf][1] for leaf in held]
            for leaf, facts in zip(held, chunk_facts(part.metadata, row_group, own, part.size_bytes), strict=True):
                first, stop = facts.place
                found[leaf] = facts if not start else facts._replace(place=(first + start, stop + start))
        return [found[leaf] for leaf in asked]


class _JoinedSchema:
    def __init__(self, parts: Sequence[FooterPart], places: Sequence[tuple[FooterPart, int]]) -> None:
        self._parts = parts
        self._places = places

    @property
    def names(self) -> list[str]:
        return [part.metadata.schema.names[leaf] for part, leaf in self._places]

    def column(self, leaf: int) -> Any:
        part, own = self._places[leaf]
        return part.metadata.schema.column(own)

    def equals(self, other: object) -> bool:
        """Whether other files, joined alike, have the same columns."""
        if not isinstance(other, _JoinedSchema) or len(self._parts) != len(other._parts):
            return False
        pairs = zip(self._parts, other._parts, strict=True)
        return all(
            one.leaves == each.leaves and one.metadata.schema.equals(each.metadata.schema) for one, each in pairs
        )


class _JoinedRowGroup:
    def __init__(self, footer: JoinedFooter, index: int) -> None:
        self._footer = footer
        self._index = index
        self.num_rows = footer.base.row_group(index).num_rows
        self.num_columns = footer.num_columns

    @property
    def total_byte_size(self) -> int:
        return sum(part.metadata.row_group(self._index).total_byte_size for part in self._footer.parts)

    def column(self, leaf: int) -> Any:
        """The footer's own description, whose places are those in its file."""
        part, own = self._footer.place(leaf)
        return part.metadata.row_group(self._index).column(own)
