"""Settings of a rewrite are checked before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from optimized import (
    files_of,
    rewrite,
    warehouse,
)

from feedline.errors import TableArgumentError, TableError
from feedline.warehouse.optimize.recipe import Settings, names_of


def test_columns_come_in_the_requested_order(tmp_path: Path) -> None:
    source = warehouse(tmp_path / "in", days=1)
    report = rewrite(source, tmp_path / "out", order=("word", "ids"))
    names = pq.read_schema(files_of(tmp_path / "out")[0]).names
    assert names == ["word", "ids", "event", "session", "ts", "price", "holes"] == list(report.columns)
    metadata = pq.read_metadata(files_of(tmp_path / "out")[0]).row_group(0)
    offsets = [metadata.column(index).data_page_offset for index in range(metadata.num_columns)]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster_by": ("sesion",)}, r"--cluster-by names column 'sesion', .*Did you mean 'session'\?"),
        ({"cluster_by": ("ds",)}, r"--cluster-by names column 'ds', which is not in the table's files"),
        ({"cluster_by": ("session",), "sort_by": ("tss",)}, r"--sort-by names column 'tss', .*Did you mean 'ts'\?"),
        ({"cluster_by": ("ids",)}, r"--cluster-by names column 'ids' of type list<.*>: expected numbers"),
        ({"flatten": ("word",)}, r"--flatten names column 'word' of type string: expected a map"),
        ({"order": ("wrd",)}, r"--order names column 'wrd', .*Did you mean 'word'\?"),
        ({"projection": ("wrd",)}, r"--projection names column 'wrd', .*Did you mean 'word'\?"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    source = warehouse(tmp_path / "in", days=1)
    with pytest.raises(TableError, match=words):
        rewrite(source, tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_names_are_one_string_or_several():
    assert names_of("ab") == ("ab",)
    assert names_of(["a", "b"]) == ("a", "b")
    settings = Settings.of(order="x", dedup={"g": "a"}, cluster_by="k", sort_by=["t"], flatten=())
    assert (settings.order, settings.popular) == (("x",), False)
    assert (settings.dedup, settings.cluster_by, settings.sort_by) == ((("g", ("a",)),), ("k",), ("t",))
    assert (Settings.of().order, Settings.of().popular) == ((), False)
    assert (Settings.of(order="popular").order, Settings.of(order="popular").popular) == ((), True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_group_rows": 0}, "--row-group-rows is out of range: got 0, expected at least 1"),
        ({"file_bytes": 0}, "--file-bytes is out of range: got 0"),
        ({"flatten_coverage": 1.5}, "--flatten-coverage is no share: got 1.5, expected 0 to 1"),
        ({"goal": "small"}, "goal is unknown: got 'small', expected one of decode, balanced, size"),
        ({"small_partitions": "drop"}, "small_partitions is unknown: got 'drop', expected one of merge, keep"),
        ({"sort_by": "t"}, "--sort-by sorts within the keys of --cluster-by: got no --cluster-by"),
        ({"expand": True, "dedup": {"g": "a"}}, "--expand stores every column in every row"),
    ],
)
def test_values_out_of_range_are_errors_of_the_argument(options: dict[str, Any], message: str):
    with pytest.raises(TableArgumentError, match=message):
        Settings.of(**options)
