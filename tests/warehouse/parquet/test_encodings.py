"""Encodings are chosen by their cost, and three engines read every candidate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import events, rewrite, warehouse

from feedline.native import parquet as native
from feedline.warehouse.parquet import encodings
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.parquet.encodings import GOALS, EncodingCost, Goal, choose, cost
from feedline.warehouse.parquet.writer import (
    DICTIONARY,
    PLAIN,
    Encoding,
    leaf_paths,
    writer_options,
)


def measured(encoding: str, nbytes: int, ns: float) -> EncodingCost:
    return EncodingCost(column="a", leaf="a", encoding=encoding, codec="lz4", values=100, bytes=nbytes, ns_per_value=ns)


def test_cost_is_decoding_and_fetching() -> None:
    assert cost(measured(PLAIN, 200, 3.0), "decode") == pytest.approx(3.0 + 2 / 2)  # 2 GB/s
    assert cost(measured(PLAIN, 200, 3.0), "balanced") == pytest.approx(3.0 + 2 / 0.2)  # 200 MB/s
    small, quick = measured(PLAIN, 200, 9.0), measured(PLAIN, 201, 1.0)
    assert cost(small, "size") < cost(quick, "size")
    assert cost(replace(quick, op_ns=2.0), "decode") == cost(quick, "decode") + 2.0


@pytest.mark.parametrize("goal", GOALS)
def test_every_leaf_gets_a_choice_that_its_bytes_confirm(goal: Goal) -> None:
    table = events(3000).combine_chunks()
    table = table.append_column(
        "m", pa.array([[("a", 1.5), ("b", i)] for i in range(3000)], pa.map_(pa.string(), pa.float64()))
    )
    choices = choose(table, goal)
    assert [choice.chosen.leaf for choice in choices] == [*leaf_paths(table.schema)]
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=3000, **writer_options([choice.encoding for choice in choices]))
    group = pq.read_metadata(pa.BufferReader(sink.getvalue())).row_group(0)
    for index, choice in enumerate(choices):
        assert choice.chosen.bytes == group.column(index).total_compressed_size, choice
        assert choice.chosen.values == group.column(index).num_values
        assert choice.default.encoding == DICTIONARY
        assert choice.default.codec == "zstd"
        assert choice.chosen.ns_per_value > 0
    if goal == "size":
        assert all(choice.chosen.bytes <= choice.default.bytes for choice in choices)


def test_the_clock_decides_for_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock by which byte-stream-split under snappy is fastest, it is chosen."""

    def decode(buffer: pa.Buffer, metadata: pq.FileMetaData, *more: object) -> tuple[float, float]:
        chunk = metadata.row_group(0).column(0)
        return (1e-9 if "BYTE_STREAM_SPLIT" in chunk.encodings and chunk.compression == "SNAPPY" else 1e-3), 0.0

    monkeypatch.setattr(encodings, "_decode", decode)
    monkeypatch.setattr(encodings, "_FINALISTS", 4)
    (choice,) = choose(pa.table({"a": np.arange(5000)}), "decode")
    assert (choice.chosen.encoding, choice.chosen.codec) == ("BYTE_STREAM_SPLIT", "snappy")


def test_noise_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1, 10**6))
    monkeypatch.setattr(encodings, "_decode", lambda *_: (1e-3 * (1 + 1e-9 * next(clock)), 0.0))
    (choice,) = choose(pa.table({"a": np.random.default_rng(0).integers(0, 2**60, 3000)}), "decode")
    assert choice.chosen.encoding == PLAIN


def skewed(values: int) -> np.ndarray:
    """Few distinct ids, in no order."""
    return np.random.default_rng(0).zipf(1.3, values) % 5000 * 1_000_003


@pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")
@pytest.mark.parametrize("decoder", ["auto", "arrow"])
def test_a_value_that_could_be_a_code_costs_an_op_more(monkeypatch: pytest.MonkeyPatch, decoder: str) -> None:
    """For readers, lists and strings are codes if the kernel decodes them; flat numbers hardly ever."""
    monkeypatch.setenv(DECODER_VARIABLE, decoder)
    numbers = skewed(20_000)
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 20_001, 10), pa.int32()), pa.array(numbers))
    unique = pa.array(np.arange(2000).astype(str))
    for values, codes, expected in (
        (lists, True, {PLAIN: 1.0, DICTIONARY: 0.0}),
        (lists, False, {PLAIN: 0.0, DICTIONARY: 0.0}),  # of a table with columns stored once per run
        (pa.array(numbers.astype(str)), True, {PLAIN: 1.0, DICTIONARY: 0.0}),
        (unique, True, {PLAIN: 1.0, DICTIONARY: 1.0}),  # as many entries as values
        (pa.array(numbers), True, {PLAIN: 0.0, DICTIONARY: 0.0}),
        (pa.array([{"a": 1}] * 9), True, {PLAIN: 0.0, DICTIONARY: 0.0}),
    ):
        table = pa.table({"a": values})
        (path,) = leaf_paths(table.schema)
        for encoding, op_ns in expected.items():
            chosen = [Encoding(leaf=path, encoding=encoding, codec="lz4")]
            found = encodings._measure(table, chosen, 1, codes)[path]
            assert found.op_ns == (op_ns if decoder == "auto" else 0.0), (values.type, encoding)
    name = encodings.decoder_name()
    assert name == (f"kernel {native.VERSION}" if decoder == "auto" else f"pyarrow {pa.__version__}")


def test_one_encoding_per_table_is_in_its_files(tmp_path: Path) -> None:
    report = rewrite(warehouse(tmp_path / "in"), tmp_path / "out", goal="size")
    for path in (tmp_path / "out").rglob("*.parquet"):
        group = pq.read_metadata(path).row_group(0)
        for index, choice in enumerate(report.choices):
            assert group.column(index).compression == choice.chosen.codec.upper()
            assert (choice.chosen.encoding == DICTIONARY) == ("RLE_DICTIONARY" in group.column(index).encodings)
