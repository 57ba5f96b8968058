"""Blocks computed on dictionaries are, byte by byte, those computed on rows: batches, quality and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coded_blocks import GROUP, ROWS, few, needs_kernel, on_codes_and_rows, pipeline
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import write_in_place

from feedline.blocks.block_encoder import BlockEncoder
from feedline.blocks.coded_chunks import DictionaryFrame, join_coded
from feedline.blocks.jobs import compile_job
from feedline.errors import FeedlineError
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.reading import row_filter

FEATURES: dict[str, Any] = {
    "dense": {
        "price": [{"fill_null": 0.25}, "log1p"],
        "again": {"column": "price", "ops": [{"clip": {"min": 0, "max": 3}}, {"fill_null": 1}]},
        "clean": [],
        "small": [{"fill_null": 0}],
        "number": [{"cast": "float32"}, {"fill_null": 0.25}, "log1p"],
        "shifted": {"column": "number", "ops": [{"cast": "float64"}, {"clip": {"min": 0, "max": 3}}, {"fill_null": 1}]},
    },
    "categorical": {
        "item": [{"hash_bucket": {"buckets": 1000, "null_bucket": True}}],
        "word": [{"vocabulary": {"min_count": 2}}],
        "code": [{"vocabulary": {"min_count": 50}}],
        "plain": {"column": "item", "ops": [{"modulo": 7}, {"fill_null": 8}]},
    },
    "sparse": {
        "history": [{"first_x": 4}, {"fill_null": 3}, {"hash_bucket": 50}],
        "tail": {"column": "history", "ops": [{"fill_null": -1}, {"modulo": 9}, {"list_slice": -2}]},
        "known": {"column": "filled", "ops": [{"first_x": 5}, {"vocabulary": {"min_count": 60}}]},
        "tags": [{"hash_bucket": 20}],
        "scores": ["log1p"],
    },
    "label": {"clicked": []},
    "extra": ["row"],
}

HASH = {"hash_bucket": {"buckets": 50, "null_bucket": True}}
VALUE_FEATURES: dict[str, Any] = {
    "categorical": {"word": [HASH], "other": [HASH]},
    "sparse": {"tags": [{"first_x": 1}, HASH], "history": [HASH]},
    "label": {"clicked": []},
    "extra": ["row"],
}
ALL = {"word", "other", "tags", "history"}

VALUE_CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "term over two columns": ({"source": {"where": "word != other or clicked == 1"}}, ALL),
    "term over a list": ({"source": {"where": "tags.list.len() > 2"}}, ALL),
    "term over a list of numbers": ({"source": {"where": "history.list.len() > 1"}}, ALL - {"history"}),
    "terms on codes and on values": ({"source": {"where": "word != 'a' and (word != other or row > 2000)"}}, ALL),
    "sample": (
        {"source": {"sample": {"fraction": 0.5, "key": ["word", "other"], "where": "tags.list.len() > 2"}}},
        ALL,
    ),
    "runs": (
        {
            "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
            "features": {**VALUE_FEATURES, "categorical": {**VALUE_FEATURES["categorical"], "session": [HASH]}},
        },
        {*ALL, "session"},
    ),
    "features": (
        {
            "features": {
                **VALUE_FEATURES,
                "dense": {"count": {"expr": "tags.list.len()", "ops": [{"fill_null": 0}]}},
                "categorical": {
                    **VALUE_FEATURES["categorical"],
                    "cross": {"op": {"hashed_cross": 30}, "inputs": ["word", "other"], "ops": [{"fill_null": 30}]},
                    "parity": {"expr": "history.list.len() % 2", "ops": [{"cast": "int64"}, {"fill_null": 2}]},
                },
                "extra": {"row": {"column": "row"}, "kept": {"column": "word"}},
            }
        },
        ALL - {"history"},
    ),
    "groups": (
        {
            "source": {"where": "word != other or clicked == 1"},
            "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
            "dedup": {"user": {"columns": ["word", "tags"]}},
        },
        ALL,
    ),
    "group of the runs' column": (
        {
            "features": {**VALUE_FEATURES, "categorical": {**VALUE_FEATURES["categorical"], "session": [HASH]}},
            "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
            "dedup": {"user": {"columns": ["session", "tags"]}},
        },
        {*ALL, "session"},
    ),
    "errors": ({"source": {"where": "word != other"}, "features": {**VALUE_FEATURES, "dense": {"w": {
        "column": "word", "ops": [{"cast": "float32"}, {"fill_null": 0}]}}}}, set()),
}  # fmt: skip


@needs_kernel
@pytest.mark.parametrize(
    "source",
    [
        {},
        pytest.param({"where": "row % 3 > 0 and clicked == 1"}, marks=pytest.mark.nightly),
        {"where": "code > 20"},
        {"sample": {"fraction": 0.5, "seed": 4}},
    ],
    ids=str,
)
def test_batches_and_quality_are_those_computed_on_rows(
    coded_table: Path, tmp_path: Path, source: dict[str, Any], computed: set[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_filter, "_LEAST_NUMBERS", 0)  # columns of the filter, too, in few rows
    pipeline(coded_table, tmp_path, features=FEATURES, source={**source, "where": "row < 1000"}).fit()
    columns = {"code", "number", "word", "history", "filled", "tags", "scores"}
    batches, _ = on_codes_and_rows(coded_table, tmp_path, computed, columns, features=FEATURES, source=source)
    assert isinstance(batches, list)


@needs_kernel
@pytest.mark.parametrize("name", VALUE_CASES)
def test_strings_are_codes_also_where_their_values_are_needed(
    coded_table: Path, tmp_path: Path, name: str, computed: set[str], monkeypatch: pytest.MonkeyPatch
):
    """By filter, sample, `shuffle.by` or features."""
    monkeypatch.setattr(row_filter, "_LEAST_STRINGS", 0)
    changes, columns = VALUE_CASES[name]
    found, _ = on_codes_and_rows(coded_table, tmp_path, computed, columns, **{"features": VALUE_FEATURES, **changes})
    assert issubclass(found, FeedlineError) if name == "errors" else isinstance(found, list)


@needs_kernel
@pytest.mark.parametrize("name", ["term over two columns", "sample", "runs", "features"])
def test_values_are_decoded_where_row_groups_are_small(
    coded_table: Path, tmp_path: Path, name: str, computed: set[str]
):
    changes, columns = VALUE_CASES[name]
    list(pipeline(coded_table, tmp_path, **{"features": VALUE_FEATURES, **changes}).batches())
    values = {"runs": {"session"}, "term over two columns": {"word", "other"}}
    assert computed == columns - values.get(name, {"word", "other", "tags"})


@needs_kernel
@pytest.mark.parametrize(
    "features",
    [
        {"dense": {"price": []}},
        {"sparse": {"history": [{"first_x": 9}]}},
        {
            "dense": {
                "number": {
                    "column": "number",
                    "ops": [{"cast": "float32"}, {"fill_null": 0}, "log"],
                    "on_nonfinite": "error",
                }
            }
        },
        {"dense": {"number": [{"cast": "float32"}]}},
        {"categorical": {"word": [{"cast": "int64"}, {"fill_null": 0}]}},
        {"categorical": {"word": [{"fill_null": "x"}, {"cast": "int64"}]}},
    ],
    ids=str,
)
def test_errors_are_those_of_rows(coded_table: Path, tmp_path: Path, features: dict[str, Any], computed: set[str]):
    kind, message = on_codes_and_rows(coded_table, tmp_path, computed, set(), features={**features, "extra": ["row"]})
    assert issubclass(kind, FeedlineError)
    assert "row group" in message


@needs_kernel
@pytest.mark.parametrize(
    ("values", "features"),
    [
        (["1", "2", "x"], {"categorical": {"v": [{"cast": "int64"}]}}),
        (["1", "2", None], {"categorical": {"v": [{"hash_bucket": 9}]}}),
        ([0.5, 2.5, -1.0], {"dense": {"v": {"column": "v", "ops": ["log"], "on_nonfinite": "error"}}}),
        ([0.5, 2.5, 1e30], {"dense": {"v": ["log1p"]}}),
        ([0.5, 2.5, None], {"dense": {"v": ["log1p"]}}),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:feature 'v' holds nulls")
def test_values_of_filtered_rows_are_not_counted_and_are_no_error(
    tmp_path: Path, values: list[Any], features: dict[str, Any], computed: set[str]
):
    """The last value is of rows that the filter drops."""
    (tmp_path / "t").mkdir()
    column = pa.array(values * 100, pa.float32() if values[0] == 0.5 else pa.string())
    rows = pa.table({"v": column, "row": range(300), "keep": [True, True, False] * 100})
    pq.write_table(rows, tmp_path / "t" / "0.parquet")
    changes = {"features": {**features, "extra": ["row"]}, "source": {"where": "keep"}}
    batches, _ = on_codes_and_rows(tmp_path / "t", tmp_path, computed, {"v"}, **changes)
    assert isinstance(batches, list)


@needs_kernel
@pytest.mark.parametrize("where", [None, "row % 500 == 3"])
def test_a_dictionary_is_computed_once_per_row_group(
    tmp_path: Path, where: str | None, monkeypatch: pytest.MonkeyPatch
):
    """Not once per chunk; and of one that few rows use, only what they use."""
    (tmp_path / "t").mkdir()
    rows = 100_000
    words = [f"word {number % 3000}" for number in range(rows)]
    pq.write_table(pa.table({"word": words, "row": range(rows)}), tmp_path / "t" / "0.parquet", row_group_size=rows)
    computed: list[int] = []
    whole = CompiledFeatures.apply_counting

    def count(features: Any, frame: pl.DataFrame, *more: Any) -> Any:
        if features._elements:
            computed.append(frame.height)
        return whole(features, frame, *more)

    monkeypatch.setattr(CompiledFeatures, "apply_counting", count)
    numbers = CompiledFeatures.numbers

    def count_whole(features: Any, series: pl.Series) -> Any:
        computed.append(len(series))
        return numbers(features, series)

    monkeypatch.setattr(CompiledFeatures, "numbers", count_whole)
    features = {"categorical": {"word": [{"hash_bucket": 1000}]}, "extra": ["row"]}
    source = {} if where is None else {"where": where}
    shuffle = {"rows": False, "window_rows": rows}
    made = pipeline(tmp_path / "t", tmp_path, features=features, source=source, shuffle=shuffle)
    ids = [each for batch in made.batches() for each in batch.categorical.numpy()[:, 0].tolist()]
    kept = [word for number, word in enumerate(words) if where is None or number % 500 == 3]
    buckets = pl.DataFrame({"word": kept}).select(word=pl.col("word").rank("dense"), id=pl.Series(ids)).unique()
    assert buckets["word"].n_unique() == len(buckets)  # equal words have equal ids
    assert computed == ([3000] if where is None else [len(set(kept))])


@needs_kernel
@pytest.mark.parametrize(
    ("second", "most", "ids"),
    [
        pytest.param(second, most, ids, marks=pytest.mark.nightly if ids > 60 and number else ())
        for number, (second, most) in enumerate(
            [
                ([{"modulo": 9}, {"list_slice": {"start": 2, "stop": 7}}], 7),
                ([{"modulo": 9}, {"list_slice": {"start": -3, "stop": None}}], 0),
                ([{"modulo": 9}], 0),
                ([{"fill_null": 3}, {"first_x": 1}], 5),
            ]
        )
        for ids in (60, 10**9)
    ],
)
def test_no_more_of_long_lists_is_decoded_than_all_features_need(
    tmp_path: Path, second: list[Any], most: int, ids: int, computed: set[str], monkeypatch: pytest.MonkeyPatch
):
    """As codes, and as values where there are as many ids as elements."""
    random = np.random.default_rng(1)
    lists = [random.integers(0, ids, int(length)).tolist() for length in random.integers(0, 60, ROWS)]
    (tmp_path / "t").mkdir()
    table = pa.table({"long": lists, "row": range(ROWS), "few": few(random, [0, 1], ROWS)})
    pq.write_table(table, tmp_path / "t" / "0.parquet", row_group_size=GROUP)
    sparse = {"long": [{"first_x": 5}], "second": {"column": "long", "ops": second}}
    changes: dict[str, Any] = {"features": {"sparse": sparse, "extra": ["row"]}, "source": {"where": "few == 1"}}
    assert compile_job(pipeline(tmp_path / "t", tmp_path, **changes).plan().source.job).read.coded == {"long": most}
    widths = list[int]()
    whole = BlockEncoder.add

    def add(encoder: Any, chunk: Any) -> None:
        widths.append(int(chunk.frame["long"].list.len().max()))
        whole(encoder, chunk)

    monkeypatch.setattr(BlockEncoder, "add", add)
    columns = {"long"} if ids == 60 else set[str]()
    batches, _ = on_codes_and_rows(tmp_path / "t", tmp_path, computed, columns, **changes)
    assert isinstance(batches, list)
    assert max(widths[: len(widths) // 2]) == (most or 59)


@needs_kernel
@pytest.mark.parametrize("where", [None, "row % 5 > 0 and clicked == 1"])
def test_columns_beside_those_stored_once_per_run_come_as_codes(
    coded_table: Path, tmp_path: Path, where: str | None, computed: set[str]
):
    """Also where only some of the files store runs."""
    whole = pq.read_table(coded_table)
    first = pa.array([4 * (row // 4) for row in range(ROWS)])
    for name in ("item", "filled"):
        whole = whole.set_column(whole.schema.get_field_index(name), name, whole[name].take(first))
    whole = whole.drop(["session"]).append_column("session", first)
    starts = [row % 4 == 0 for row in range(ROWS)]
    folder = tmp_path / "stored"
    write_in_place(folder / "0.parquet", whole.slice(0, 2100), {"user": ["item", "filled"]}, {"user": starts}, GROUP)
    pq.write_table(whole.slice(2100), folder / "1.parquet", row_group_size=GROUP)
    features = {
        "dense": {"number": FEATURES["dense"]["number"]},
        "categorical": {"item": [{"fill_null": 0}], "word": [{"fill_null": "-"}, {"hash_bucket": 50}]},
        "sparse": {"filled": [{"first_x": 3}], "tags": [{"hash_bucket": 20}], "history": [{"fill_null": 3}]},
        "extra": ["row"],
    }
    changes = {
        "features": features,
        "dedup": {"user": {"columns": ["item", "filled"]}},
        "shuffle": {"by": "session", "seed": 1, "window_rows": 1500},
        "source": {"where": where},
    }
    columns = {"number", "word", "tags", "history", "filled"}
    batches, _ = on_codes_and_rows(folder, tmp_path, computed, columns, **changes)
    assert isinstance(batches, list)


@st.composite
def parts(draw: st.DrawFn) -> list[tuple[DictionaryFrame, pl.DataFrame]]:
    """Some parts, coded or not, and the rows that they stand for."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        height = draw(st.integers(1, 5))
        values = draw(st.lists(st.text(max_size=3), min_size=1, max_size=4))
        code = st.none() | st.integers(0, len(values) - 1)
        kind = draw(st.sampled_from([pl.Int32, pl.UInt16]))
        flat = pl.Series("a", draw(st.lists(code, min_size=height, max_size=height)), kind)
        lists = st.lists(st.none() | st.lists(code, max_size=3), min_size=height, max_size=height)
        nested = pl.Series("b", draw(lists), pl.List(kind))
        plain = pl.Series("c", range(height))

        def word(one: int | None, values: list[str] = values) -> str | None:
            return None if one is None else values[one]

        rows = pl.DataFrame(
            [
                pl.Series("a", [word(one) for one in flat], pl.String),
                pl.Series("b", [None if one is None else [word(each) for each in one] for one in nested.to_list()],
                          pl.List(pl.String)),
                plain,
            ]
        )  # fmt: skip
        coded = draw(st.sets(st.sampled_from("ab")))
        dictionary = pl.Series(values, dtype=pl.String).to_arrow()
        frame = pl.DataFrame([(flat if "a" in coded else rows["a"]), (nested if "b" in coded else rows["b"]), plain])
        found.append((DictionaryFrame(frame, dict.fromkeys(sorted(coded), dictionary)), rows))
    return found


