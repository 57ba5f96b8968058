"""The cases of `transforms.py`: each op with its data and with bare formulations in numpy and Polars.

A bare formulation is what one would write for this case alone: without null handling if the data has no nulls, in the
types of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.transforms.learning.learner import Artifact

MEAN_LENGTH = 20
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
BLOCK = 16384
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """An op over a frame. `values`: the input values it is charged for; `same`: both sides compute the same numbers.

    artifact: what the op has learnt.
    """

    name: str
    calls: tuple[tuple[str, Any], ...]
    frame: pl.DataFrame
    values: int
    bare: dict[str, Callable[[], Any]] = field(default_factory=dict)
    same: bool = True
    artifact: Artifact | None = None

    @property
    def op(self) -> str:
        return self.calls[0][0]


@dataclass(frozen=True)
class Data:
    """The data of all cases: `rows` numbers, ids, words and lists."""

    floats: Array
    ids: Array
    words: pl.Series
    values: Array
    offsets: Array
    others: Array
    other_offsets: Array
    weights: Array


def make_data(rows: int) -> Data:
    """Return the data; the same at every call with these sizes."""
    random = np.random.default_rng(0)

    def lists() -> tuple[Array, Array]:
        lengths = random.integers(0, 2 * MEAN_LENGTH + 1, rows)
        return random.integers(0, 100_000, int(lengths.sum())), np.concatenate(([0], np.cumsum(lengths)))

    values, offsets = lists()
    others, other_offsets = lists()
    words = pl.Series([f"{number:x}" for number in random.integers(0, 2**40, rows)])
    return Data(
        floats=random.gamma(2, 1, rows).astype(np.float32),
        ids=random.integers(0, 2**40, rows),
        words=words,
        values=values,
        offsets=offsets,
        others=others,
        other_offsets=other_offsets,
        weights=random.random(len(values), dtype=np.float32),
    )


def blocked(function: Callable[[Array], Array], values: Array) -> Array:
    """Apply `function` to blocks that fit the caches."""
    out = None
    for start in range(0, len(values), BLOCK):
        part = function(values[start : start + BLOCK])
        if out is None:
            out = np.empty(len(values), part.dtype)
        out[start : start + BLOCK] = part
    assert out is not None
    return out


def mix(words: Array) -> Array:
    """Splitmix64's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def bucket(words: Array, buckets: int) -> Array:
    """A bucket of 64-bit words, by the hash of hash_bucket."""
    hashed = mix(words + GOLDEN)
    return (hashed - hashed // np.uint64(buckets) * np.uint64(buckets)).view(np.int64)


def scatter(values: Array) -> Array:
    """What a cross is made of."""
    return mix(values.view(np.uint64) + GOLDEN)


def sigrid(ids: Array, limit: int) -> Array:
    """Compute TorchArrow's sigrid_hash with salt 0."""
    key = ids.view(np.uint64)
    key = ~key + (key << np.uint64(21))
    key ^= key >> np.uint64(24)
    key *= np.uint64(265)
    key ^= key >> np.uint64(14)
    key *= np.uint64(21)
    key ^= key >> np.uint64(28)
    key += key << np.uint64(31)
    multiplier = np.uint64(0x9DDFEA08EB382D69)
    key *= multiplier
    key ^= key >> np.uint64(47)
    key *= multiplier
    key ^= key >> np.uint64(47)
    signed = (key * multiplier).view(np.int64)
    return signed - signed // limit * limit


def list_series(values: Array, offsets: Array) -> pl.Series:
    """The lists as a Polars series."""
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values)))


def cases(rows: int) -> list[Case]:
    """All cases at so many rows."""
    data = make_data(rows)
    return [*dense_cases(data), *vector_cases(data), *id_cases(data), *list_cases(data), *pair_cases(data)]


