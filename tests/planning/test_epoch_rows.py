"""The rows of each step of a mix, from the plan alone, are those of its batches."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from mixed_tables import NAMES, ids_of, mixed_pipeline, write_tables

from feedline import Pipeline
from feedline.errors import PlanError
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.step_rows import EpochRows


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    folder = write_tables(tmp_path_factory.mktemp("mixed"), clicks=200, views=40)
    document = mixed_pipeline(folder, stop="all", lanes=2)
    document["sources"][0]["where"] = "id % 5 != 0"
    return Pipeline.from_dict(document)


def test_located_rows_are_those_of_the_batches(pipeline: Pipeline):
    plan = pipeline.plan()
    rows, ids = EpochRows(plan, 1), {}
    for batch in pipeline.batches(1, plan=plan):
        located = rows.of_rank(batch.step, 0, 1)
        assert located.lane.tolist() == [0] * 10 + [1] * 10
        assert located.source.tolist() == ([0] * 8 + [1] * 2) * 2
        assert located.valid.all()
        found = []
        for source, group, kept in zip(located.source, located.group, located.kept, strict=True):
            own = plan.sources[source]
            if (source, group) not in ids:
                name = NAMES["clicks" if source == 0 else "views"][0]
                file = int(own.snapshot.file_of_row_group[group])
                table = pq.ParquetFile(f"{own.snapshot.uri}/{own.snapshot.files['path'][file].as_py()}")
                column = table.read_row_group(int(own.snapshot.row_group_in_file[group]), [name])[name].to_numpy()
                ids[source, group] = column[read_kept_rows(own, int(group), [name]).rows]
            found.append(int(ids[source, group][kept]))
        assert found == ids_of(batch).ravel().tolist()


def test_an_unknown_step_is_refused(pipeline: Pipeline):
    rows = EpochRows(pipeline.plan(), 0)
    with pytest.raises(PlanError, match=f"step is out of range: got {rows.schedule.steps}, expected 0 to"):
        rows.of_rank(rows.schedule.steps, 0, 1)
    assert np.array_equal(rows.of_rank(3, 1, 2).lane, np.ones(10))
