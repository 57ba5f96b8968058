"""The op vocabulary: number ids and strings by frequency.

Built in every process, run on the workers. Learnt by `value_counts`, looked up by `hash_table`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import polars as pl
from pydantic import Field

from feedline.config.sections import Bytes
from feedline.dataclass import dataclass
from feedline.expressions.types import BINARY, INTEGER, STRING
from feedline.hashing import bucket_integers, digest
from feedline.transforms.learning.learner import Artifact, Learning
from feedline.transforms.learning.value_counts import ValueCounts
from feedline.transforms.ops.dense import widen
from feedline.transforms.registry.op import MAX_INT, Parameters, example, op
from feedline.transforms.values.arrays import Values
from feedline.transforms.values.key_index import CuckooTable, DirectTable, StringTable, integer_table
from feedline.transforms.values.kinds import Value

NULL_ID = 1
FIRST_BUCKET = 2
_MOST_BUCKETS = 10**9


class Vocabulary(Parameters):
    min_count: Annotated[int, Field(ge=1, le=MAX_INT, description="Values that occur less often are removed.")] = 1
    max_size: Annotated[
        int | None, Field(ge=1, le=MAX_INT, description="The largest number of values to keep (default: all).")
    ] = None
    oov_buckets: Annotated[
        int, Field(ge=0, le=_MOST_BUCKETS, description="Ids for values that are not in the vocabulary.")
    ] = 1
    name: Annotated[
        str | None,
        Field(min_length=1, description="Features with this name, and the same other parameters, share a vocabulary."),
    ] = None
    # changes no value, so raising it needs no new fit
    max_memory: Annotated[
        Bytes,
        Field(exclude=True, description="Memory limit of the vocabulary; more is an error. A size such as 500MB."),
    ] = 4 * 2**30


def learner_of(parameters: Vocabulary, values: Sequence[Value]) -> ValueCounts:
    return ValueCounts(
        element=values[0].kind.element,
        min_count=parameters.min_count,
        max_size=parameters.max_size,
        reserved=FIRST_BUCKET + parameters.oov_buckets,
        max_memory=parameters.max_memory,
    )


def _ids(parameters: Vocabulary, artifact: Artifact | None, _: Sequence[int | None]) -> int:
    assert artifact is not None
    assert artifact.table is not None
    return FIRST_BUCKET + parameters.oov_buckets + int(artifact.table.num_rows)


@op(
    per_value=True,
    ids=_ids,
    takes={INTEGER, STRING, BINARY},
    gives="int64",
    parameters=Vocabulary,
    learns=Learning(learner=learner_of, name=lambda parameters: parameters.name),
    examples=(
        example("vocabulary", None, pl.Int64(), [30, 20, 30, 7, None], [3, 5, 3, 4, 1]),
        example("vocabulary", 2, pl.String(), ["b", "a", "c", "b", "a"], [4, 3, 2, 4, 3]),
        example(
            "vocabulary",
            {"max_size": 1, "oov_buckets": 100},
            pl.List(pl.Int32()),
            [[5, 5, 0], [1, None], [], None],
            [[102, 102, 37], [67, 1], [], None],
        ),
        example("vocabulary", {"min_count": 2, "oov_buckets": 0}, pl.String(), ["x", "y", "x", None], [2, 1, 2, 1]),
    ),
)
def vocabulary(x: Value, parameters: Vocabulary, artifact: Artifact, _: Mapping[str, Value]) -> Value:
    """Numbers ids and strings by how often they occur in the rows that the pipeline is fitted on.

    The layout is the same in every version, so an embedding table stays valid as long as its vocabulary is kept. For B
    `oov_buckets` and N values:

    | id | stands for |
    |---|---|
    | 0 | padding; no value ever becomes 0 |
    | 1 | null |
    | 2 … B + 1 | values that are not in the vocabulary: 2 + `hash mod B`, by the hash of [hash_bucket](#hash_bucket) |
    | B + 2 … B + N + 1 | the values, the most frequent first |

    An embedding needs B + N + 2 rows; `feedline fit --show` prints the number. Values with equal counts are in
    ascending order: ids as numbers, strings and binary values by their bytes (strings: UTF-8). Values that occur less
    than `min_count` times are removed first, then those beyond `max_size`. An id has the same number in columns of
    int32, int64 and uint64.

    The default of one bucket keeps unknown values apart from nulls; more buckets keep them apart from each other. With
    0 buckets unknown values become 1, like nulls. They are never an error: new values appear every day.

    In lists each element is looked up, and occurrences are counted by element; a null element becomes 1, a null list
    stays null. Weights stay with their ids. With a `name`, the occurrences in all columns that share it are counted
    together.

    Fitting is exact for tables of any size: counts that outgrow memory are kept on disk. Only the vocabulary itself
    must fit in memory. A process that looks up values needs 52 bytes per id (20 to 52 for ids in a narrow range), and
    68 bytes plus twice its length per string.

    Like `Categorify` in NVTabular, where the order of equally frequent values is not defined.
    """
    lookup = _IdLookup(artifact, parameters.oov_buckets)
    if x.kind.element == INTEGER:
        x = widen(x)
        expr = x.apply_kernel(lookup.integers, pl.Int64()).expr
    else:
        expr = x.apply_to_series(lookup.strings).expr
    unknown_ids = range(FIRST_BUCKET, lookup.first) if parameters.oov_buckets else range(NULL_ID, NULL_ID + 1)
    return Value(expr=expr.fill_null(NULL_ID), dtype=pl.Int64(), unknown=unknown_ids)


def decode(id: int, parameters: Vocabulary, artifact: Artifact) -> int | str | bytes:
    """The value of an id, or "padding", "null" or "unknown" in angle brackets for ids without a value."""
    assert artifact.table is not None
    first = FIRST_BUCKET + parameters.oov_buckets
    if id >= first:
        value: int | str | bytes = artifact.table["value"][id - first].as_py()
        return value
    return "<unknown>" if id >= FIRST_BUCKET else ("<padding>", "<null>")[id]


@dataclass(frozen=True, slots=True)
class _IdLookup:
    """The ids of an artifact's values; its lookup tables are built on first use."""

    artifact: Artifact
    buckets: int

    @property
    def first(self) -> int:
        return FIRST_BUCKET + self.buckets

    def integers(self, values: Values, out: Values) -> None:
        name = f"{values.dtype} from {self.first}"
        self.artifact.derive(name, lambda: self._integer_table(values.dtype)).find(values, out)
        if (misses := self._misses(out)) is not None:
            self._to_buckets(values[misses].view(np.uint64), misses, out)

    def strings(self, series: pl.Series, out: Values) -> None:
        self.artifact.derive(f"texts from {self.first}", self._string_table).find(series, out)
        if (misses := self._misses(out)) is not None:
            self._to_buckets(digest(series[misses]), misses, out)

    def _misses(self, out: Values) -> Values | None:
        """The positions of unknown values (0) that must be hashed; None if there are none."""
        if self.buckets > 1:
            misses = np.flatnonzero(out == 0)
            return misses if len(misses) else None
        np.maximum(out, FIRST_BUCKET if self.buckets else NULL_ID, out=out)  # ids that were found are larger
        return None

    def _to_buckets(self, words: Values, misses: Values, out: Values) -> None:
        found = np.empty(len(misses), dtype=np.int64)
        bucket_integers(words, found, 0, self.buckets)
        out[misses] = found + FIRST_BUCKET

    def _integer_table(self, dtype: np.dtype[Any]) -> DirectTable | CuckooTable:
        """The vocabulary in the column's type, without values that this type cannot hold."""
        assert self.artifact.table is not None
        keys = self.artifact.table["value"].to_numpy()
        results = np.arange(self.first, self.first + len(keys), dtype=np.int64)
        if keys.dtype != dtype:
            within = keys >= 0 if keys.dtype == np.int64 else keys <= np.uint64(MAX_INT)
            keys, results = keys[within].astype(dtype), results[within]
        return integer_table(keys, results)

    def _string_table(self) -> StringTable:
        assert self.artifact.table is not None
        return StringTable.of(pl.Series(self.artifact.table["value"]).rechunk(), self.first)
