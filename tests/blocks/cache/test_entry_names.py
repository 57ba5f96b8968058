"""Are entries named by everything that decides their bytes, and by nothing else?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.cache.entry_names import SEGMENT_ROWS, EntryNames, Segment, segments
from feedline.blocks.jobs import compile_job
from feedline.planning.plan import Plan
from feedline.warehouse.reading.fragment import Fragment

SEGMENT = Segment(0, 10, 0, 10)


def plan_of(folder: Path, source: dict[str, Any] | None = None, **changes: Any) -> Plan:
    table = folder / "table"
    if not table.exists():
        table.mkdir()
        pq.write_table(pa.table({"price": [0.5] * 10, "item": [*range(10)], "label": [1.0] * 10}), table / "a.parquet")
    features = {"dense": {"price": ["log1p"]}, "categorical": {"item": [{"modulo": 7}]}, "label": {"label": []}}
    spec: dict[str, Any] = {
        "version": 1,
        "name": "names",
        "work_dir": str(folder / "work"),
        "source": {"table": str(table), **(source or {})},
        "features": features,
        "batch": {"size": 2},
    }
    return Pipeline.from_dict(spec | changes).plan()


def names_of(plan: Plan) -> EntryNames:
    return EntryNames(plan.job, compile_job(plan.job))


def fragment_of(plan: Plan) -> Fragment:
    return plan.request(next(iter(plan.schedule(0).blocks(0))), 0).pieces[0].fragment


def digest_of(plan: Plan) -> str:
    return names_of(plan).group(fragment_of(plan), SEGMENT).digest


@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle": {"seed": 7}},
        {"shuffle": "off"},
        {"batch": {"size": 5}},
        {"lanes": 2},
        {"name": "another"},
        {"source": {"decoder": "arrow"}},
    ],
)
def test_what_does_not_decide_bytes_is_not_named(changes: dict[str, Any], tmp_path: Path) -> None:
    one, other = plan_of(tmp_path), plan_of(tmp_path, **changes)
    assert names_of(one).columns == names_of(other).columns
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(
    "source",
    [{"where": "item < 9"}, {"sample": {"fraction": 0.9, "seed": 1}}, {"sample": {"fraction": 0.9, "seed": 2}}],
)
def test_the_selected_rows_are_named(source: dict[str, Any], tmp_path: Path) -> None:
    assert digest_of(plan_of(tmp_path)) != digest_of(plan_of(tmp_path, source))
    assert digest_of(plan_of(tmp_path, {"where": "item < 8"})) != digest_of(plan_of(tmp_path, source))


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": 1},
        {"mtime_ns": 1},
        {"footer_digest": b"x"},
        {"path": "b.parquet"},
        {"table": "/elsewhere"},
        {"row_groups": (3,)},
        {"partition": (("day", 1),)},
        {"partition": (("day", "1"),)},
    ],
)
def test_the_file_and_its_row_group_are_named(change: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    other = names_of(plan).group(replace(fragment_of(plan), **change), SEGMENT)
    assert other.digest != digest_of(plan)


def test_the_environment_is_named(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    for index, (name, _) in enumerate(plan.job.environment):
        environment = (*plan.job.environment[:index], (name, "other"), *plan.job.environment[index + 1 :])
        names = EntryNames(replace(plan.job, environment=environment), compile_job(plan.job))
        assert names.group(fragment_of(plan), SEGMENT).digest != digest_of(plan)


@pytest.mark.parametrize(
    "feature",
    [
        ["log"],
        [{"clip": {"min": 0, "max": 1}}, "log1p"],
        {"column": "item"},
        {"column": "price", "on_nonfinite": "error"},
    ],
)
def test_a_feature_is_named_by_its_chain_and_no_other(feature: object, tmp_path: Path) -> None:
    one = names_of(plan_of(tmp_path)).columns
    changed = {"dense": {"price": feature}, "categorical": {"item": [{"modulo": 7}]}, "label": {"label": []}}
    other = names_of(plan_of(tmp_path, features=changed)).columns
    assert other["price"] != one["price"]
    assert {name: other[name] for name in ("item", "label")} == {name: one[name] for name in ("item", "label")}


def test_types_are_named(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other" / "table").mkdir(parents=True)
    table = pa.table({"price": pa.array([0.5] * 10, pa.float32()), "item": [*range(10)], "label": [1.0] * 10})
    pq.write_table(table, tmp_path / "other" / "table" / "a.parquet")
    assert (
        names_of(plan_of(tmp_path / "one")).columns["price"] != names_of(plan_of(tmp_path / "other")).columns["price"]
    )


def test_features_of_groups_are_named_by_their_runs(tmp_path: Path) -> None:
    """By what is compared, and not by the group's other features."""
    changes: dict[str, Any] = {"dedup": {"g": {"columns": ["price", "item"]}}, "shuffle": "off"}
    plain, grouped = names_of(plan_of(tmp_path, shuffle="off")), names_of(plan_of(tmp_path, **changes))
    assert not plain.runs
    assert grouped.columns["label"] == plain.columns["label"]
    assert not {*grouped.columns.values(), *grouped.runs.values()}.intersection(
        {plain.columns["price"], plain.columns["item"]}
    )
    more = {"dense": {"price": ["log1p"]}, "categorical": {"item": [{"modulo": 8}]}, "label": {"label": []}}
    other = names_of(plan_of(tmp_path, **changes, features=more))
    assert (other.runs, other.columns["price"]) == (grouped.runs, grouped.columns["price"])
    by = names_of(plan_of(tmp_path, **{**changes, "shuffle": {"by": "item"}}))
    fewer = names_of(plan_of(tmp_path, **changes, features={**more, "categorical": {}}))
    for names in (by, fewer):
        assert names.runs["g"] != grouped.runs["g"]
        assert names.columns["price"] != grouped.columns["price"]


def test_segments_hold_the_rows_that_are_needed() -> None:
    kept = 2 * SEGMENT_ROWS + 10
    found = [*segments(kept, SEGMENT_ROWS - 3, kept)]
    assert found == [
        Segment(0, SEGMENT_ROWS, SEGMENT_ROWS - 3, SEGMENT_ROWS),
        Segment(SEGMENT_ROWS, SEGMENT_ROWS, 0, SEGMENT_ROWS),
        Segment(2 * SEGMENT_ROWS, 10, 0, 10),
    ]
    assert [each.is_whole for each in found] == [False, True, True]