@examples(60)
@given(parts())
def test_joined_parts_are_their_rows(cases: list[tuple[DictionaryFrame, pl.DataFrame]]):
    joined = join_coded([frame for frame, _ in cases])
    expected = pl.concat([rows for _, rows in cases])
    assert joined.expand().select("a", "b", "c").equals(expected)
    assert set(joined.dictionaries) == set.intersection(*(set(frame.dictionaries) for frame, _ in cases))


@pytest.mark.parametrize(("entries", "kind"), [(30_000, pl.UInt16), (40_000, pl.Int32)])
def test_joined_codes_stay_narrow_while_their_dictionary_allows_it(entries: int, kind: type[pl.DataType]):
    """Of rows that are a slice of others', too."""
    values = [[f"{part}.{entry}" for entry in range(entries)] for part in range(2)]
    codes = pl.DataFrame({"a": [[9], [entries - 1, 0], [7]]}, schema={"a": pl.List(pl.UInt16)})
    joined = join_coded([DictionaryFrame(codes[1:], {"a": pa.array(part, pa.large_string())}) for part in values])
    assert joined.frame.schema == {"a": pl.List(kind)}
    last = entries - 1
    assert joined.expand()["a"].to_list() == [[f"0.{last}", "0.0"], ["0.7"], [f"1.{last}", "1.0"], ["1.7"]]
