"""Choose the rows of a sample: the same on every machine, in every version, however the work is cut.

Pure; runs where a plan is made (whole row groups are counted by arithmetic) and wherever rows are read. Among the rows
that `source.where` keeps, those for which the sample's own `where` is true are sampled, all others stay. A sampled row
stays when its 64-bit hash, as an unsigned number, is below ⌊fraction · 2**64⌋; with the fraction 1 every row stays. So
a smaller fraction of the same seed keeps a part of what a larger one keeps. In the words of `feedline.hashing`,
modulo 2**64:

- **by position** (no `key`): `start = hash(digest(path))` with the sample's seed, `path` being the file's path below
  the table's root in UTF-8; the row with index i in the file (from 0, over all its row groups) has the hash
  `mix(start + (i + 1) * GOLDEN)`: the i-th output of the splitmix64 generator that is seeded with `start`.
- **by key**: the hash of the key's columns as `feedline.hashing` defines it, with the sample's seed.

Files and row groups make no difference to a key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import ValidationError

from feedline.errors import ExpressionError, SpecError
from feedline.expressions import BoundExpression, bind_where
from feedline.expressions.types import nearest
from feedline.hashing import Words, digest, hash_words, hashable, key_hash, outputs
from feedline.spec.source_section import SampleSpec

SAMPLE_WEIGHT = "sample_weight"  # the virtual column: 1 / fraction for sampled rows, 1 for all others

_BLOCK_ROWS = 32_768  # hashes at once when nothing is read: 1.7 ns each, where twice as many take 7.5 (mapped anew)

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample, unbound: see `source.sample` in docs/pipeline.md."""

    fraction: float
    where: str | None = None
    seed: int = 0
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, asked: Sample | SampleSpec | Mapping[str, Any] | None) -> Sample | None:
        """A sample as pipeline.yaml or an argument names it: `{"fraction": 0.1, "key": "user_id"}`.

        Raises SpecError for what pipeline.yaml would not allow either.
        """
        if asked is None or isinstance(asked, Sample):
            return asked
        if not isinstance(asked, SampleSpec):
            try:
                asked = SampleSpec.model_validate(dict(asked))
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                place = ".".join(map(str, ("sample", *first["loc"])))
                raise SpecError(f"{place}: {first['msg']}: got {first['input']!r}") from None
        return cls(fraction=asked.fraction, where=asked.where, seed=asked.seed, key=asked.key or ())

    @property
    def weight(self) -> float:
        """What a sampled row stands for."""
        return 1.0 / self.fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSample:
    """A sample over the columns of one table: `where` bound, key columns known to have a hash."""

    sample: Sample
    where: BoundExpression | None

    @property
    def columns(self) -> frozenset[str]:
        """What has to be read to decide: the columns of its `where` and its key."""
        return (self.where.columns if self.where is not None else frozenset()) | frozenset(self.sample.key)

    @property
    def parts(self) -> frozenset[str]:
        """The same, by their parts where only parts of them are used."""
        return (self.where.parts if self.where is not None else frozenset()) | frozenset(self.sample.key)

    def chosen(self, data: pa.RecordBatch, path: str, first_row: int) -> Bools:
        """bool [rows]: which rows the hash keeps, whatever `where` says of them.

        `data` holds the key's columns, `first_row` is the index of its first row in the file at `path`.
        """
        sample = self.sample
        if sample.key:
            frame = pl.from_arrow(data.select(list(dict.fromkeys(sample.key))))
            assert isinstance(frame, pl.DataFrame)
            return _below(key_hash([frame.get_column(name) for name in sample.key], sample.seed), sample.fraction)
        return _below(outputs(_start(path, sample.seed), first_row, data.num_rows), sample.fraction)


def bind_sample(sample: Sample, schema: pa.Schema) -> BoundSample:
    """The sample over a table's columns.

    Raises ExpressionError for a `where` that does not fit, SpecError for a key column that is missing or has no hash.
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
    """A sampled table's columns, the virtual one with them; `columns` are those asked for (None: the table's own).

    Raises SpecError where `sample_weight` is asked for and the table has a column of that name.
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
    """How many of a run of rows of one file stay, all of them being sampled by position; nothing is read."""
    start = _start(path, sample.seed)
    kept = 0
    for first in range(first_row, first_row + rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, first_row + rows - first)
        kept += int(np.count_nonzero(_below(outputs(start, first, count), sample.fraction)))
    return kept


def weights(sample: Sample, sampled: Bools | None, rows: int) -> npt.NDArray[np.float32]:
    """float32 [rows]: the column `sample_weight`; `sampled` is None where all rows are."""
    heavy = np.float32(sample.weight)
    return np.full(rows, heavy) if sampled is None else np.where(sampled, heavy, np.float32(1))


def _below(hashes: Words, fraction: float) -> Bools:
    if fraction == 1:
        return np.ones(len(hashes), np.bool_)
    return hashes < np.uint64(int(Fraction(fraction) * 2**64))


@lru_cache(maxsize=1024)
def _start(path: str, seed: int) -> int:
    return int(hash_words(digest(pl.Series([path])), seed)[0])
