"""The file of a block has a column per feature, and appears whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.errors import TableError
from feedline.materialize.block_rows import FilesJob, NumberedBlock
from feedline.materialize.output_folder import OutputFolder
from feedline.materialize.parquet_files import file_columns, write_block_file


def test_a_block_is_a_file(tmp_path: Path):
    rows = 70_000  # more than a row group
    table = pa.table({"a": np.arange(rows), "ids": pa.array([[1, 2], []] * (rows // 2), pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "t.parquet")
    features = {"dense": {"a": []}, "sparse": {"ids": []}}
    source = {"table": str(tmp_path / "t.parquet")}
    spec = {"version": 1, "name": "x", "work_dir": str(tmp_path / "work"), "source": source, "batch": {"size": 8}}
    plan = Pipeline.from_dict({**spec, "features": features, "shuffle": "off"}).complete_plan()
    [block] = plan.schedule(0).blocks(0, everything=True)
    files = FilesJob(job=plan.job, output=OutputFolder(str(tmp_path / "out"), overwrite=False).begin())
    size, quality = write_block_file(files, NumberedBlock(7, plan.request(block, 0)))
    path = Path(files.output.uri) / "part-00000007.parquet"
    assert (path.stat().st_size, quality.rows) == (size, rows)
    written = pq.ParquetFile(path)
    assert written.metadata.num_row_groups == 2
    assert written.schema_arrow.field("ids").type == pa.large_list(pa.field("element", pa.int64()))
    assert written.read().column("ids").to_pylist() == table["ids"].to_pylist()
    assert [column["name"] for column in file_columns(plan.layout.schema)] == ["a", "ids"]
    elsewhere = replace(files, output=replace(files.output, token="another"))
    with pytest.raises(TableError, match="is another folder on the worker"):
        write_block_file(elsewhere, NumberedBlock(7, plan.request(block, 0)))