def dense_cases(data: Data) -> list[Case]:
    """One number per row."""
    x, size = data.floats, len(data.floats)
    frame = pl.DataFrame({"x": x})
    series = frame["x"]
    nulls = pl.DataFrame({"x": pl.Series(x).set(pl.Series(np.arange(size) % 20 == 0), None)})
    odd = x.copy()
    odd[::20] = np.nan
    borders = np.linspace(0.05, 8, 100).astype(np.float32)
    p = (x / (x + 1)).astype(np.float32)
    moments = pl.Series(data.ids % 10**9).cast(pl.Datetime("ms"))

    def of(
        name: str,
        arguments: Any,
        bare: dict[str, Callable[[], Any]],
        held: pl.DataFrame = frame,
        learnt: dict[str, Any] | None = None,
    ) -> Case:
        value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
        artifact = None if learnt is None else Artifact(facts=learnt)
        return Case(name=name, calls=((name, value),), frame=held, values=size, bare=bare, artifact=artifact)

    def logit(values: Array) -> Array:
        clipped = np.clip(values, np.float32(1e-3), np.float32(1 - 1e-3))
        return np.log(clipped / (1 - clipped))

    def standardized(values: Array) -> Array:
        return ((values.astype(np.float64) - 2) / 1.5).astype(np.float32)

    def linear(values: Array) -> Array:
        return values.astype(np.float64) * 2 + 1  # integers with float32 compute in float64

    def chained(values: Array) -> Array:
        return standardized(np.log1p(np.clip(values, np.float32(0.5), np.float32(3))))

    return [
        of("fill_null", 0, {"polars": lambda: nulls["x"].fill_null(0)}, nulls),
        of(
            "fill_nonfinite",
            0,
            {
                "numpy where": lambda: blocked(lambda v: np.where(np.isfinite(v), v, np.float32(0)), odd),
                "numpy nan_to_num": lambda: np.nan_to_num(odd, nan=0, posinf=0, neginf=0),
            },
            pl.DataFrame({"x": odd}),
        ),
        of(
            "clip", {"min": 0.5, "max": 3}, {"numpy": lambda: np.clip(x, 0.5, 3), "polars": lambda: series.clip(0.5, 3)}
        ),
        of("log", None, {"numpy": lambda: np.log(x), "polars": series.log}),
        of("log1p", None, {"numpy": lambda: np.log1p(x), "polars": series.log1p}),
        of("logit", 1e-3, {"numpy": lambda: blocked(logit, p)}, pl.DataFrame({"x": p})),
        of(
            "box_cox",
            0.5,
            {
                "numpy expm1": lambda: blocked(lambda v: np.expm1(np.float32(0.5) * np.log(v)) / np.float32(0.5), x),
            },
        ),
        of(
            "standardize",
            {"mean": 2, "std": 1.5},
            {
                "numpy": lambda: blocked(standardized, x),
                "polars": lambda: ((series.cast(pl.Float64) - 2) / 1.5).cast(pl.Float32),
            },
        ),
        of("min_max", {"min": 2, "max": 3.5}, {"numpy": lambda: blocked(standardized, x)}),
        of("fill_median", None, {"polars": lambda: nulls["x"].fill_null(1.5)}, nulls, {"quantiles": [1.5]}),
        of("fill_mean", None, {"polars": lambda: nulls["x"].fill_null(1.5)}, nulls, {"mean": 1.5}),
        of(
            "quantile_bucketize",
            len(borders) + 1,
            {"numpy": lambda: np.searchsorted(borders, x, side="left")},
            learnt={"quantiles": borders.tolist()},
        ),
        of("cast", "int64", {"numpy": lambda: x.astype(np.int64), "polars": lambda: series.cast(pl.Int64)}),
        of(
            "bucketize",
            borders.tolist(),
            {
                "numpy": lambda: np.searchsorted(borders, x, side="left"),
                "polars": lambda: pl.Series(borders).search_sorted(series, side="left"),
            },
        ),
        of(
            "expr",
            "x * 2 + 1",
            {"polars": lambda: series.cast(pl.Float64) * 2 + 1, "numpy": lambda: blocked(linear, x)},
        ),
        Case(
            "clip, log1p, standardize",
            (("clip", {"min": 0.5, "max": 3}), ("log1p", {}), ("standardize", {"mean": 2, "std": 1.5})),
            frame,
            size,
            {"numpy": lambda: blocked(chained, x)},
        ),
        of(
            "get_local_hour",
            "Europe/Zurich",
            {"polars": lambda: moments.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Zurich").dt.hour()},
            pl.DataFrame({"x": moments}),
        ),
    ]


def vector_cases(data: Data) -> list[Case]:
    """Vectors; what is charged are rows for onehot, elements for the others."""
    rows = len(data.ids)
    places = data.ids[:rows] % 16
    lists = list_series(data.values, data.offsets)
    matrix = np.resize(data.floats, (rows, 16)).astype(np.float32)
    other = np.roll(matrix, 1)
    lengths = np.diff(data.offsets)

    def onehot() -> Array:
        out = np.zeros((rows, 16), np.float32)
        out[np.arange(rows), places] = 1
        return out

    def padded() -> Array:
        out = np.zeros((len(lengths), MEAN_LENGTH), np.int64)
        cut = np.minimum(lengths, MEAN_LENGTH)
        begins = np.cumsum(cut) - cut
        chosen = np.arange(int(cut.sum())) + np.repeat(data.offsets[:-1] - begins, cut)
        out[np.arange(MEAN_LENGTH) < cut[:, None]] = data.values[chosen]
        return out

    def cosine() -> Array:
        a, b = matrix.astype(np.float64), other.astype(np.float64)
        norm = np.sqrt(np.einsum("ij,ij->i", a, a)) * np.sqrt(np.einsum("ij,ij->i", b, b))
        return (np.einsum("ij,ij->i", a, b) / norm).astype(np.float32)

    vectors = pl.Series(matrix)
    return [
        Case("onehot", (("onehot", {"": 16}),), pl.DataFrame({"x": places}), rows, {"numpy": onehot}),
        Case("pad", (("pad", {"": MEAN_LENGTH}),), pl.DataFrame({"x": lists}), len(data.values), {"numpy": padded}),
        Case("vector", (("vector", {"": 16}),), pl.DataFrame({"x": vectors.arr.to_list()}), matrix.size),
        Case(
            "column_similarity",
            (("column_similarity", {}),),
            pl.DataFrame({"x": vectors, "y": pl.Series(other)}),
            matrix.size,
            {"numpy": cosine},
        ),
    ]


def id_cases(data: Data) -> list[Case]:
    """One id per row."""
    ids, size = data.ids, len(data.ids)
    frame = pl.DataFrame({"x": ids})
    small = pl.DataFrame({"x": ids % 200})
    keys = np.arange(0, 200, 2)
    series, few, words = frame["x"], small["x"], data.words
    both = pl.DataFrame({"x": ids, "y": ids % 1000})
    second = both["y"].to_numpy()
    buckets = 1_000_003
    table = pl.Series(keys), pl.Series(keys + 1)

    def crossed(values: Array, others: Array) -> Array:
        out = np.empty(len(values), np.int64)
        for start in range(0, len(values), BLOCK):
            part = slice(start, start + BLOCK)
            out[part] = bucket(scatter(values[part]) * GOLDEN + scatter(others[part]), buckets)
        return out

    return [
        Case(
            "hash_bucket",
            (("hash_bucket", {"": buckets}),),
            frame,
            size,
            {"numpy": lambda: blocked(lambda v: bucket(v.view(np.uint64), buckets), ids)},
        ),
        Case(
            "hash_bucket of strings",
            (("hash_bucket", {"": buckets}),),
            pl.DataFrame({"x": words}),
            size,
            {"polars' own hash, which changes": lambda: words.hash() % buckets},
            same=False,
        ),
        Case(
            "sigrid_hash",
            (("sigrid_hash", {"salt": 0, "max_value": buckets}),),
            frame,
            size,
            {"numpy": lambda: blocked(lambda v: sigrid(v, buckets), ids)},
        ),
        Case(
            "modulo",
            (("modulo", {"": buckets}),),
            frame,
            size,
            {"numpy": lambda: blocked(lambda v: v - v // buckets * buckets, ids), "polars": lambda: series % buckets},
        ),
        Case(
            "map_id",
            (("map_id", {"keys": keys.tolist(), "values": (keys + 1).tolist(), "default": 0}),),
            small,
            size,
            {"polars": lambda: few.replace_strict(*table, default=0, return_dtype=pl.Int64)},
        ),
        Case(
            "hashed_cross",
            (("hashed_cross", {"": buckets}),),
            both,
            2 * size,
            {"numpy": lambda: crossed(ids, second)},
        ),
    ]


def list_cases(data: Data) -> list[Case]:
    """One list per row."""
    values, offsets, size = data.values, data.offsets, len(data.values)
    lists = list_series(values, offsets)
    weights = list_series(data.weights, offsets)
    frame = pl.DataFrame({"x": lists})
    lengths = np.diff(offsets)
    buckets = 1_000_003

    def bigrams() -> Array:
        words = blocked(scatter, values)
        made = blocked(lambda v: bucket(v, buckets), words[:-1] * GOLDEN + words[1:])
        inside = np.ones(len(values), np.bool_)
        inside[offsets[1:][lengths > 0] - 1] = False
        return made[inside[:-1]]

    def enumerated() -> Array:
        return np.arange(size) - np.repeat(offsets[:-1], lengths)

    def within() -> tuple[Array, Array]:
        kept = values >= 50_000
        return values[kept], np.concatenate(([0], np.cumsum(kept)))[offsets]

    def of(name: str, arguments: Any, bare: dict[str, Callable[[], Any]], label: str = "") -> Case:
        value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
        return Case(name=label or name, calls=((name, value),), frame=frame, values=size, bare=bare)

    return [
        of("first_x", MEAN_LENGTH, {"polars": lambda: lists.list.head(MEAN_LENGTH)}),
        of("list_slice", -10, {"polars": lambda: lists.list.tail(10)}),
        of(
            "id_list_transform",
            {"min": 50_000},
            {
                "numpy": lambda: within()[0],
                "polars": lambda: lists.list.eval(pl.element().filter(pl.element() >= 50_000)),
            },
        ),
        of(
            "id_list_transform",
            {"unique": True},
            {"polars": lambda: lists.list.unique(maintain_order=True)},
            "id_list_transform, unique",
        ),
        of("enumerate", None, {"numpy": enumerated}),
        of("ngram", {"n": 2, "buckets": buckets}, {"numpy": bigrams}),
        Case("weighted", (("weighted", {}),), pl.DataFrame({"x": lists, "y": weights}), size),
    ]


def pair_cases(data: Data) -> list[Case]:
    """Two lists per row; what is charged are the values of both."""
    left, right = list_series(data.values, data.offsets), list_series(data.others, data.other_offsets)
    frame = pl.DataFrame({"x": left, "y": right})
    size = len(data.values) + len(data.others)
    heads = pl.DataFrame({"x": left.list.head(5), "y": right.list.head(5)})
    few = int(heads["x"].list.len().sum() + heads["y"].list.len().sum())
    weights = list_series(data.weights, data.offsets)
    scores = pl.DataFrame({"x": left, "s": weights, "y": left, "t": weights})
    buckets = 1_000_003

    def counts() -> pl.Series:
        return left.list.set_intersection(right).list.len()

    def products() -> pl.Series:
        with_row = heads.with_row_index("row")
        pairs = with_row.explode("x", empty_as_null=False).explode("y", empty_as_null=False)
        first, second = (pairs[name].to_numpy() for name in ("x", "y"))
        return pl.Series(
            blocked(lambda v: bucket(v, buckets), blocked(scatter, first) * GOLDEN + blocked(scatter, second))
        )

    def case(name: str, bare: dict[str, Callable[[], Any]]) -> Case:
        return Case(name, ((name, {}),), frame, size, bare, same=False)

    return [
        Case("cartesian", (("cartesian", {"": buckets}),), heads, few, {"polars explode": products}),
        case("positive_intersect", {"polars, without repetitions": lambda: left.list.set_intersection(right)}),
        *(
            case(name, {"polars, of sets": counts})
            for name in ("id_overlap_count", "has_id_overlap", "get_max_count", "get_jaccard_similarity")
        ),
        *(
            Case(name, ((name, {}),), scores, 2 * len(data.values))
            for name in ("get_cosine_similarity", "get_score_sum", "get_score_min", "get_score_max")
        ),
    ]
