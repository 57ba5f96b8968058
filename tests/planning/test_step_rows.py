"""The rows that a plan names for a step are the rows that the step delivers: read by place from the files, in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from mixed_tables import NAMES, ids_of, mixed_pipeline, write_tables
from pipelines import Place, furnished
from processes import ended_here
from rewritten import Rewritten, state_at

from feedline import Pipeline
from feedline.commands.plan.views import describe_rows, describe_step
from feedline.errors import PlanError
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.plan import Plan
from feedline.planning.rebase import find_delivered_rows
from feedline.planning.step_rows import EpochRows, StepRows, StepSlice

FEATURES = {"sparse": {"hist_0": []}, "extra": ["request_id"]}
WHERE = 'dense_0 > 0.3 and ds != "2026-01-02"'
UNSIZED = {"size": None, "max_tokens": 600}
CASES: dict[str, dict[str, Any]] = {
    "all rows": {},
    "in the table's order": {"shuffle": "off", "batch": {"size": 300, "tail": "partial"}},
    "a filter, padded": {"source": {"where": WHERE, "split_rows": 2048}, "batch": {"size": 256, "tail": "pad"}},
    "a sample": {"source": {"sample": {"fraction": 0.25, "seed": 7}}, "batch": {"size": 64, "tail": "partial"}},
    "balanced lanes": {"batch": {"size": 100, "balance": {"column": "hist_0", "max": 20}}},
    "buckets": {
        "batch": {"size": None, "max_tokens": 600, "buckets": [3, 8, 30], "longer": "cap", "balance": "hist_0"}
    },
    "whole sessions": {"shuffle": {"by": "session_id"}, "source": {"where": "id_0 % 3 != 0"}},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


def rows_at(
    table: Path, facts: dict[str, Any], column: str, read: Callable[[Path, int, str], list[Any]] | None = None
) -> list[Any]:
    """The values of a column at the places that the facts name, in the order of the batch, without padding."""
    found: dict[int, Any] = {}
    for part in facts["row_groups"]:
        values = (read or values_of)(table / part["file"], part["row_group"], column)
        found |= dict(zip(part["positions"], [values[row] for row in part["rows"]], strict=True))
    return [found[position] for position in sorted(found)]


def values_of(file: Path, row_group: int, column: str) -> list[Any]:
    values: list[Any] = pq.ParquetFile(file).read_row_group(row_group, [column])[column].to_pylist()
    return values


def assert_names_delivered_rows(
    pipeline: Pipeline, plan: Plan, table: Path, column: str, *, epoch: int, world_size: int, steps: int | None = None
) -> None:
    """In all steps, or in some from the first to the last."""
    read, count = cache(values_of), plan.schedule(epoch).steps
    chosen = range(count) if steps is None else np.linspace(0, count - 1, steps).astype(int)
    for rank in range(world_size):
        for batch in pipeline.batches(epoch, rank, world_size, plan=plan):
            if batch.step not in chosen:
                continue
            facts = describe_step(plan, epoch=epoch, step=batch.step, rank=rank, world_size=world_size)
            assert rows_at(table, facts, column, read) == batch.extra[column][batch.valid].tolist()
            assert (facts["rows"], facts["padding"]) == (int(batch.valid.sum()), int((~batch.valid).sum()))


NIGHTLY = {"in the table's order", "a sample"}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in NIGHTLY else ()) for case in CASES]
)
def test_a_step_delivers_the_rows_that_the_plan_names(place: Place, clicks: Path, case: str):
    path = place.write(lanes=4, features=FEATURES, **CASES[case])
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.plan()
    for world_size, steps in ((2, 3), (1, 2)):
        assert_names_delivered_rows(pipeline, plan, clicks, "request_id", epoch=1, world_size=world_size, steps=steps)


@pytest.mark.parametrize("shuffle", [{"seed": 5, "window_rows": 150}, {"seed": 5, "window_rows": 150, "by": "user"}])
def test_so_it_does_after_a_rebase(tmp_path: Path, shuffle: dict[str, Any]):
    place = Rewritten(tmp_path, seed=3)
    place.fill()
    pipeline = place.pipeline(shuffle=shuffle)
    before = pipeline.plan()
    list(pipeline.batches(0, plan=before))  # records the rows' keys
    place.rewrite()
    plan = pipeline.rebase(state_at(before, 0, 4))
    assert plan.source.rebase is not None
    for epoch in (0, 1):
        assert_names_delivered_rows(pipeline, plan, place.table, "id", epoch=epoch, world_size=1)
    assert_each_row_comes_once(plan, 0, 4)


@pytest.mark.parametrize("case", ["all rows", "a filter, padded", "whole sessions"])
def test_no_row_of_an_epoch_comes_twice(place: Place, case: str):
    plan = Pipeline.from_yaml(place.write(lanes=4, **CASES[case])).plan()
    assert_each_row_comes_once(plan, 0, 7)


class SeenRows:
    """The rows of an epoch that came so far. before: those of earlier steps."""

    def __init__(self, split_rows: np.ndarray, before: dict[int, np.ndarray]) -> None:
        self._split_rows = split_rows
        self._splits = dict(before)

    def add(self, rows: StepSlice) -> int:
        """Add a step's rows, without padding; returns how many came before, or come twice."""
        again = 0
        for split in np.unique(rows.split[rows.valid]).tolist():
            here = rows.row[rows.valid & (rows.split == split)]
            seen = self._splits.setdefault(split, np.zeros(int(self._split_rows[split]), np.bool_))
            again += len(here) - int(np.count_nonzero(~seen[np.unique(here)]))
            seen[here] = True
        return again


