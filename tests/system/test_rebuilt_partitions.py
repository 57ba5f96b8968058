"""A job over a table that is built: late events build a partition again, the job is refused, and a rebase goes on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished
from processes import ended_here
from sample_logs import CANDIDATES, DAY_S, END_NS, FIRST_S, REQUESTS, ROWS, drawn_logs, spec_of, write_logs

from feedline import FeedlineDataset, Pipeline
from feedline.config.build_spec import BuildSpec
from feedline.errors import TableChangedError
from feedline.loader.batch import Batch
from feedline.warehouse.building import partition
from feedline.warehouse.building.build import build
from feedline.warehouse.optimize.optimize import TaskRunner

REBUILT = "ds=2026-01-02"
REFUSAL = rf"{REBUILT}/part-0000-00000\.parquet .*go on with feedline rebase"
Rows = list[tuple[int, int, float]]  # request, item, clicked


def built(spec: BuildSpec) -> tuple[str, ...]:
    return build(spec, now_ns=END_NS, until_ns=END_NS, runner=TaskRunner(threads=1, memory_bytes=1 << 30)).built


def rows_of(batches: Iterable[Batch]) -> Rows:
    found: Rows = []
    for batch in batches:
        columns = (batch.extra["request_id"], batch.extra["item_id"], batch["clicked"])
        found += zip(*(column[batch.valid].tolist() for column in columns), strict=True)
    return found


def stored(table: Path, is_of_requests: bool) -> Rows:
    """The impressions of the table, by DuckDB."""
    columns = "request_id, unnest(item_id), unnest(clicked)" if is_of_requests else "request_id, item_id, clicked"
    rows = duckdb.sql(f"select {columns} from read_parquet('{table}/**/*.parquet')").fetchall()
    return [(request, item, float(clicked)) for request, item, clicked in rows]


@pytest.fixture(params=[ROWS, REQUESTS], ids=["impressions", "requests"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Place, BuildSpec, list[Path]]]:
    """A table of three days, its spec, and files with impressions and clicks of the second day that arrive late."""
    monkeypatch.setattr(partition, "_LIMITS", replace(partition._LIMITS, row_group_rows=16))
    logs, late = drawn_logs(51, rows=400, days=3, whole_requests=True), []
    for name in ("impressions", "clicks"):
        second = logs[name]["ts"].cast(pa.int64()).to_numpy() // 10**6 - FIRST_S - DAY_S
        within = (second >= 10_800) & (second < DAY_S - 10_800)  # no other day reads these times
        is_late = pa.array(within & (np.arange(len(second)) % 3 > 0))
        late.append((name, logs[name].filter(is_late)))
        logs[name] = logs[name].filter(pa.array(~np.asarray(is_late)))
    write_logs(logs, tmp_path / "logs")
    spec = spec_of(tmp_path, late="rebuild", layout=request.param)
    assert len(built(spec)) == 3
    files = []
    for name, table in late:
        files.append(tmp_path / "logs" / name / "arrived=9" / "late.parquet.later")
        files[-1].parent.mkdir()
        pq.write_table(table, files[-1])
    (tmp_path / "place").mkdir()
    with furnished(tmp_path / "place", tmp_path / "out") as place:
        yield place, spec, files


def test_a_job_goes_on_after_a_partition_was_built_again(place: tuple[Place, BuildSpec, list[Path]]) -> None:
    place, spec, late = place
    is_of_requests = spec.out.request is not None
    path = place.write(
        source={
            "table": spec.out.table,
            "row_key": ["request_id", "item_id"],
            "split_rows": 32,
            **({"explode": list(CANDIDATES)} if is_of_requests else {}),
        },
        features={
            "categorical": {"position": []},
            "label": {"clicked": []},
            "extra": ["request_id", "item_id"],
        },
        batch={"size": 8, "tail": "partial"},
        shuffle={"seed": 2, "window_rows": 64},
        lanes=2,
        epochs=2,
    )
    table = Path(spec.out.table)
    assert len(stored(table, is_of_requests)) > 200
    here = Pipeline.from_yaml(path)
    running = here.batches(plan=here.plan())
    first = rows_of(islice(running, 2))
    with FeedlineDataset(path) as dataset:
        before = rows_of(islice(dataset, len(dataset) // 2))
        state = dataset.state_dict()
    assert before[: len(first)] == first

    for file in late:
        file.rename(file.with_suffix(""))
    assert built(spec) == (REBUILT,)
    whole = stored(table, is_of_requests)
    with pytest.raises(TableChangedError, match=REFUSAL):
        rows_of(running)
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(state)
        with pytest.raises(TableChangedError, match=REFUSAL):
            rows_of(dataset)

    (place.folder / "state.json").write_text(json.dumps(state))
    done = ended_here("rebase", path, place.folder / "state.json", "--output", place.folder / "new.json")
    assert done.returncode == 0, done.stderr
    rebased = json.loads((place.folder / "new.json").read_text())
    plan = here.plan_for(rebased)
    ranks = [list(here.batches(rebased["epoch"], rank, 2, step=rebased["step"], plan=plan)) for rank in range(2)]
    rest = plan.facts().rest
    assert {len(batches) for batches in ranks} == {rest.steps - rest.first_step}
    after = [row for batches in ranks for row in rows_of(batches)]
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(rebased)
        assert sorted(rows_of(dataset)) == sorted(after)
        assert sorted(rows_of(dataset)) == sorted(whole)  # the next epoch, with the labels that late clicks gave

    keys = [row[:2] for row in (*before, *after)]
    assert len(keys) == len(set(keys))
    assert set(keys) == {row[:2] for row in whole}
    assert set(after) <= set(whole)
    assert set(before) - set(whole), "some rows were delivered before their clicks had arrived"
