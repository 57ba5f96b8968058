"""Arrays are read as zarr reads them, by mapping files where possible, and refused where they changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr_arrays import FORMS, N, made

from feedline.artifacts.array_rows import ArrayRows
from feedline.artifacts.zarr_array import open_array
from feedline.errors import CorruptFileError, TableChangedError


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    for name, options in FORMS.items():
        made(folder / name, **options)
    return folder


@pytest.mark.parametrize("max_bytes", [1 << 30, 4000])
@pytest.mark.parametrize("form", FORMS)
def test_rows_are_those_that_zarr_reads(arrays: Path, form: str, max_bytes: int):
    expected = zarr.open_array(str(arrays / form), mode="r")[:].astype(np.float32)
    stored = open_array(str(arrays / form)).stored_array()
    assert stored.mapped == (
        form in ("bare", "bare, one chunk", "version 2, bare", "wide chunks", "half", "small integers")
    )
    rows = ArrayRows(stored, max_bytes)
    for indices in (
        np.arange(N),
        np.array([], np.int64),
        np.array([N - 1, 0, 0]),
        np.random.default_rng(1).integers(0, N, 300),
    ):
        assert np.array_equal(rows.take(indices), expected[indices])


@pytest.mark.parametrize("form", ["compressed", "bare", "sharded"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: os.utime(file, (1, 1)), "changed after the array was opened: got .*Start again"),
        (lambda file: file.write_bytes(b"x"), "changed after the array was opened: got 1 bytes"),
        (lambda file: file.unlink(), "is gone: it existed when the array was opened"),
    ],
    ids=["touched", "rewritten", "deleted"],
)
def test_a_chunk_that_changed_is_not_read(tmp_path: Path, form: str, change: Any, message: str):
    made(tmp_path / "a", **FORMS[form])
    opened = open_array(str(tmp_path / "a"))
    rows = ArrayRows(opened.stored_array(), 1 << 20)
    rows.take(np.array([0]))
    change(tmp_path / "a" / "c" / "1" / "0")
    with pytest.raises(TableChangedError, match=message):
        rows.take(np.array([70 if form != "sharded" else 600]))
    assert open_array(str(tmp_path / "a")).digest != opened.digest


def test_a_chunk_that_was_never_written_holds_the_fill_value(tmp_path: Path):
    for name, options in (("bare", {"compressors": None}), ("compressed", {})):
        array = zarr.create_array(
            store=str(tmp_path / name), shape=(100, 2), chunks=(10, 2), dtype="f4", fill_value=7.5, **options
        )
        array[15:20] = 1
        found = ArrayRows(open_array(str(tmp_path / name)).stored_array(), 1 << 20).take(np.array([3, 16, 99]))
        assert found.tolist() == [[7.5, 7.5], [1.0, 1.0], [7.5, 7.5]]


def test_a_chunk_that_is_no_chunk(tmp_path: Path):
    made(tmp_path / "bare", **FORMS["bare"])
    made(tmp_path / "compressed")
    for name in ("bare", "compressed"):
        (tmp_path / name / "c" / "0" / "0").write_bytes(b"nonsense")
        with pytest.raises(CorruptFileError, match=name):
            ArrayRows(open_array(str(tmp_path / name)).stored_array(), 1 << 20).take(np.array([0]))