def of_lanes(steps: StepRows, step: int) -> StepSlice:
    """The rows of all lanes."""
    parts = [steps.of_lane(step, lane) for lane in range(steps.schedule.lanes)]
    return StepSlice(
        split=np.concatenate([part.split for part in parts]),
        row=np.concatenate([part.row for part in parts]),
        valid=np.concatenate([part.valid for part in parts]),
    )


def assert_each_row_comes_once(plan: Plan, epoch: int, first: int) -> None:
    steps = StepRows(plan.source, epoch)
    seen = SeenRows(steps.schedule.split_rows, find_delivered_rows(steps.schedule, first, steps.order))
    of_steps = [of_lanes(steps, step) for step in range(first, steps.schedule.steps)]
    assert [seen.add(rows) for rows in of_steps] == [0] * len(of_steps)
    assert seen.add(of_steps[0]) == int(of_steps[0].valid.sum()), "rows that come again are counted"
    if first > steps.schedule.first_step:
        assert seen.add(of_lanes(steps, first - 1)) > 0, "those of earlier steps, too"


def test_the_command_names_the_rows_of_a_rank_or_of_all(place: Place, clicks: Path, tmp_path: Path):
    path = place.write(lanes=4)
    pipeline = Pipeline.from_yaml(path)
    run = ended_here("plan", path, "--step", 3, "--rank", 1, "--world-size", 2, "--epoch", 2, "--json")
    facts = json.loads(run.stdout)
    batch = next(pipeline.batches(2, 1, 2, step=3))
    assert rows_at(clicks, facts, "request_id") == batch.extra["request_id"].tolist()
    assert (facts["lanes"], facts["steps"], facts["rank"]) == ([2, 3], 19, 1)

    state = tmp_path / "state.json"
    state.write_text(json.dumps(state_at(pipeline.plan(), 2, 3)))
    run = ended_here("plan", path, "--step", 3, "--epoch", 2, "--state", state, "--json")
    whole = json.loads(run.stdout)
    assert rows_at(clicks, whole, "request_id") == next(pipeline.batches(2, step=3)).extra["request_id"].tolist()
    assert (whole["rank"], whole["rows"]) == (None, 1024)

    text = ended_here("plan", path, "--step", 3, "--rank", 1, "--world-size", 2).stdout
    assert "epoch 0, step 3 of 19, rank 1 of 2: 512 rows" in text
    assert "ds=2026-01-0" in text


def test_steps_and_ranks_that_are_not_there(place: Place):
    plan = Pipeline.from_yaml(place.write(lanes=4)).plan()
    with pytest.raises(PlanError, match="step is out of range: got 19, expected 0 to 18"):
        describe_step(plan, epoch=0, step=19, rank=0, world_size=2)
    with pytest.raises(PlanError, match="rank is out of range: got 2, expected 0 to 1"):
        describe_step(plan, epoch=0, step=0, rank=2, world_size=2)
    run = ended_here("plan", place.folder / "p.yaml", "--rank", 1)
    assert (run.returncode, "got no --step" in run.stderr) == (2, True)


def test_rows_are_described_as_ranges():
    assert describe_rows([5, 4, 3, 9, 0]) == "0, 3-5, 9"
    assert describe_rows(list(range(0, 4000, 2))) == "0, 2, 4, 6, 8, 10 … 3,998"


# --------------------------------------------------------------------------------------------------------------------
# The rows of each step of a mix, from the plan alone, are those of its batches.


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
