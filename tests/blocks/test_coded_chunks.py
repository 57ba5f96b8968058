"""Blocks computed on dictionaries are, byte by byte, those computed on rows: batches, quality and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pipelines import image
from stored_runs import write_in_place

from feedline import Pipeline
from feedline.blocks.block_encoder import BlockEncoder
from feedline.blocks.coded_chunks import DictionaryFrame, join_coded
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.errors import FeedlineError
from feedline.native import parquet as native
from feedline.transforms.compile.compiled import CompiledFeatures
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.reading import row_filter

needs_kernel = pytest.mark.skipif(not native.COMPILED, reason="installed without a compiler: no column comes as codes")
ROWS, GROUP = 4000, 700


def few(random: np.random.Generator, values: list[Any], count: int, nulls: float = 0.0) -> list[Any]:
    chosen = [values[index] for index in random.integers(0, len(values), count)]
    return [None if lost else value for value, lost in zip(chosen, random.random(count) < nulls, strict=True)]


def write_table(folder: Path) -> Path:
    """Columns of few values each, in several files and row groups."""
    random = np.random.default_rng(3)
    ids = [*range(-5, 60), 2**40]
    lists = [few(random, ids, int(length), 0.05) for length in random.integers(0, 9, ROWS)]
    words = ["", "a", "Zürich", "long " * 9]
    table = pa.table(
        {
            "row": pa.array(range(ROWS)),
            "price": pa.array(few(random, [0.0, -0.0, 1.5, 2.25, 1e30, 7.0], ROWS, 0.2), pa.float32()),
            "clean": pa.array(few(random, [0.5, 1.5, 2.5], ROWS), pa.float64()),
            "small": pa.array(few(random, [1, 2, 3], ROWS, 0.1), pa.int8()),
            "item": pa.array(few(random, ids, ROWS, 0.1), pa.int64()),
            "code": pa.array(few(random, ids, ROWS, 0.1), pa.int64()),
            "number": pa.array(few(random, ["0.5", "-0.0", "0", "1e30", "7"], ROWS, 0.2), pa.string()),
            "word": pa.array(few(random, words, ROWS, 0.1), pa.string()),
            "history": pa.array([None if number % 17 == 0 else each for number, each in enumerate(lists)]),
            "filled": pa.array([[value or 0 for value in each] for each in lists], pa.list_(pa.int64())),
            "tags": pa.array([few(random, words, int(n)) for n in random.integers(0, 4, ROWS)], pa.list_(pa.string())),
            "scores": pa.array([few(random, [0.5, 1.5], int(n)) for n in random.integers(0, 4, ROWS)]),
            "clicked": pa.array(few(random, [0, 1], ROWS), pa.int8()),
        }
    )
    folder.mkdir()
    half = ROWS // 2
    pq.write_table(table.slice(0, half), folder / "0.parquet", row_group_size=GROUP, write_statistics=False)
    pq.write_table(
        table.slice(half), folder / "1.parquet", row_group_size=GROUP, write_statistics=False, data_page_version="2.0"
    )
    return folder


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


def pipeline(table: Path, folder: Path, **changes: Any) -> Pipeline:
    return Pipeline.from_dict(
        {
            "version": 1,
            "name": "codes",
            "work_dir": str(folder / "work"),
            "source": {"table": str(table), **changes.pop("source", {})},
            "features": FEATURES,
            "batch": {"size": 256, "tail": "partial"},
            "shuffle": {"seed": 1, "window_rows": 1500},
            **changes,
        }
    )


def outcome(table: Path, folder: Path, **changes: Any) -> Any:
    """All bytes of all batches, or the error."""
    made = pipeline(table, folder, **changes)
    try:
        return [image(batch) for batch in made.batches()]
    except FeedlineError as error:
        return type(error), str(error)


class Counter:
    """Counts the columns that are computed on dictionaries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns: set[str] = set()
        whole = BlockEncoder._encode_coded

        def encode(encoder: Any, part: Any, coded: DictionaryFrame, *more: Any) -> Any:
            self.columns |= set(coded.dictionaries)
            return whole(encoder, part, coded, *more)

        monkeypatch.setattr(BlockEncoder, "_encode_coded", encode)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("codes") / "table")


@needs_kernel
@pytest.mark.parametrize(
    "source",
    [
        {},
        {"where": "row % 3 > 0 and clicked == 1"},
        {"where": "code > 20"},
        {"sample": {"fraction": 0.5, "seed": 4}},
    ],
    ids=str,
)
def test_batches_are_those_computed_on_rows(
    table: Path, tmp_path: Path, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_filter, "_LEAST_NUMBERS", 0)  # columns of the filter, too, in few rows
    pipeline(table, tmp_path, source=source).fit()
    counter = Counter(monkeypatch)
    coded = outcome(table, tmp_path, source=source)
    read = {"code", "number", "word", "history", "filled", "tags", "scores"}
    assert counter.columns == read
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    counter.columns.clear()
    rows = outcome(table, tmp_path, source=source)
    assert not counter.columns
    assert coded == rows
    assert len(rows) > 3


