"""Ops that compare two lists of a row: id_overlap_count, has_id_overlap, the scores of TorchArrow, column_similarity.

Built in every process, run on the workers. TorchArrow computes scores row by row with a hash map; here all rows of a
chunk are matched at once (see `matching`), with sums in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
import pyarrow as pa
from pydantic import Field

from feedline.errors import DataError, SpecError
from feedline.expressions.types import INTEGER, NUMBERS, language_type
from feedline.transforms.ops.crosses import same_type
from feedline.transforms.registry.op import Input, Parameters, example_of_several, op
from feedline.transforms.values.arrays import NUMPY_TYPES, Values
from feedline.transforms.values.kinds import WEIGHTS, Value, element_type
from feedline.transforms.values.matching import Numbers, reduce_scores, row_blocks, shared_counts
from feedline.transforms.values.ragged import Mask, Ragged, align_weights, either, over_columns, widen_list

_VECTORS = 2048  # vectors compared at a time
_IDS = frozenset({INTEGER})
_FLOATS = NUMBERS - {INTEGER}
PAIR = (
    Input(name="ids", takes=_IDS, lists="only", weighted=True),
    Input(name="matching", takes=_IDS, lists="only", weighted=True),
)
SCORED_PAIR = (
    PAIR[0],
    Input(name="scores", takes=_FLOATS, lists="only", optional=True),
    PAIR[1],
    Input(name="matching_scores", takes=_FLOATS, lists="only", optional=True),
)
_LISTS = pl.List(pl.Int64())
_A: tuple[pl.DataType, list[Any]] = (_LISTS, [[1, 2, 3], [10, 10, 11, 12], [], None])
_B: tuple[pl.DataType, list[Any]] = (_LISTS, [[1, 2, 3], [10, 10, 11, 13], [1], [1]])
_A_SCORES: tuple[pl.DataType, list[Any]] = (WEIGHTS, [[1, 2, 3], [10, 10, 11, 12], [], None])
_B_SCORES: tuple[pl.DataType, list[Any]] = (WEIGHTS, [[1, 2, 3], [10, 10, 11, 13], [1], [1]])


def _over_pairs(inputs: Sequence[Value], count: Callable[[Ragged, Ragged], Values]) -> Value:
    """`count` of two lists without their nulls, as float32; null if one of the lists is."""
    left, right = same_type([widen_list(x) for x in inputs])

    def run(first: pl.Series, second: pl.Series) -> pl.Series:
        mine, other = Ragged.of(first), Ragged.of(second)
        found = np.empty(len(first), dtype=np.float64)
        for rows, (left, right) in row_blocks(mine.drop_holes(), other.drop_holes()):
            found[rows] = count(left, right)
        return _scores(found, either([mine.absent, other.absent]))

    return Value(expr=over_columns([left.expr, right.expr], run, pl.Float32()), dtype=pl.Float32())


def _scores(found: Values, absent: Mask | None) -> pl.Series:
    return pl.Series(pa.array(found.astype(np.float32), mask=absent))


def _per_row(rows: Any, numbers: Values, count: int) -> Numbers:
    return np.bincount(rows, weights=numbers, minlength=count).astype(np.float64)


def _ratio(top: Numbers, bottom: Numbers) -> Numbers:
    """0 where the divisor is."""
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom != 0)


def _overlap(left: Ragged, right: Ragged) -> Numbers:
    rows, mine, others = shared_counts(left, right)
    return _per_row(rows, np.minimum(mine, others), len(left.lengths))


@op(
    inputs=PAIR,
    gives="float32",
    examples=(example_of_several("id_overlap_count", None, [_A, _B], [3.0, 3.0, 0.0, None]),),
)
def id_overlap_count(inputs: Sequence[Value], _: Parameters) -> Value:
    """The number of ids that two lists have in common: the size of their intersection as multisets.

    An id that occurs twice in one list and three times in the other counts 2. Null elements are ignored; a null list
    gives a null. As in TorchArrow.
    """
    return _over_pairs(inputs, _overlap)


@op(
    inputs=PAIR,
    gives="float32: 1 or 0",
    examples=(example_of_several("has_id_overlap", None, [_A, _B], [1.0, 1.0, 0.0, None]),),
)
def has_id_overlap(inputs: Sequence[Value], _: Parameters) -> Value:
    """Whether two lists have an id in common.

    Null elements are ignored; a null list gives a null. As in TorchArrow.
    """
    return _over_pairs(inputs, lambda left, right: _overlap(left, right) > 0)


@op(
    inputs=PAIR,
    gives="float32",
    examples=(example_of_several("get_max_count", None, [_A, _B], [3.0, 3.0, 0.0, None]),),
)
def get_max_count(inputs: Sequence[Value], _: Parameters) -> Value:
    """The sum, over the ids that both lists hold, of the larger of their two counts.

    Null elements are ignored; a null list gives a null. As in TorchArrow.
    """

    def count(left: Ragged, right: Ragged) -> Values:
        rows, mine, others = shared_counts(left, right)
        return _per_row(rows, np.maximum(mine, others), len(left.lengths))

    return _over_pairs(inputs, count)


@op(
    inputs=PAIR,
    gives="float32: 0 to 1",
    examples=(example_of_several("get_jaccard_similarity", None, [_A, _B], [1.0, 0.6000000238418579, 0.0, None]),),
)
def get_jaccard_similarity(inputs: Sequence[Value], _: Parameters) -> Value:
    """The size of two lists' intersection divided by that of their union, both as multisets.

    Two empty lists give 0 (TorchArrow: NaN). Null elements are ignored; a null list gives a null.
    """

    def similarity(left: Ragged, right: Ragged) -> Values:
        shared = _overlap(left, right)
        return _ratio(shared, left.lengths + right.lengths - shared)

    return _over_pairs(inputs, similarity)


Reduce = Callable[[Ragged, Values, Ragged, Values], Values]


def _over_scored_pairs(inputs: Sequence[Value | None], needs_scores: tuple[bool, bool], reduce: Reduce) -> Value:
    """`reduce` of two lists and their scores, without elements whose id or needed score is null."""
    sides = [_with_scores(inputs[index], inputs[index + 1], needs_scores[index // 2]) for index in (0, 2)]
    left, right = same_type(sides)

    def run(first: pl.Series, scores: pl.Series, second: pl.Series, matching: pl.Series) -> pl.Series:
        (mine, own), (other, theirs) = _hold(first, scores), _hold(second, matching)
        found = np.empty(len(first), dtype=np.float64)
        for rows, (one, two) in row_blocks(mine, other):
            stop = rows.stop
            ours = own[mine.offsets[rows.start] : mine.offsets[stop]]
            others = theirs[other.offsets[rows.start] : other.offsets[stop]]
            found[rows] = reduce(one, ours, two, others)
        return _scores(found, either([mine.absent, other.absent]))

    ones = [
        x.weights if x.weights is not None else x.expr.list.eval(pl.lit(1.0, dtype=pl.Float32())) for x in (left, right)
    ]
    columns = [left.expr, ones[0], right.expr, ones[1]]
    return Value(expr=over_columns(columns, run, pl.Float32()), dtype=pl.Float32())


def _with_scores(ids: Value | None, scores: Value | None, needs_scores: bool) -> Value:
    assert ids is not None
    if ids.weights is not None and scores is not None:
        raise SpecError("ids have scores already: got a weighted list and a list of scores, expected one of them")
    if scores is not None:
        ids = align_weights(ids, scores, None)
    if needs_scores and ids.weights is None:
        raise SpecError(f"ids must have scores: got {ids.kind}, expected a weighted list, or a list of floats after it")
    return widen_list(ids)


def _hold(series: pl.Series, scores: pl.Series) -> tuple[Ragged, Values]:
    ragged, score_lists = Ragged.of(series), Ragged.of(scores)
    if len(ragged.values) != len(score_lists.values):
        raise DataError("each id must have one score")
    holes = either([ragged.holes, score_lists.holes])
    if holes is None:
        return ragged, score_lists.values
    return ragged.where(~holes), score_lists.values[~holes]


_SCORED: list[tuple[pl.DataType, list[Any]]] = [_A, _A_SCORES, _B, _B_SCORES]


@op(
    inputs=SCORED_PAIR,
    gives="float32: -1 to 1",
    examples=(example_of_several("get_cosine_similarity", None, _SCORED, [1.0, 0.7691346406936646, 0.0, None]),),
)
def get_cosine_similarity(inputs: Sequence[Value | None], _: Parameters) -> Value:
    """The cosine of two lists as vectors over all ids, where an id's coordinate is the sum of its scores.

    Scores are a list of floats after the ids, or the weights of weighted ids; likewise in the following ops. A list
    whose scores are all 0, or that is empty, gives 0 (TorchArrow: an error). A score that is NaN or infinite gives NaN.
    Elements whose id or score is null are ignored; a null list gives a null.
    """
    return _over_scored_pairs(inputs, (True, True), _cosine)


def _cosine(left: Ragged, own: Values, right: Ragged, theirs: Values) -> Values:
    sums, count = reduce_scores(left, own, right, theirs), len(left.lengths)
    inner = _per_row(sums.rows, sums.left * sums.right, count)
    squares = [_per_row(sums.rows, side * side, count) for side in (sums.left, sums.right)]
    return _ratio(inner, np.sqrt(squares[0]) * np.sqrt(squares[1]))


def _inner(left: Ragged, own: Values, right: Ragged, theirs: Values) -> Values:
    sums = reduce_scores(left, own, right, theirs)
    return _per_row(sums.rows, sums.left * sums.right, len(left.lengths))


@op(
    inputs=SCORED_PAIR,
    gives="float32",
    examples=(example_of_several("get_score_sum", None, _SCORED, [6.0, 31.0, 0.0, None]),),
)
def get_score_sum(inputs: Sequence[Value | None], _: Parameters) -> Value:
    """The sum of the matching list's scores over the ids that also occur in the first list.

    Counts and scores of the first list are ignored. 0 without such ids. A NaN among the scores gives NaN. Elements
    whose id or score is null are ignored; a null list gives a null. As in TorchArrow.
    """

    def total(left: Ragged, _: Values, right: Ragged, theirs: Values) -> Values:
        sums = reduce_scores(left, None, right, theirs)
        return _per_row(sums.rows[sums.shared], sums.right[sums.shared], len(left.lengths))

    return _over_scored_pairs(inputs, (False, True), total)


def _extreme(inputs: Sequence[Value | None], combine: np.ufunc) -> Value:
    def extreme(left: Ragged, _: Values, right: Ragged, theirs: Values) -> Values:
        sums = reduce_scores(left, None, right, theirs, combine)
        rows, scores = sums.rows[sums.shared], sums.right[sums.shared]
        found = np.zeros(len(left.lengths))
        starts = np.flatnonzero(np.diff(rows, prepend=-1))
        if len(starts):
            found[rows[starts]] = combine.reduceat(scores, starts)
        return found

    return _over_scored_pairs(inputs, (False, True), extreme)


@op(
    inputs=SCORED_PAIR,
    gives="float32",
    examples=(example_of_several("get_score_min", None, [_A, _B, _B_SCORES], [1.0, 10.0, 0.0, None]),),
)
def get_score_min(inputs: Sequence[Value | None], _: Parameters) -> Value:
    """The smallest of the matching list's scores over the ids that also occur in the first list; 0 without such ids.

    A NaN among them gives NaN. Elements whose id or score is null are ignored; a null list gives a null. As in
    TorchArrow.
    """
    return _extreme(inputs, np.minimum)


@op(
    inputs=SCORED_PAIR,
    gives="float32",
    examples=(example_of_several("get_score_max", None, [_A, _B, _B_SCORES], [3.0, 11.0, 0.0, None]),),
)
def get_score_max(inputs: Sequence[Value | None], _: Parameters) -> Value:
    """The largest of the matching list's scores over the ids that also occur in the first list; 0 without such ids.

    A NaN among them gives NaN. Elements whose id or score is null are ignored; a null list gives a null. As in
    TorchArrow.
    """
    return _extreme(inputs, np.maximum)


class Similarity(Parameters):
    metric: Annotated[Literal["cosine", "inner"], Field(description="The cosine, or the inner product.")] = "cosine"


_ANY = frozenset(NUMBERS)


@op(
    inputs=(
        Input(name="first", takes=_ANY, lists="only", weighted=True, vectors=True),
        Input(name="second", takes=_ANY, lists="only", weighted=True, vectors=True),
    ),
    gives="float32",
    parameters=Similarity,
    examples=(
        example_of_several("column_similarity", "inner", [_A, _B], [3.0, 5.0, 0.0, None]),
        example_of_several(
            "column_similarity",
            None,
            [
                (pl.Array(pl.Float32(), 2), [[1.0, 0.0], [3.0, 4.0]]),
                (pl.Array(pl.Float32(), 2), [[0.0, 2.0], [6.0, 8.0]]),
            ],
            [0.0, 1.0],
        ),
    ),
)
def column_similarity(inputs: Sequence[Value], parameters: Similarity) -> Value:
    """The similarity of two columns in each row: two vectors of one width, or two lists of ids.

    A list of ids is a vector over all ids, where an id's coordinate is the sum of its weights, or its count. The cosine
    with a vector of length 0 is 0, and with one that is not finite NaN. Null elements of lists are ignored; a null list
    or vector, or a null inside a vector, gives a null. NVTabular's `ColumnSimilarity` first looks ids up in a table of
    vectors; here the vectors are columns.
    """
    widths = [x.width for x in inputs]
    if None not in widths:
        return _of_vectors(inputs, parameters.metric)
    if any(x.kind.element != INTEGER for x in inputs):
        kinds = " and ".join(str(x.kind) for x in inputs)
        raise SpecError(
            f"the inputs must be two vectors or two lists of ids: got {kinds}. {{vector: WIDTH}} makes a vector"
        )
    plain = [x.plain() for x in inputs]
    reduce = _cosine if parameters.metric == "cosine" else _inner
    return _over_scored_pairs([plain[0], None, plain[1], None], (False, False), reduce)


def _of_vectors(inputs: Sequence[Value], metric: str) -> Value:
    left, right = (x.width for x in inputs)
    if left != right:
        raise SpecError(f"vectors must have one width to be compared: got {left} and {right}")

    def run(first: pl.Series, second: pl.Series) -> pl.Series:
        found = np.empty(len(first), dtype=np.float64)
        (a, first_nulls), (b, second_nulls) = _matrix(first), _matrix(second)
        for start in range(0, len(first), _VECTORS):
            block = slice(start, start + _VECTORS)
            found[block] = _similarity(a[block].astype(np.float64), b[block].astype(np.float64), metric)
        return _scores(found, either([first_nulls, second_nulls]))

    floats = pl.Array(pl.Float64(), left or 0)
    numbers = [x.expr if element_type(language_type(x.dtype)) in NUMPY_TYPES else x.expr.cast(floats) for x in inputs]
    return Value(expr=over_columns(numbers, run, pl.Float32()), dtype=pl.Float32())


def _similarity(a: Numbers, b: Numbers, metric: str) -> Numbers:
    inner: Numbers = np.einsum("ij,ij->i", a, b)
    if metric == "inner":
        return inner
    return _ratio(inner, np.sqrt(np.einsum("ij,ij->i", a, a)) * np.sqrt(np.einsum("ij,ij->i", b, b)))


def _matrix(vectors: pl.Series) -> tuple[Values, Mask | None]:
    """The vectors as a matrix, and which of them are null or hold a null (None: none)."""
    array = vectors.rechunk().to_arrow()
    width = array.type.list_size
    flat = array.values.slice(array.offset * width, len(array) * width)
    dtype = flat.type.to_pandas_dtype()
    start = flat.offset * np.dtype(dtype).itemsize
    data = flat.buffers()[1]
    matrix = np.frombuffer(data, dtype, count=len(flat), offset=start) if len(flat) else np.empty(0, dtype)
    matrix = matrix.reshape(len(array), width)
    if not array.null_count and not flat.null_count:
        return matrix, None
    mask: Mask = flat.is_null().to_numpy(zero_copy_only=False).reshape(-1, width).any(axis=1)
    np.logical_or(mask, array.is_null().to_numpy(zero_copy_only=False), out=mask)
    return np.where(mask[:, None], 0, matrix), mask
