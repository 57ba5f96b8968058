"""Keep the learnt numbers of groups in one table: its size, its assembly, its lookups.

Built in the process that fits, read on the workers inside the pass over a chunk. The columns of an artifact's table are
the only copy of its numbers: a lookup reads the rows that `group_keys` finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from feedline.config.sections import Bytes
from feedline.dataclass import dataclass
from feedline.errors import DataError, SpecError
from feedline.expressions.types import BINARY, BOOLEAN, INTEGER, STRING
from feedline.transforms.learning.group_sums import finite
from feedline.transforms.learning.learner import Artifact, Parts
from feedline.transforms.registry.op import Input
from feedline.transforms.values.key_index import KeyIndex, bytes_of_integers, bytes_of_strings, key_index
from feedline.transforms.values.kinds import Lookup, Value, element_type
from feedline.transforms.values.lookup_counts import hold_lookup
from feedline.transforms.values.ragged import Mask, Offsets, flatten_lists, lists_of, over_keys

# --------------------------------------------------------------------------------------------------------------------
# Find the group of a row by the values of its key columns. Runs on the workers, where groups are learnt and, inside
# the pass over a chunk, looked up. Keys are integers, strings, binary values and booleans, of one column or several;
# the elements of a list are separate keys. Null is a value like any other: the groups (1, null) and (null, 1) differ.
# As states and artifacts hold no nulls, a null key is stored as 0 (or empty), and its bit is set in the column
# `MISSING`.

N = TypeVar("N", bound=np.generic)

KEY = Input(name="key", takes=frozenset({INTEGER, STRING, BINARY, BOOLEAN}), lists="elements")
MISSING = "missing"
_UNKNOWN = range(1)
_MOST_KEYS = 31  # as many as MISSING has bits
_FILLS = {pl.Int64(): 0, pl.UInt64(): 0, pl.String(): "", pl.Binary(): b""}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """The keys of N rows, or of their lists' elements: columns [V] of `GroupKeys.types`. offsets, absent: of lists."""

    keys: tuple[pl.Series, ...]
    offsets: Offsets | None = None
    absent: Mask | None = None

    @classmethod
    def of(cls, columns: Sequence[pl.Series]) -> KeyedRows:
        if not isinstance(columns[0].dtype, pl.List):
            return cls(keys=tuple(columns))
        values, offsets, absent = flatten_lists(columns[0])
        return cls(keys=(pl.Series(values),), offsets=offsets, absent=absent)

    def frame(self, names: Sequence[str]) -> pl.DataFrame:
        """The columns that identify each key's group, named by `GroupKeys.names`."""
        missing = np.zeros(len(self.keys[0]), np.int32)
        for index, key in enumerate(self.keys):
            if key.null_count():
                missing |= key.is_null().to_numpy().astype(np.int32) << np.int32(index)
        columns = [pl.Series(missing), *(key.fill_null(_FILLS[key.dtype]) for key in self.keys)]
        return pl.DataFrame([column.alias(name) for name, column in zip(names, columns, strict=True)])

    def finite(self, frame: pl.DataFrame, column: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
        """Those of the keys' rows [V] whose number in a column of rows [N] is finite, and the numbers."""
        values, mask = finite(column)
        numbers = pl.Series(self.repeat(values))
        if mask is None:
            return frame, numbers
        keep = pl.Series(self.repeat(mask))
        return frame.filter(keep), numbers.filter(keep)

    def repeat(self, values: npt.NDArray[N]) -> npt.NDArray[N]:
        """Values of rows [N], repeated for each of the rows' keys [V]."""
        return values if self.offsets is None else np.repeat(values, np.diff(self.offsets))

    def series(self, values: npt.NDArray[np.float64], holes: Mask | None = None) -> pl.Series:
        """The results of each key [V] as a number or a list of numbers per row; null where `holes` is true."""
        if self.offsets is not None:
            return lists_of(values, self.offsets, holes=holes, absent=self.absent)
        return pl.Series(pa.array(values, mask=holes))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKeys:
    """The types of keys in states and artifacts, and whether they are elements of lists."""

    types: tuple[pl.DataType, ...]
    listed: bool

    @classmethod
    def of(cls, values: Sequence[Value]) -> GroupKeys:
        for value in values:
            if value.kind.element not in KEY.takes:
                raise SpecError(
                    f"a key must be {KEY.accepts}: got {value.kind}. Put bucketize, or {{cast: int64}}, before it"
                )
        if len(values) > _MOST_KEYS:
            raise SpecError(f"at most {_MOST_KEYS} columns make a key: got {len(values)}")
        listed = any(value.kind.listed for value in values)
        if listed and len(values) > 1:
            raise SpecError(
                f"the elements of lists are keys by themselves: got {len(values)} columns with a list among them, "
                "expected that one alone, or columns of one value per row"
            )
        return cls(types=tuple(_key_type(element_type(value.plain().dtype)) for value in values), listed=listed)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that identify a group in states and artifacts."""
        return (MISSING, *(f"key {index}" for index in range(len(self.types))))

    def rows(self, columns: Sequence[pl.Series]) -> KeyedRows:
        rows = KeyedRows.of(columns)
        return replace(rows, keys=self._convert_types(rows.keys))

    def positions(self, values: Sequence[Value], artifact: Artifact) -> tuple[pl.Expr, Lookup]:
        """The position of each row's group in `index`, from 1: int64 or lists of it. 0 stands for unknown groups,
        which the `Lookup` names.
        """

        def find(*columns: pl.Series) -> pl.Series:
            return pl.Series(self.index(artifact).find(self._convert_types(columns)))

        return hold_lookup(over_keys(values, find), _UNKNOWN)

    def _convert_types(self, columns: Sequence[pl.Series]) -> tuple[pl.Series, ...]:
        pairs = zip(columns, self.types, strict=True)
        return tuple(column if column.dtype == dtype else column.cast(dtype) for column, dtype in pairs)

    def schema(self) -> dict[str, pl.DataType]:
        return dict(zip(self.names, (pl.Int32(), *self.types), strict=True))

    def index(self, artifact: Artifact) -> KeyIndex:
        """The groups of an artifact's table by their keys, null included; built once."""
        assert artifact.table is not None
        table = artifact.table
        return artifact.derive(f"groups by {self.types}", lambda: self._index(table))

    def check(self, artifact: Artifact) -> None:
        """Raise SpecError for an artifact whose keys are of another kind; checked once."""
        assert artifact.table is not None
        table = artifact.table
        artifact.derive(f"no groups by {self.types}", lambda: self._index(table.slice(0, 0)))

    def _index(self, table: pa.Table) -> KeyIndex:
        keys = pl.DataFrame(table.select(self.names)).select(
            pl.when(pl.col(MISSING) & (1 << index) == 0).then(pl.col(name)).alias(name)
            for index, name in enumerate(self.names[1:])
        )
        return key_index(keys, self.types, "none", "what was fitted", nulls=True)


def _key_type(dtype: pl.DataType) -> pl.DataType:
    if dtype.is_integer() or dtype == pl.Boolean:
        return pl.UInt64() if dtype == pl.UInt64 else pl.Int64()
    return pl.Binary() if dtype == pl.Binary else pl.String()


# --------------------------------------------------------------------------------------------------------------------

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
    """Raise SpecError for an artifact of other keys, or that would exceed `max_memory` in the process that uses it."""
    groups.check(artifact)
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
    # [2, 0, 2] -> order [1, 0, 2], ends [1, 1, 3] -> {0: [1], 2: [0, 2]}
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