@needs_kernel
def test_quality_is_that_of_rows(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Nulls, values, extremes, lengths, and what lookups miss."""
    source = {"where": "row % 3 > 0"}
    pipeline(table, tmp_path, source={"where": "row < 1000"}, name="codes").fit()

    def qualities() -> list[bytes]:
        plan = pipeline(table, tmp_path, source=source).plan()
        blocks = list(plan.source.schedule(0).blocks(0, everything=True))
        return [run_block(plan.source.job, plan.request(block, 0), "k", False).quality.to_bytes() for block in blocks]

    coded = qualities()
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    assert coded == qualities()
    assert len(coded) > 1


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
def test_errors_are_those_of_rows(table: Path, tmp_path: Path, features: dict, monkeypatch: pytest.MonkeyPatch):
    coded = outcome(table, tmp_path, features={**features, "extra": ["row"]})
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    rows = outcome(table, tmp_path, features={**features, "extra": ["row"]})
    assert coded == rows
    assert issubclass(rows[0], FeedlineError)
    assert "row group" in rows[1]


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
    tmp_path: Path, values: list, features: dict, monkeypatch: pytest.MonkeyPatch
):
    """The last value is of rows that the filter drops."""
    (tmp_path / "t").mkdir()
    rows = pa.table({"v": values * 100, "row": range(300), "keep": [True, True, False] * 100})
    rows = rows.set_column(0, "v", rows["v"].cast(pa.float32()) if values[0] == 0.5 else rows["v"])
    pq.write_table(rows, tmp_path / "t" / "0.parquet")
    features = {**features, "extra": ["row"]}
    counter = Counter(monkeypatch)

    def batches_and_quality() -> tuple[Any, bytes]:
        made = pipeline(tmp_path / "t", tmp_path, features=features, source={"where": "keep"})
        plan = made.plan()
        block = next(iter(plan.source.schedule(0).blocks(0, everything=True)))
        quality = run_block(plan.source.job, plan.request(block, 0), "k", False).quality
        return outcome(tmp_path / "t", tmp_path, features=features, source={"where": "keep"}), quality.to_bytes()

    coded = batches_and_quality()
    assert counter.columns == {"v"}
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    assert isinstance(coded[0], list)
    assert coded == batches_and_quality()


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
@pytest.mark.parametrize("ids", [60, 10**9])
@pytest.mark.parametrize(
    ("tail", "most"), [({"start": 2, "stop": 7}, 7), ({"start": -3, "stop": None}, 0), (None, 0), ("fill_null", 5)]
)
def test_no_more_of_long_lists_is_decoded_than_all_features_need(
    tmp_path: Path, ids: int, tail: Any, most: int, monkeypatch: pytest.MonkeyPatch
):
    """As codes, and as values where there are as many ids as elements."""
    random = np.random.default_rng(1)
    lists = [random.integers(0, ids, int(length)).tolist() for length in random.integers(0, 60, ROWS)]
    (tmp_path / "t").mkdir()
    table = pa.table({"long": lists, "row": range(ROWS), "few": few(random, [0, 1], ROWS)})
    pq.write_table(table, tmp_path / "t" / "0.parquet", row_group_size=GROUP)
    second = [{"modulo": 9}, *([{"list_slice": tail}] if isinstance(tail, dict) else [])]
    if tail == "fill_null":
        second = [{"fill_null": 3}, {"first_x": 1}]
    sparse = {"long": [{"first_x": 5}], "second": {"column": "long", "ops": second}}
    changes: dict[str, Any] = {"features": {"sparse": sparse, "extra": ["row"]}, "source": {"where": "few == 1"}}
    made = pipeline(tmp_path / "t", tmp_path, **changes)
    compiled = compile_job(made.plan().source.job)
    assert compiled.read.coded == {"long": most}
    widths: set[int] = set()
    whole = BlockEncoder.add

    def add(encoder: Any, chunk: Any) -> None:
        widths.add(int(chunk.frame["long"].list.len().max()))
        whole(encoder, chunk)

    monkeypatch.setattr(BlockEncoder, "add", add)
    coded = outcome(tmp_path / "t", tmp_path, **changes)
    assert max(widths) == (most or 59)
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    assert coded == outcome(tmp_path / "t", tmp_path, **changes)
    assert len(coded) > 3


@needs_kernel
@pytest.mark.parametrize("where", [None, "row % 5 > 0 and clicked == 1"])
def test_columns_beside_those_stored_once_per_run_come_as_codes(
    table: Path, tmp_path: Path, where: str | None, monkeypatch: pytest.MonkeyPatch
):
    """Also where only some of the files store runs."""
    whole = pq.read_table(table)
    session = pa.array([row // 4 for row in range(ROWS)])
    first = pa.array([4 * (row // 4) for row in range(ROWS)])
    for name in ("item", "filled"):
        whole = whole.set_column(whole.schema.get_field_index(name), name, whole[name].take(first))
    whole = whole.append_column("session", session)
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
    counter = Counter(monkeypatch)
    coded = outcome(folder, tmp_path, **changes)
    assert counter.columns == {"number", "word", "tags", "history", "filled"}
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    assert coded == outcome(folder, tmp_path, **changes)
    assert len(coded) > 3


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
        dictionary = pl.Series(values, dtype=pl.String)
        frame = pl.DataFrame([(flat if "a" in coded else rows["a"]), (nested if "b" in coded else rows["b"]), plain])
        found.append((DictionaryFrame(frame, {name: dictionary.alias(name) for name in sorted(coded)}), rows))
    return found


@examples(60)
@given(parts())
def test_joined_parts_are_their_rows(cases: list[tuple[DictionaryFrame, pl.DataFrame]]):
    joined = join_coded([frame for frame, _ in cases])
    expected = pl.concat([rows for _, rows in cases])
    assert joined.expand().select("a", "b", "c").equals(expected)
    assert set(joined.dictionaries) == set.intersection(*(set(frame.dictionaries) for frame, _ in cases))
