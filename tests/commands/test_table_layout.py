"""`optimize` explains by how much a table grew, in which columns and why; sizes are compared with pyarrow's."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optimized import files_of, rewrite
from rich.console import Console
from typer.testing import CliRunner

from feedline.cli import app
from feedline.commands.table_layout import _show_report, describe_report, explain_growth
from feedline.warehouse.optimize.footprint import Footprint, ProjectionCost
from feedline.warehouse.optimize.optimize import OptimizeReport
from feedline.warehouse.optimize.recipe import Settings
from feedline.warehouse.parquet.encodings import Choice, EncodingCost

ROWS = 20_000


@pytest.fixture
def tight(tmp_path: Path) -> Path:
    """A table in order of time, with the best compression of its writer: 50 rows per time, random sessions."""
    rng = np.random.default_rng(0)
    ts = np.arange(ROWS) // 50
    table = pa.table({"ts": ts, "seen": 3 * ts, "expires": 5 * ts, "session": rng.integers(0, 2000, ROWS)})
    pq.write_table(table, tmp_path / "in.parquet", compression="zstd", compression_level=15)
    return tmp_path / "in.parquet"


def stored(root: Path) -> Counter[str]:
    """Bytes of each column's chunks, by pyarrow."""
    sizes: Counter[str] = Counter()
    for path in files_of(root) if root.is_dir() else [root]:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(index)
                sizes[chunk.path_in_schema.split(".")[0]] += chunk.total_compressed_size
    return sizes


def test_growth_by_another_order_is_explained(tight: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ["optimize", tight, out, "--cluster-by", "session", "--for", "size", "--threads", "1"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    before, after = stored(tight), stored(out)
    more = sum(path.stat().st_size for path in files_of(out)) - tight.stat().st_size
    assert f"the table grew by {more:,} bytes ({more / tight.stat().st_size:.1%}):\n" in done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("  ts: ")]
    assert line.startswith(f"  ts: {before['ts']:,} -> {after['ts']:,} bytes, ")
    assert line.endswith(" compresses worse in the order of session")
    assert "  session: " not in done.output, "it became smaller"
    assert "decoding time" not in done.output


def test_bytes_spent_for_decoding_time_are_reported(
    tight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(  # a clock for which only values without compression decode in no time
        "feedline.warehouse.parquet.encodings._decode",
        lambda _, metadata, *more: (float(metadata.row_group(0).column(0).compression != "UNCOMPRESSED"), 0.0),
    )
    report = rewrite(tight, tmp_path / "out", goal="decode")
    after = stored(tmp_path / "out")
    lines = explain_growth(report)
    (line,) = [line for line in lines if line.startswith("  ts: ")]
    (choice,) = [choice for choice in report.choices if choice.chosen.column == "ts"]
    times = choice.chosen.bytes / choice.default.bytes
    assert times > 1.1
    assert f"{stored(tight)['ts']:,} -> {after['ts']:,} bytes, dictionary zstd -> " in line
    assert f" none; --for decode chose it for its decoding time, at {times:.2f} times the bytes of dict" in line
    assert "order of" not in line
    assert lines[-1] == "  --for size makes it as small as possible in this order of rows"
    facts = json.loads(json.dumps(describe_report(report)))
    assert facts["before"]["column_encodings"]["ts"] == ["dictionary zstd"]
    assert facts["settings"]["goal"] == "decode"
    again = explain_growth(rewrite(tight, tmp_path / "out", goal="decode"))
    assert again[0] == lines[0]
    assert "encodings were not measured" in again[-1]


def footprint(sizes: dict[str, int], encoding: str, *, row_groups: int = 1, footers: int = 10) -> Footprint:
    """A footprint with these column sizes."""
    total = sum(sizes.values())
    return Footprint(
        files=1, bytes=total + footers, row_groups=row_groups, rows=100, uncompressed_bytes=total,
        compressed_bytes=total, projection=ProjectionCost(bytes=0, requests=0, requested_bytes=0), column_bytes=sizes,
        column_encodings=dict.fromkeys(sizes, (encoding,)),
    )  # fmt: skip


def test_partitions_encoded_for_another_decoder_are_reported(tight: Path, tmp_path: Path) -> None:
    done = rewrite(tight, tmp_path / "out", goal="size")
    for outdated, shown in ((0, False), (2, True)):
        out = io.StringIO()
        _show_report(replace(done, outdated=outdated), Console(file=out))
        assert ("2 finished partitions were encoded for another decoder than " in out.getvalue()) is shown


def report(before: Footprint, after: Footprint, *, flattened: tuple[str, ...] = (), **settings: Any) -> OptimizeReport:
    """A report in which each column has the size of the default encoding."""
    measured = [
        EncodingCost(column=name, leaf=name, encoding="PLAIN", codec="zstd", values=100, bytes=100, ns_per_value=1.0)
        for name in after.column_bytes
    ]
    return OptimizeReport(
        source="in", target="out", written=1, finished=0, taken_away=0, columns=tuple(after.column_bytes), non_null=(),
        flattened=flattened, choices=tuple(Choice(chosen=one, default=one) for one in measured), projection=(),
        before=before, after=after, settings=Settings(goal="size", **settings), measuring_s=0.0, writing_s=0.0,
    )  # fmt: skip


def test_a_table_that_did_not_grow_is_not_explained() -> None:
    sides = footprint({"a": 100, "b": 50}, "plain zstd"), footprint({"a": 10, "b": 140}, "plain zstd")
    assert explain_growth(report(*sides)) == []


def test_other_causes_of_growth_are_reported() -> None:
    before = footprint({"m": 100, "a": 100, "b": 100, "c": 100}, "plain gzip")
    sizes = {"m": 50, "m.x": 500, "m.y": 300, "a": 400, "b": 250, "c": 101, "day": 200}
    after = footprint(sizes, "plain zstd", row_groups=5, footers=2010)
    assert explain_growth(report(before, after, flattened=("m.x", "m.y"), flatten=("m",))) == [
        "the table grew by 3,401 bytes (829.5%):",
        "  m: 100 -> 850 bytes, 2 of its keys became columns (--flatten)",
        "  a: 100 -> 400 bytes, plain gzip -> plain zstd; row groups are smaller (1 -> 5 of them)",
        "  day: 0 -> 200 bytes, a partition key, stored as a column because folder names do not tell its type",
        "  other columns (2): by 151 bytes",
        "  outside columns: by 2,000 bytes, the footers of 1 -> 5 row groups of 7 columns",
    ]
    (_, line) = explain_growth(report(footprint({"a": 9}, "plain gzip"), footprint({"a": 19}, "plain zstd")))
    assert line.endswith("; the source's encoding or compression level was tighter than any that optimize tries here")
