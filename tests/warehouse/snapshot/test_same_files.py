"""Files that two snapshots share, by their real path."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Table
from feedline.warehouse.snapshot.snapshot import same_files


def test_files_are_the_same_by_their_real_path(tmp_path: Path):
    for file in range(3):
        path = tmp_path / "t" / f"k={file}" / "a.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"x": np.arange(file + 1)}), path)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    (tmp_path / "link").symlink_to(tmp_path / "t" / "k=1")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "t" / "k=2" / "a.parquet")
    one = Table(str(tmp_path / "t")).snapshot()
    cases: dict[str, tuple[str | list[str], list[int]]] = {
        "itself": (f"{tmp_path}/t/", [0, 1, 2]),
        "a URI": (f"file://{tmp_path}/t", [0, 1, 2]),
        "a partition": (f"{tmp_path}/t/k=2", [2]),
        "a linked folder": (f"{tmp_path}/link", [1]),
        "a linked file": (f"{tmp_path}/b.parquet", [2]),
        "a list": ([f"{tmp_path}/t/k=2/a.parquet", f"{tmp_path}/copy/k=0"], [-1, 2]),
        "a copy": (f"{tmp_path}/copy", [-1, -1, -1]),
    }
    for case, (table, expected) in cases.items():
        assert same_files(one, Table(table).snapshot()).tolist() == expected, case
