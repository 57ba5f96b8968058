"""Choose the rows of a sample: the same on every machine, in every version, however the work is divided.

Pure; runs where a plan is made (whole row groups are counted by arithmetic) and wherever rows are read. Of the rows
that `source.where` keeps, those for which the sample's own `where` is true are sampled, all others stay. A sampled row
stays if its 64-bit hash, as an unsigned integer, is below ⌊fraction · 2**64⌋; with the fraction 1 every row stays. With
the functions of `feedline.hashing`, modulo 2**64:

- **by position** (no `key`): `start = hash(digest(path))` with the sample's seed, `path` being the file's path below
  the table's root in UTF-8; the row with index i in the file (from 0, over all its row groups) has the hash
  `mix(start + (i + 1) * GOLDEN)`: the i-th output of the splitmix64 generator that is seeded with `start`.
- **by key**: the hash of the key's columns as `feedline.hashing` defines it, with the sample's seed.

The rest of a sample has the rows that it leaves out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import ValidationError

from feedline.config.source_section import SampleSpec
from feedline.dataclass import dataclass
from feedline.errors import ExpressionError, SpecError
from feedline.expressions import BoundExpression, bind_where
from feedline.expressions.types import nearest
from feedline.hashing import Words, digest, hash_words, hashable, key_hash, outputs
from feedline.warehouse.reading.columns import expanded_frame

SAMPLE_WEIGHT = "sample_weight"  # the virtual column: 1 / fraction for sampled rows, 1 for all others

_BLOCK_ROWS = 32_768  # hashed at once when nothing is read: 1.7 ns a row; twice as many take 7.5 ns (fresh pages)

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample, unbound: see `source.sample` in docs/pipeline-rows.md."""

    fraction: float
    where: str | None = None
    seed: int = 0
    key: tuple[str, ...] = ()
    rest: bool = False

    @classmethod
    def of(cls, value: Sample | SampleSpec | Mapping[str, Any] | None) -> Sample | None:
        """Parse a sample as given in pipeline.yaml or an argument: `{"fraction": 0.1, "key": "user_id"}`.

        Raises SpecError for anything that pipeline.yaml does not allow.
        """
        if value is None or isinstance(value, Sample):
            return value
        if not isinstance(value, SampleSpec):
            try:
                value = SampleSpec.model_validate(dict(value))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                location = ".".join(map(str, ("sample", *first["loc"])))
                raise SpecError(f"{location}: {first['msg']}: got {first['input']!r}") from None
        return cls(fraction=value.fraction, where=value.where, seed=value.seed, key=value.key or (), rest=value.rest)

    @property
    def weight(self) -> float:
        """How many rows a sampled row stands for."""
        return 1.0 / (1.0 - self.fraction if self.rest else self.fraction)

    @property
    def fitted(self) -> Sample:
        """The sample that fits learn from: itself, also where its rest is read."""
        return replace(self, rest=False)

    def to_json(self) -> dict[str, Any]:
        """The sample as plain values, under which what belongs to it is kept; `rest` only where it is set."""
        facts = asdict(self)
        return facts if self.rest else {name: value for name, value in facts.items() if name != "rest"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSample:
    """A sample bound to a table: `where` is bound, and all key columns have a hash."""

    sample: Sample
    where: BoundExpression | None

    @property
    def columns(self) -> frozenset[str]:
        """The columns to read: those of its `where` and its key."""
        return (self.where.columns if self.where is not None else frozenset()) | frozenset(self.sample.key)

    @property
    def parts(self) -> frozenset[str]:
        """The columns to read, or their parts where only parts are used."""
        return (self.where.parts if self.where is not None else frozenset()) | frozenset(self.sample.key)

    def hash_mask(self, data: pa.RecordBatch, path: str, first_row: int) -> Bools:
        """bool [rows]: which rows the hash keeps, regardless of `where`.

        `data` holds the key's columns, `first_row` is the index of its first row in the file at `path`.
        """
        sample = self.sample
        if sample.key:
            frame = expanded_frame(data, list(dict.fromkeys(sample.key)))
            return _kept(sample, key_hash([frame.get_column(name) for name in sample.key], sample.seed))
        return _kept(sample, outputs(_start(path, sample.seed), first_row, data.num_rows))


def bind_sample(sample: Sample, schema: pa.Schema) -> BoundSample:
    """Bind a sample to a table's columns.

    Raises ExpressionError for an invalid `where`, SpecError for a key column that is missing or has no hash.
    """
    for name in sample.key:
        if name not in schema.names:
            raise SpecError(f"the sample's key has an unknown column: got {name!r}{nearest(name, schema.names)}")
        kind = schema.field(name).type
        if not hashable(kind):
            raise SpecError(
                f"the sample's key has a column without a hash: got {name!r} of type {kind}, expected integers, "
                "floats, booleans, strings, bytes, dates or timestamps. Name another column"
            )
    try:
        where = None if sample.where is None else bind_where(sample.where, schema)
    except ExpressionError as error:
        raise ExpressionError(f"the sample's where: {error}") from None
    return BoundSample(sample=sample, where=where)


def with_weight(schema: pa.Schema, columns: Collection[str] | None) -> pa.Schema:
    """Return a sampled table's schema with `sample_weight`; `columns`: those requested (None: the table's own).

    Raises SpecError if `sample_weight` is requested and the table has a column of that name.
    """
    if SAMPLE_WEIGHT not in schema.names:
        return schema.append(pa.field(SAMPLE_WEIGHT, pa.float32()))
    if columns is None or SAMPLE_WEIGHT in columns:
        raise SpecError(
            f"{SAMPLE_WEIGHT} has two meanings: got a column of the table beside a sample, expected one of them. "
            "Rename the table's column, or leave it out of the columns that are read"
        )
    return schema


def sampled_rows(sample: Sample, path: str, first_row: int, rows: int) -> int:
    """Count how many of a run of rows of one file stay, all sampled by position; nothing is read."""
    start = _start(path, sample.seed)
    kept = 0
    for first in range(first_row, first_row + rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, first_row + rows - first)
        kept += int(np.count_nonzero(_kept(sample, outputs(start, first, count))))
    return kept


def sample_weights(sample: Sample, sampled: Bools | None, rows: int) -> npt.NDArray[np.float32]:
    """float32 [rows]: the column `sample_weight`; `sampled`: None if all rows are sampled."""
    heavy = np.float32(sample.weight)
    return np.full(rows, heavy) if sampled is None else np.where(sampled, heavy, np.float32(1))


def _kept(sample: Sample, hashes: Words) -> Bools:
    if sample.fraction == 1:
        return np.ones(len(hashes), np.bool_)
    # fraction 0.25 -> hashes below 2**62
    border = np.uint64(int(Fraction(sample.fraction) * 2**64))
    return hashes >= border if sample.rest else hashes < border


@lru_cache(maxsize=1024)
def _start(path: str, seed: int) -> int:
    return int(hash_words(digest(pl.Series([path])), seed)[0])
