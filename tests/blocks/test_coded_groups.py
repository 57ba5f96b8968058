"""Deduplicated groups computed on dictionaries are, byte by byte, those computed on rows: batches, quality, errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coded_blocks import needs_kernel, on_codes_and_rows, outcome, pipeline
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import write_in_place

from feedline.blocks.coded_chunks import DictionaryFrame, first_coded_rows
from feedline.blocks.jobs import compile_job
from feedline.errors import FeedlineError
from feedline.warehouse.parquet.repeated_rows import run_starts_at
from feedline.warehouse.reading import row_filter

ROWS, ROW_GROUP, SESSION = 3000, 700, 6
NAN = float(np.array([0x7FF8000000000001], np.uint64).view(np.float64)[0])
WORDS = ["", "a", "Zürich", "long " * 9, None]
GROUP = ("word", "number", "history", "tags", "scores", "unclean", "item")
CODED = {"word", "number", "history", "tags", "scores", "other"}
FEATURES: dict[str, Any] = {
    "dense": {
        "number": [{"cast": "float32"}, {"fill_null": 0.25}, "log1p"],
        "unclean": {"column": "unclean", "ops": [{"fill_null": 2}], "on_nonfinite": "zero"},
    },
    "categorical": {
        "word": [{"vocabulary": {"min_count": 20}}],
        "bucket": {"column": "word", "ops": [{"hash_bucket": {"buckets": 30, "null_bucket": True}}]},
        "item": [{"fill_null": 9}],
        "other": [{"vocabulary": {"min_count": 20}}],
    },
    "sparse": {
        "history": [{"first_x": 4}, {"fill_null": 3}, {"hash_bucket": 50}],
        "tail": {"column": "history", "ops": [{"fill_null": -1}, {"modulo": 9}, {"list_slice": -2}]},
        "tags": [{"vocabulary": {"min_count": 30}}],
        "scores": {"column": "scores", "ops": [], "on_nonfinite": "zero"},
    },
    "label": {"clicked": []},
    "extra": ["row"],
}


def rows_of(random: np.random.Generator) -> tuple[pa.Table, list[bool]]:
    """Sessions in which the group's columns repeat, and where runs start; sometimes the next run has equal values."""

    def some(values: Sequence[Any], count: int) -> list[Any]:
        return [values[index] for index in random.integers(0, len(values), count)]

    ids = [*range(-5, 60), 2**40, None]
    starts = [row % SESSION == 0 or random.random() < 0.2 for row in range(ROWS)]
    run = np.cumsum(starts) - 1
    count = int(run[-1]) + 1
    numbers = ["0.5", "-0.0", "0", "1e30", "7", None]
    columns: dict[str, tuple[list[Any], pa.DataType]] = {
        "word": (some(WORDS, count), pa.string()),
        "number": (some(numbers, count), pa.string()),
        "history": ([None if random.random() < 0.1 else some(ids, n) for n in random.integers(0, 9, count)],
                    pa.list_(pa.int64())),
        "tags": ([some(WORDS[:-1], n) for n in random.integers(0, 4, count)], pa.large_list(pa.string())),
        "scores": ([some([0.5, 0.0, -0.0, NAN, float("nan"), np.inf], n) for n in random.integers(0, 4, count)],
                   pa.list_(pa.float32())),
        "unclean": (some([0.0, -0.0, NAN, float("nan"), 1.5, None], count), pa.float64()),
        "item": (some(ids, count), pa.int64()),
    }  # fmt: skip
    for values, _ in columns.values():  # runs of equal rows, one after the other
        for index in range(7, count, 7):
            values[index] = values[index - 1]
    table = pa.table({name: pa.array(values, kind).take(pa.array(run)) for name, (values, kind) in columns.items()})
    table = table.append_column("row", pa.array(range(ROWS)))
    table = table.append_column("session", pa.array([row // SESSION for row in range(ROWS)]))
    table = table.append_column("other", pa.array(some(["x", "y", "z"], ROWS)))
    return table.append_column("clicked", pa.array(some([0, 1], ROWS), pa.int8())), starts


STORED = ("stored once", "in every row", "of both kinds")


@pytest.fixture(scope="module", params=STORED)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groups") / "table"
    folder.mkdir()
    rows, starts = rows_of(np.random.default_rng(5))
    half = ROWS // 2
    if request.param == "in every row":
        pq.write_table(rows, folder / "0.parquet", row_group_size=ROW_GROUP)
        return folder
    columns = {"user": list(GROUP)}
    write_in_place(folder / "0.parquet", rows.slice(0, half), columns, {"user": starts[:half]}, ROW_GROUP)
    if request.param == "stored once":
        write_in_place(folder / "1.parquet", rows.slice(half), columns, {"user": starts[half:]}, ROW_GROUP)
    else:
        pq.write_table(rows.slice(half), folder / "1.parquet", row_group_size=ROW_GROUP)
    return folder


CHANGES: dict[str, Any] = {
    "features": FEATURES,
    "shuffle": {"seed": 1, "window_rows": 1500, "by": "session"},
    "dedup": {"user": {"columns": list(GROUP)}},
}


def stores_runs(table: Path) -> bool:
    return pq.read_schema(table / "0.parquet").get_field_index("__run_user") >= 0


SOURCES: list[dict[str, Any]] = [
    {},
    {"where": "row % 3 > 0 and clicked == 1"},
    {"where": "word == 'a' or row < 2000"},
    {"sample": {"fraction": 0.5, "seed": 4}},
]
# Both kinds beside each other with most sources, and each kind with one that it may treat in its own way.
PER_CHANGE = {("stored once", 2), ("in every row", 3), *(("of both kinds", number) for number in (0, 2, 3))}


@needs_kernel
@pytest.mark.filterwarnings("ignore:feature 'unclean'", "ignore:feature 'scores'")
@pytest.mark.parametrize(
    ("table", "source"),
    [
        pytest.param(
            kind, source, marks=() if (kind, number) in PER_CHANGE else pytest.mark.nightly, id=f"{kind}-{source}"
        )
        for kind in STORED
        for number, source in enumerate(SOURCES)
    ],
    indirect=["table"],
)
def test_groups_are_those_computed_on_rows(table: Path, tmp_path: Path, source: dict[str, Any], computed: set[str]):
    """And, expanded, the rows of a pipeline without groups, of which quality counts the same."""
    changes = {**CHANGES, "source": source}
    pipeline(table, tmp_path, **changes).fit()
    assert set(compile_job(pipeline(table, tmp_path, **changes).plan().source.job).read.coded) == CODED
    coded = outcome(pipeline(table, tmp_path, **changes))
    if not ("word" in source.get("where", "") and stores_runs(table)):  # else some chunks have the words
        assert computed == CODED
    expanded = outcome(pipeline(table, tmp_path, **changes), expanded=True)
    plain = {**changes, "dedup": {}}
    assert coded == outcome(pipeline(table, tmp_path, "arrow", **changes))
    assert not computed
    assert expanded == outcome(pipeline(table, tmp_path, "arrow", **plain), expanded=True)


@needs_kernel
@pytest.mark.filterwarnings("ignore:feature 'unclean'", "ignore:feature 'scores'")
def test_strings_of_groups_are_codes_where_filter_and_sample_need_their_values(
    table: Path, tmp_path: Path, computed: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_filter, "_LEAST_STRINGS", 0)
    sample = {"fraction": 0.7, "seed": 4, "key": ["word", "number"]}
    changes = {**CHANGES, "source": {"where": "word != other or tags.list.len() > 1", "sample": sample}}
    pipeline(table, tmp_path, **changes).fit()
    coded = outcome(pipeline(table, tmp_path, **changes))
    assert computed >= ({"history", "scores"} if stores_runs(table) else CODED)
    assert coded == outcome(pipeline(table, tmp_path, "arrow", **changes))
    assert isinstance(coded[0], list)


@needs_kernel
def test_columns_of_several_groups_come_as_codes(table: Path, tmp_path: Path, computed: set[str]):
    """Also strings of which an expression, too, is a feature; of lists, all elements."""
    features = {
        "dense": {"length": {"expr": "word.str.len_chars()", "ops": [{"fill_null": 0}]}},
        "categorical": {"word": [{"hash_bucket": 9}, {"fill_null": 0}], "other": [{"hash_bucket": 5}]},
        "sparse": {"history": [{"first_x": 2}, {"fill_null": 3}], "tags": [{"first_x": 2}, {"hash_bucket": 10}]},
        "extra": ["row"],
    }
    dedup = {"user": {"columns": ["word", "history"]}, "tagged": {"columns": ["tags"]}}
    changes = {**CHANGES, "features": features, "dedup": dedup}
    made = pipeline(table, tmp_path, **changes)
    assert compile_job(made.plan().source.job).read.coded == {"word": 0, "history": 0, "other": 0, "tags": 0}
    coded = outcome(made)
    assert computed >= {"history", "tags"}
    assert coded == outcome(pipeline(table, tmp_path, "arrow", **changes))


FAILING: list[dict[str, Any]] = [
    {"categorical": {"word": [{"cast": "int64"}, {"fill_null": 0}]}},
    {"categorical": {"word": [{"fill_null": "x"}, {"cast": "int64"}]}},
    {"sparse": {"history": [{"first_x": 9}]}},
    {"sparse": {"scores": {"column": "scores", "ops": [], "on_nonfinite": "error"}}},
    {"dense": {"number": {"column": "number", "on_nonfinite": "error",
                          "ops": [{"cast": "float32"}, {"fill_null": 0}, "log"]}}},
]  # fmt: skip


@needs_kernel
@pytest.mark.parametrize(
    ("table", "features"),
    [
        pytest.param(
            kind,
            features,
            marks=() if kind == "of both kinds" or number == 0 else pytest.mark.nightly,
            id=f"{kind}-{features}",
        )
        for kind in STORED
        for number, features in enumerate(FAILING)
    ],
    indirect=["table"],
)
def test_errors_are_those_of_rows(table: Path, tmp_path: Path, features: dict[str, Any], computed: set[str]):
    columns = [name for group in features.values() for name in group]
    changes = {"features": {**features, "extra": ["row"]}, "dedup": {"user": {"columns": columns}}}
    source = {"where": "row % 5 != 1"}
    kind, message = on_codes_and_rows(table, tmp_path, computed, set(), **{**CHANGES, **changes, "source": source})
    assert issubclass(kind, FeedlineError)
    assert "row group" in message
    assert ", row " in message


@st.composite
def coded_frames(draw: st.DrawFn) -> tuple[DictionaryFrame, list[int]]:
    """Codes into dictionaries that may have entries twice, and borders."""
    height = draw(st.integers(1, 12))
    words = draw(st.lists(st.sampled_from(["", "a", "b", "long " * 5]), min_size=1, max_size=6))
    floats = draw(st.lists(st.sampled_from([0.0, -0.0, float("nan"), NAN, 1.5]), min_size=1, max_size=6))

    def codes(values: list[Any]) -> st.SearchStrategy[int | None]:
        return st.none() | st.integers(0, len(values) - 1)

    columns = {
        "word": (words, pl.String, draw(st.sampled_from([pl.Int32, pl.UInt16])), False),
        "float": (floats, pl.Float64, pl.UInt16, False),
        "words": (words, pl.String, pl.UInt16, True),
        "floats": (floats, pl.Float64, pl.Int32, True),
    }
    series, dictionaries = [], {}
    for name, (values, kind, code, lists) in columns.items():
        one: st.SearchStrategy[Any] = codes(values)
        own = st.none() | st.lists(one, max_size=2) if lists else one
        drawn = draw(st.lists(own, min_size=height, max_size=height))
        series.append(pl.Series(name, drawn, pl.List(code) if lists else code))
        dictionaries[name] = pl.Series(name, values, kind).to_arrow()
    series.append(pl.Series("plain", draw(st.lists(st.integers(0, 1), min_size=height, max_size=height)), pl.Int64))
    borders = draw(st.lists(st.integers(0, height - 1), max_size=2))
    return DictionaryFrame(pl.DataFrame(series), dictionaries), borders


@examples(60)
@given(coded_frames(), st.sets(st.sampled_from(["word", "float", "words", "floats", "plain"]), min_size=1))
def test_runs_of_codes_are_those_of_values(frame: tuple[DictionaryFrame, list[int]], columns: set[str]):
    coded, borders = frame
    expected = run_starts_at(coded.expand(), sorted(columns), borders)
    assert first_coded_rows(coded, sorted(columns), borders).tolist() == expected.tolist()
