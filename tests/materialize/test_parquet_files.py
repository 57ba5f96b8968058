"""The file of a block has a column per feature, and appears whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.errors import TableError
from feedline.materialize import write_plan
from feedline.materialize.output_folder import FilesJob, NumberedBlock, OutputFolder
from feedline.materialize.write_plan import file_columns, file_name, write_block_file


def test_a_block_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows = 70_000  # more than a row group
    table = pa.table({"a": np.arange(rows), "ids": pa.array([[1, 2], []] * (rows // 2), pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "t.parquet")
    features = {"dense": {"a": []}, "sparse": {"ids": []}}
    source = {"table": str(tmp_path / "t.parquet")}
    spec = {"version": 1, "name": "x", "work_dir": str(tmp_path / "work"), "source": source, "batch": {"size": 8}}
    plan = Pipeline.from_dict({**spec, "features": features, "shuffle": "off"}).complete_plan()
    [block] = plan.source.schedule(0).blocks(0, everything=True)
    files = FilesJob(job=plan.source.job, output=OutputFolder(str(tmp_path / "out"), overwrite=False).begin())
    size, quality = write_block_file(files, NumberedBlock(7, plan.request(block, 0)))
    path = Path(files.output.files.path) / file_name(files.output.run, 7)
    assert (path.stat().st_size, quality.rows) == (size, rows)
    written = pq.ParquetFile(path)
    assert written.metadata.num_row_groups == 2
    assert written.schema_arrow.field("ids").type == pa.large_list(pa.field("element", pa.int64()))
    assert written.read().column("ids").to_pylist() == table["ids"].to_pylist()
    assert [column["name"] for column in file_columns(plan.layout.schema)] == ["a", "ids"]
    path.unlink()
    finished = write_plan.finished_rows

    def overtaken(*arguments: Any) -> Any:
        replace(files.output.claim, run="other").take()
        return finished(*arguments)

    monkeypatch.setattr(write_plan, "finished_rows", overtaken)
    with pytest.raises(TableError, match="is no longer this run's: got that of other"):
        write_block_file(files, NumberedBlock(7, plan.request(block, 0)))
    assert not path.exists()
