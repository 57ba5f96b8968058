"""Keep the learnt numbers of groups in one table: its size, its assembly, its lookups.

Built in the process that fits, read on the workers inside the pass over a chunk. The columns of an artifact's table are
the only copy of its numbers: a lookup reads the rows that `group_keys` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from feedline.errors import DataError, SpecError
from feedline.spec.sections import Bytes
from feedline.transforms.kernels.hash_table import bytes_of_integers, bytes_of_strings
from feedline.transforms.learning.learner import Artifact, Parts
from feedline.transforms.ops.group_keys import GroupKeys

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64 | np.int64]

# Excluded from the parameters' identity: it changes no value, so raising it needs no new fit.
MaxMemory = Annotated[
    Bytes,
    Field(
        exclude=True, description="Memory limit for the groups, per process; more is an error. A size such as 500MB."
    ),
]
MAX_MEMORY = 4 * 2**30
_NUMBER_BYTES, _MISSING_BYTES, _TEXT_BYTES = 8, 4, 8  # a number, the bits of null keys, a string's offset
_ANY_SPAN = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTableSize:
    """The memory of a table of groups, and of the index that finds a group in it.

    groups: how many. keys: for each key column an upper bound of its values, and the bytes of their text (None for
    integers). text_bytes: of the keys of all groups. numbers: how many numbers each group has.
    """

    groups: int
    keys: tuple[tuple[int, int | None], ...]
    text_bytes: int
    numbers: int

    @classmethod
    def of(cls, groups: GroupKeys, frames: Parts, numbers: int) -> GroupTableSize:
        """For the groups of merged states, which share no group."""
        count = text_bytes = 0
        keys: list[tuple[int, int | None]] = [(0, 0 if _is_text(dtype) else None) for dtype in groups.types]
        for frame in frames:
            state_groups = frame.select(groups.names).unique()
            count += state_groups.height
            for index, name in enumerate(groups.names[1:]):
                values, text = keys[index]
                distinct = state_groups[name].unique()
                if text is not None:
                    text_bytes += _text_bytes(state_groups[name])
                    text += _text_bytes(distinct)
                keys[index] = values + len(distinct), text
        if len(keys) == 1:
            keys = [(count, None if keys[0][1] is None else text_bytes)]
        return cls(groups=count, keys=tuple(keys), text_bytes=text_bytes, numbers=numbers)

    @classmethod
    def at_least(cls, groups: GroupKeys, table: pa.Table) -> GroupTableSize:
        """A lower bound for an artifact's table: for keys of several columns, without the indexes of single columns."""
        count = table.num_rows
        texts = [table[name] for name, dtype in zip(groups.names[1:], groups.types, strict=True) if _is_text(dtype)]
        text_bytes = sum(int(pc.sum(pc.binary_length(text)).as_py() or 0) for text in texts)
        keys = [
            (count if len(groups.types) == 1 else 0, text_bytes if _is_text(dtype) else None) for dtype in groups.types
        ]
        numbers = table.num_columns - len(groups.names)
        return cls(groups=count, keys=tuple(keys), text_bytes=text_bytes, numbers=numbers)

    @property
    def nbytes(self) -> int:
        """An upper bound of the bytes per process."""
        row = _MISSING_BYTES + _NUMBER_BYTES * self.numbers
        row += sum(_NUMBER_BYTES if text is None else _TEXT_BYTES for _, text in self.keys)
        table = row * self.groups + self.text_bytes
        found = _NUMBER_BYTES * self.groups  # the rows of the table, in the order of the index
        if len(self.keys) > 1:
            found += bytes_of_integers(self.groups, _ANY_SPAN)
        for values, text in self.keys:
            values = min(values, self.groups)
            if values:
                found += bytes_of_integers(values, _ANY_SPAN) if text is None else bytes_of_strings(values, text)
        return table + found

    def message(self, max_memory: int, remedy: str) -> str | None:
        """The error message if the size exceeds `max_memory`."""
        if self.nbytes <= max_memory:
            return None
        return (
            f"the table of groups is larger than max_memory: got {self.groups:,} groups of {self.numbers} numbers, "
            f"{self.nbytes:,} bytes, expected at most {max_memory:,} bytes. {remedy}, or raise max_memory, which every "
            "process that transforms rows needs"
        )


