"""Which group is a row in, by the values of its key columns?

Runs on the workers, where groups are learnt about and, inside the pass over a chunk, where that is looked up. Keys are
integers, texts, bytes and booleans, one column or several; a list's elements are keys one by one. Null is a value like
others: the groups (1, null) and (null, 1) are two. So that states and artifacts hold no nulls, a null key is 0 (or
empty) there, and its bit is set in the column `MISSING`.

A single key is looked up by itself (`lookup`), several by the hash of all of them, after which the keys themselves are
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from feedline.errors import SpecError
from feedline.expression_types import BINARY, BOOLEAN, INTEGER, STRING, describe
from feedline.hashing import Words, hash_words
from feedline.key_hashing import key_hash
from feedline.transforms.kinds import Value, element_type
from feedline.transforms.lookup import CuckooTable, DirectTable, StringTable, integer_table
from feedline.transforms.ragged import Mask, Offsets, lists_of
from feedline.transforms.registry import Input

N = TypeVar("N", bound=np.generic)
Places = npt.NDArray[np.int64]

KEY = Input(name="key", takes=frozenset({INTEGER, STRING, BINARY, BOOLEAN}), lists="elements")
MISSING = "missing"
_MOST_KEYS = 31  # bits of MISSING
_SEEDS = 16
_FILLS = {pl.Int64(): 0, pl.UInt64(): 0, pl.String(): "", pl.Binary(): b""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The keys of N rows, or of their lists' elements, without nulls, and what of them is missing.

    keys: columns of `GroupKeys.types`. missing: int32 [V], None where no key is null. offsets, absent: of lists.
    """

    keys: tuple[pl.Series, ...]
    missing: npt.NDArray[np.int32] | None
    offsets: Offsets | None = None
    absent: Mask | None = None

    def frame(self, names: Sequence[str]) -> pl.DataFrame:
        """The columns that name each key's group, as `GroupKeys.names` names them."""
        missing = np.zeros(len(self.keys[0]), np.int32) if self.missing is None else self.missing
        columns = [pl.Series(missing), *self.keys]
        return pl.DataFrame([column.alias(name) for name, column in zip(names, columns, strict=True)])

    def each(self, values: npt.NDArray[N]) -> npt.NDArray[N]:
        """What is known of rows [N], for each of the rows' keys [V]."""
        return values if self.offsets is None else np.repeat(values, np.diff(self.offsets))

    def series(self, values: npt.NDArray[np.float64], holes: Mask | None = None) -> pl.Series:
        """What was found for each key [V], a number or a list of numbers per row; null where `holes` says so."""
        if self.offsets is not None:
            return lists_of(values, self.offsets, holes=holes, absent=self.absent)
        return pl.Series(pa.array(values, mask=holes))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupKeys:
    """What keys there are: their types as states and artifacts hold them, and whether it is the elements of lists."""

    types: tuple[pl.DataType, ...]
    listed: bool

    @classmethod
    def of(cls, values: Sequence[Value]) -> GroupKeys:
        """Raises SpecError for what is no key."""
        for value in values:
            if value.kind.element not in KEY.takes:
                raise SpecError(
                    f"a key must be {KEY.taken}: got {value.kind}. Put bucketize, or {{cast: int64}}, before it"
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
        """The columns that name a group in states and artifacts."""
        return (MISSING, *(f"key {index}" for index in range(len(self.types))))

    def rows(self, columns: Sequence[pl.Series]) -> Rows:
        """The keys of some rows, whose columns may still be of narrower types."""
        offsets: Offsets | None = None
        absent: Mask | None = None
        if self.listed:
            [lists] = columns
            flat, offsets, absent = _elements(lists)
            columns = [flat]
        missing: npt.NDArray[np.int32] | None = None
        keys = []
        for index, (column, dtype) in enumerate(zip(columns, self.types, strict=True)):
            series = column if column.dtype == dtype else column.cast(dtype)
            if series.null_count():
                missing = np.zeros(len(series), np.int32) if missing is None else missing
                missing |= series.is_null().to_numpy().astype(np.int32) << np.int32(index)
                series = series.fill_null(_FILLS[dtype])
            keys.append(series)
        return Rows(keys=tuple(keys), missing=missing, offsets=offsets, absent=absent)

    def schema(self) -> dict[str, pl.DataType]:
        """The columns that name a group, with their types."""
        return dict(zip(self.names, (pl.Int32(), *self.types), strict=True))

    def check(self, table: pa.Table) -> None:
        """Raises SpecError where a table's groups are named by keys of other types."""
        frame = pl.from_arrow(table.select(self.names).slice(0, 0))
        assert isinstance(frame, pl.DataFrame)
        if (held := frame.schema) != self.schema():
            got, expected = (", ".join(describe(kind) for kind in kinds) for kinds in (self.types, held.dtypes()[1:]))
            raise SpecError(f"keys are of other types than those that were fitted: got {got}, expected {expected}")


class GroupIndex:
    """The groups of an artifact's table [G], by the columns that name them: the first is 1, the last G."""

    def __init__(self, keys: GroupKeys, table: pa.Table) -> None:
        frame = pl.from_arrow(table.select(keys.names))
        assert isinstance(frame, pl.DataFrame)
        self._held = tuple(frame[name].rechunk() for name in keys.names[1:])
        self._missing = frame[MISSING].to_numpy()
        self._places = np.arange(1, len(self._missing) + 1)
        self._single = len(self._held) == 1
        self._table: DirectTable | CuckooTable | StringTable
        if not self._single:
            self._seed, self._table = self._crossed()
            return
        [held] = self._held
        known = self._missing == 0
        self._null = int(self._places[~known].max(initial=0))
        held, places = held.filter(pl.Series(known)), self._places[known]
        if held.dtype.is_integer():
            self._table = integer_table(held.to_numpy(), places)
        else:  # the table is ordered by the columns that name groups, so that the null group is the last
            self._table = StringTable.of(held, 1)

    def find(self, rows: Rows) -> Places:
        """int64 [V]: each key's group, 0 for one that there is not."""
        if not self._single:
            return self._compared(rows)
        [keys] = rows.keys
        found: Places = np.empty(len(keys), np.int64)
        if isinstance(self._table, StringTable):
            self._table.find(keys, found)
        else:
            self._table.find(keys.to_numpy(), found)
        if rows.missing is not None:
            found[rows.missing > 0] = self._null
        return found

    def _crossed(self) -> tuple[int, DirectTable | CuckooTable]:
        """A table of one word per group, and the seed that makes them differ."""
        missing = self._missing if self._missing.any() else None
        for seed in range(_SEEDS):
            words = _words(self._held, missing, seed)
            if len(np.unique(words)) == len(words):
                return seed, integer_table(words, self._places)
        raise AssertionError("no seed gives each group a word of its own")  # one does but once in 2**64 / groups**2

    def _compared(self, rows: Rows) -> Places:
        """By the word of all keys, and then by the keys themselves."""
        found: Places = np.empty(len(rows.keys[0]), np.int64)
        assert not isinstance(self._table, StringTable)
        self._table.find(_words(rows.keys, rows.missing, self._seed), found)
        if not len(self._missing):
            return found
        at = np.maximum(found - 1, 0)
        same = self._missing[at] == (0 if rows.missing is None else rows.missing)
        for held, key in zip(self._held, rows.keys, strict=True):
            same &= _equal(held, at, key)
        return np.where(same, found, 0)


def _equal(held: pl.Series, at: Places, keys: pl.Series) -> Mask:
    if held.dtype.is_integer():
        same: Mask = held.to_numpy()[at] == keys.to_numpy()
        return same
    return (held.gather(at) == keys).to_numpy()


def _words(keys: Sequence[pl.Series], missing: npt.NDArray[np.int32] | None, seed: int) -> Words:
    """64 bits for each row."""
    words = key_hash(keys, seed)
    if missing is not None:
        some = np.flatnonzero(missing)
        words[some] ^= hash_words(missing[some].astype(np.uint64), seed)
    return words


def _key_type(dtype: pl.DataType) -> pl.DataType:
    if dtype.is_integer() or dtype == pl.Boolean:
        return pl.UInt64() if dtype == pl.UInt64 else pl.Int64()
    return pl.Binary() if dtype == pl.Binary else pl.String()


def _elements(series: pl.Series) -> tuple[pl.Series, Offsets, Mask | None]:
    """The elements of lists one after the other, the borders of the lists from 0, and which lists are null."""
    array = series.rechunk().to_arrow()
    absent = None
    if array.null_count:
        absent = array.is_null().to_numpy(zero_copy_only=False)
        if np.any(np.diff(array.offsets.to_numpy())[absent]):
            array = pc.if_else(array.is_valid(), array, pa.scalar([], type=array.type))
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    return pl.Series(array.values.slice(first, last - first)), offsets - first, absent
