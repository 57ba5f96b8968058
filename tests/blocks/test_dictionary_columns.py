"""Columns of a dictionary type (categories of pandas, Enums of Polars) become blocks as their values do,
whatever the width of their codes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline, Table
from feedline.blocks.compute import run_block
from feedline.errors import CorruptFileError
from feedline.planning.plan import Plan
from feedline.service.cluster.attempts import attempt_block
from feedline.service.cluster.blame import BlockFailure
from feedline.transforms.compile.coded_features import CodedColumn

ROWS, GROUP = 600, 250
WIDTHS = [getattr(pa, f"{sign}int{bits}")() for sign, bits in product(("", "u"), (8, 16, 32, 64))]
HASH = [{"hash_bucket": {"buckets": 10_000, "null_bucket": True}}]
FEATURES: dict[str, Any] = {"categorical": {"word": HASH}, "sparse": {"words": HASH}, "extra": ["n"]}


def dictionary_array(codes: Any, entries: list[Any], width: pa.DataType) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(codes, width), pa.array(entries))


def table_of(width: pa.DataType, entries: int) -> pa.Table:
    """A flat column and one of lists, of strings with nulls."""
    words = [f"word {number}" for number in range(entries)]
    flat, inner = ([None if row % 7 == 0 else row % entries for row in range(count)] for count in (ROWS, 2 * ROWS))
    lists = pa.ListArray.from_arrays(
        pa.array(range(0, 2 * ROWS + 1, 2), pa.int32()), dictionary_array(inner, words, width)
    )
    return pa.table({"word": dictionary_array(flat, words, width), "words": lists, "n": range(ROWS)})


def plain(table: pa.Table) -> pa.Table:
    """The table with values instead of codes."""
    kinds = {"word": pa.string(), "words": pa.list_(pa.string())}
    return pa.table(
        {name: table[name].cast(kinds[name]) if name in kinds else table[name] for name in table.column_names}
    )


def stored(folder: Path, *tables: Any, group: int = GROUP, **options: Any) -> Path:
    folder.mkdir()
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=group, **options)
    return folder


def plan_of(table: Path, decoder: str = "auto", features: dict[str, Any] = FEATURES, **source: Any) -> Plan:
    return Pipeline.from_dict(
        {
            "version": 1,
            "name": "dictionaries",
            "work_dir": str(table.parent / "work"),
            "source": {"table": str(table), "decoder": decoder, **source},
            "features": features,
            "batch": {"size": 64, "tail": "partial"},
            "shuffle": {"seed": 1},
        }
    ).plan()


def blocks_of(plan: Plan) -> list[bytes]:
    """The blocks of an epoch, as they are sent."""
    blocks = list(plan.source.schedule(0).blocks(0, everything=True))
    return [bytes(run_block(plan.source.job, plan.request(block, 0), "k", True).image) for block in blocks]


@pytest.mark.parametrize("width", WIDTHS, ids=str)
def test_codes_of_any_width_are_values(width: pa.DataType, tmp_path: Path):
    """As many entries as a byte counts among them, where null needs one more."""
    table = table_of(width, min(128, 2 ** (width.bit_width - 1)))
    assert table["word"].type == pa.dictionary(width, pa.string())
    expected = blocks_of(plan_of(stored(tmp_path / "plain", plain(table))))
    coded = stored(tmp_path / "coded", table)
    for decoder in ("auto", "arrow"):
        assert blocks_of(plan_of(coded, decoder)) == expected


def test_other_libraries_categories(tmp_path: Path):
    """Categories of pandas, which dask writes as well, and Enums of Polars."""
    words = [f"word {row % 5}" for row in range(ROWS)]
    expected = blocks_of(
        plan_of(stored(tmp_path / "plain", pa.table({"word": words})), features=FEATURES | {"sparse": {}, "extra": []})
    )
    for name in ("pandas", "polars"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "pandas":
            pd.DataFrame({"word": pd.Categorical(words)}).to_parquet(folder / "0.parquet", row_group_size=GROUP)
        else:
            enum = pl.Enum(sorted(set(words)))
            frame = pl.DataFrame({"word": pl.Series(words, dtype=enum)})
            frame.write_parquet(folder / "0.parquet", row_group_size=GROUP)
        found = blocks_of(plan_of(folder, features=FEATURES | {"sparse": {}, "extra": []}))
        assert found == expected
        assert Table(str(folder)).read()["word"].to_pylist() == words


def test_files_may_differ_in_their_codes(tmp_path: Path):
    """In width, in having any, and in the width of their strings' offsets, which are 64 bits then."""
    tables = [table_of(pa.int8(), 100), plain(table_of(pa.int8(), 90)), table_of(pa.int64(), 300)]
    large = tables[2].column_names.index("word")
    wide = pa.dictionary(pa.int64(), pa.large_string())
    tables[2] = tables[2].set_column(large, "word", tables[2]["word"].cast(wide))
    coded = stored(tmp_path / "coded", *tables)
    assert blocks_of(plan_of(coded)) == blocks_of(plan_of(stored(tmp_path / "plain", *map(plain, tables))))


def test_conditions_look_codes_up(tmp_path: Path):
    """In row groups that are large enough for it."""
    rows = 20_000
    codes = np.arange(rows) % 5
    table = pa.table({"word": dictionary_array(codes, ["a", "b", "c", "d", "e"], pa.int8()), "n": range(rows)})
    plan = plan_of(stored(tmp_path / "coded", table, group=rows), features={"dense": {"n": []}}, where='word == "b"')
    assert plan.source.selection.rows.sum() == rows // 5
    assert len(blocks_of(plan)) > 0


def test_an_entry_that_is_no_utf8_is_refused(tmp_path: Path):
    table = stored(tmp_path / "coded", table_of(pa.int32(), 5), compression="none")
    path = table / "0.parquet"
    content = path.read_bytes()
    assert b"word 3" in content
    path.write_bytes(content.replace(b"word 3", b"word \xff"))
    plan = plan_of(table)
    with pytest.raises(CorruptFileError, match=r"column 'words?' of .*0\.parquet, row group 0 is not valid Parquet"):
        blocks_of(plan)


def test_an_unexpected_error_names_column_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plan = plan_of(stored(tmp_path / "coded", table_of(pa.int8(), 5)))
    request = plan.request(next(iter(plan.source.schedule(0).blocks(0))), 0)

    def fail(*_: Any) -> None:
        raise ValueError("a code has a wrong size")

    monkeypatch.setattr(CodedColumn, "apply", fail)
    failure = attempt_block(plan.source.job, request, "k", False)
    assert isinstance(failure, BlockFailure)
    assert str(failure).startswith("ValueError: a code has a wrong size (column 'word', file ")
    assert str(failure).endswith("0.parquet, row group 0)")
    monkeypatch.setattr("feedline.blocks.piece_chunks.read_fragment", lambda *_, **__: iter([None]))
    failure = attempt_block(plan.source.job, request, "k", False)
    assert str(failure).startswith("AttributeError: 'NoneType' object has no attribute 'frame' (file ")