def check_parts(groups: GroupKeys, parts: Parts, numbers: int, max_memory: int, remedy: str) -> None:
    """Raise DataError if the table of merged states would exceed `max_memory`, before it is built."""
    if (message := GroupTableSize.of(groups, parts, numbers).message(max_memory, remedy)) is not None:
        raise DataError(message)


def check_artifact(artifact: Artifact, groups: GroupKeys, max_memory: int, remedy: str) -> None:
    """Raise SpecError for an artifact that would exceed `max_memory` in the process that uses it."""
    assert artifact.table is not None
    if (message := GroupTableSize.at_least(groups, artifact.table).message(max_memory, remedy)) is not None:
        raise SpecError(message)


def ordered_table(groups: GroupKeys, parts: list[pl.DataFrame]) -> pa.Table:
    """Concatenate tables of different groups, in the order of their keys. Empties `parts`.

    Column by column, so that at most one column exists twice.
    """
    keys = pl.concat([part.select(groups.names) for part in parts])
    order = keys.select(pl.arg_sort_by(*groups.names)).to_series()
    del keys
    columns = []
    for name in parts[0].columns:
        columns.append(pl.concat([part.select(name) for part in parts]).select(pl.col(name).gather(order)).to_arrow())
        parts[:] = [part.drop(name) for part in parts]
    fields = [column.schema.field(0) for column in columns]
    return pa.Table.from_arrays([column.column(0) for column in columns], schema=pa.schema(fields))


class GroupColumns:
    """Numbers of an artifact's table by positions of groups, from 1 (`GroupKeys.positions`); 0: an unknown group."""

    def __init__(self, groups: GroupKeys, artifact: Artifact) -> None:
        assert artifact.table is not None
        table = artifact.table
        names = [name for name in table.column_names if name not in groups.names]
        self._rows = groups.index(artifact).rows
        self._columns = artifact.derive("columns", lambda: {name: table[name].to_numpy() for name in names})

    def take(self, name: str, positions: Integers) -> Numbers:
        """The numbers of a column [V]; arbitrary for unknown groups."""
        if not len(self._rows):
            return np.zeros(len(positions))
        found: Numbers = self._columns[name][self._rows[positions - 1]]
        return found

    def take_each(
        self, names: Sequence[str], choices: npt.NDArray[np.uint8], positions: Integers, none: Floats
    ) -> Floats:
        """float64 [V]: for each position the number in the chosen column; for unknown groups that of `none`."""
        found = none[choices]
        known_positions = np.flatnonzero(positions)
        at = {choice: known_positions[some] for choice, some in by_choice(choices[known_positions], len(names)).items()}
        if at:
            order = np.concatenate(list(at.values()))
            rows, start = self._rows[positions[order] - 1], 0
            values = np.empty(len(order))
            for choice, some in at.items():
                stop = start + len(some)
                np.take(self._columns[names[choice]], rows[start:stop], out=values[start:stop], mode="clip")
                start = stop
            found[order] = values
        return found


def by_choice(choices: npt.NDArray[np.uint8], count: int) -> Mapping[int, Integers]:
    """The positions of each choice below `count` in `choices`; choices that do not occur are left out."""
    order = np.argsort(choices, kind="stable")
    ends = np.cumsum(np.bincount(choices, minlength=count))
    pieces: Sequence[Integers] = np.split(order, ends[:-1])
    return {choice: positions for choice, positions in enumerate(pieces) if len(positions)}


def _is_text(dtype: pl.DataType) -> bool:
    return not dtype.is_integer()


def _text_bytes(texts: pl.Series) -> int:
    if texts.dtype == pl.Binary:
        return int(texts.bin.size().sum())
    return int(texts.str.len_bytes().sum())
