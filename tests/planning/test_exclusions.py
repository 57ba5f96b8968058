"""Excluded rows are not selected: ranks stay even, states resume, and an exclusion of other rows is refused."""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_table import FEATURES, BadTable

from feedline import Pipeline
from feedline.commands.plan.report import describe
from feedline.commands.plan.views import describe_step
from feedline.errors import DataError, SpecError, StateError
from feedline.loader.state import state_of
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.plan import Plan
from feedline.planning.resolve import plan_column_group
from feedline.warehouse.selection.exclusion import Exclusion


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> BadTable:
    """A table with its exclusion; read it only."""
    table = BadTable(tmp_path_factory.mktemp("bad"))
    table.check()
    return table


def ids_of(pipeline: Pipeline, plan: Plan, epoch: int = 0, first: int = 0, last: int | None = None, world: int = 1):
    """The ids that each rank delivers in steps [first, last), and how many steps each has."""
    ids, steps = [], []
    for rank in range(world):
        batches = pipeline.batches(epoch, rank, world, step=first, plan=plan)
        own = list(islice(batches, None if last is None else last - first))
        steps.append(len(own))
        ids += [row for batch in own for row in batch.extra["id"][batch.valid].tolist()]
    return ids, steps


@pytest.mark.parametrize(
    ("tail", "shuffle"),
    [
        pytest.param(tail, shuffle, marks=() if one == other else pytest.mark.nightly, id=f"{tail}-{shuffle}")
        for one, tail in enumerate(("drop", "pad", "partial"))
        for other, shuffle in enumerate(("off", {"seed": 3, "window_rows": 200}, {"seed": 1, "rows": False}))
    ],
)
def test_ranks_stay_even_and_every_good_row_comes_once(table: BadTable, tail: str, shuffle: Any):
    pipeline = table.excluding(lanes=4, batch={"size": 16, "tail": tail}, shuffle=shuffle)
    plan, good = pipeline.plan(), table.good_ids()
    for epoch, worlds in enumerate([(1, 4), (2,)]):
        schedule = plan.schedule(epoch)
        for world in worlds:
            ids, steps = ids_of(pipeline, plan, epoch, world=world)
            assert steps == [schedule.steps] * world
            assert max(Counter(ids).values()) == 1
            assert set(ids) <= set(good)
            assert len(ids) == len(good) - (len(good) % (16 * 4) if tail == "drop" else 0)


@pytest.mark.parametrize(
    "batch",
    [
        {"size": 16},
        {"size": 16, "balance": "history"},
        {"max_tokens": 48, "buckets": [2, 6], "length": "history"},  # excluded rows alone are longer
    ],
)
def test_a_step_names_the_rows_that_come(table: BadTable, batch: dict[str, Any]):
    """`plan --step` places rows in files, and what it reads of a row group has its good rows alone."""
    pipeline = table.excluding(batch=batch)
    plan = pipeline.plan()
    for step in (0, 7, plan.schedule(0).steps - 1):
        facts = describe_step(plan, epoch=0, step=step, rank=0, world_size=1)
        found: dict[int, int] = {}
        for part in facts["row_groups"]:
            rows = pq.ParquetFile(table.table / part["file"]).read_row_group(part["row_group"], ["id"])["id"]
            found |= dict(zip(part["positions"], rows.take(part["rows"]).to_pylist(), strict=True))
        ids, _ = ids_of(pipeline, plan, 0, step, step + 1)
        assert [found[place] for place in range(len(ids))] == ids
    selection = plan.source.selection
    sizes = [len(read_kept_rows(plan.source, group, ["id"]).rows) for group in range(len(selection.rows))]
    assert sizes == selection.rows.tolist()


def test_buckets_are_counted_without_excluded_rows(table: BadTable):
    """Excluded rows alone are longer than all bounds. A state is rebased where nothing has changed, though its run's
    exclusion is found by its plan's name."""
    batch = {"max_tokens": 48, "buckets": [2, 6], "length": "history"}
    with pytest.raises(SpecError, match=r"batch\.buckets: leave out longer rows"):
        table.pipeline(batch=batch).plan()
    pipeline = table.excluding(batch=batch)
    plan = pipeline.plan()
    again = pipeline.rebase(state_of(plan.facts(), 0, 3))
    assert again.fingerprint == plan.fingerprint
    assert ids_of(pipeline, again, first=3) == ids_of(pipeline, plan, first=3)
    assert table.check(table.pipeline(batch=batch), out=None).exclusion == Exclusion.read(str(table.exclusion)).id


def test_the_fingerprint_names_the_exclusion_wherever_its_file_is(table: BadTable, tmp_path: Path):
    shutil.copy(table.exclusion, tmp_path / "copy")
    plans = [table.pipeline(source=source).plan() for source in ({}, {"exclude": str(tmp_path / "copy")})]
    assert plans[0].fingerprint != plans[1].fingerprint == table.excluding().plan().fingerprint
    assert plans[0].features_fingerprint == plans[1].features_fingerprint
    exclusion = Exclusion.read(str(table.exclusion))
    assert Exclusion.read(str(table.folder / "work" / "exclusions" / f"{exclusion.id}.arrow")).id == exclusion.id


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"where": "id % 7 != 4"}, "another source.where: got id % 7 != 3, expected id % 7 != 4"),
        ({"where": None}, "another source.where: got id % 7 != 3, expected None"),
        ({"sample": {"fraction": 0.5}}, 'another source.sample: got none, expected {"fraction": 0.5'),
    ],
)
def test_an_exclusion_of_other_rows_is_refused(table: BadTable, source: dict[str, Any], message: str):
    with pytest.raises(SpecError) as caught:
        table.excluding(source=source).plan()
    assert f"source.exclude: the exclusion belongs to {message}" in str(caught.value)
    assert "`feedline check --rows --out FILE`" in str(caught.value)


def test_an_exclusion_of_another_snapshot_is_refused_with_its_position(tmp_path: Path):
    table = BadTable(tmp_path, days=1)
    first = table.check()
    frozen = table.excluding().snapshot()
    table.write(1, 0, 0)
    path = tmp_path / "p.yaml"
    path.write_text(json.dumps(table.spec(source={"exclude": str(table.exclusion)}), indent=1))
    pipeline = Pipeline.from_yaml(path)
    grown = pipeline.snapshot()
    with pytest.raises(SpecError) as caught:
        pipeline.plan(snapshot=grown)
    assert (
        f"p.yaml:8:14: source.exclude: the exclusion belongs to another snapshot: got {first.snapshot}, expected "
        in (str(caught.value))
    )
    assert grown.id in str(caught.value)
    assert "source.snapshot" in str(caught.value)
    assert sorted(ids_of(pipeline, pipeline.plan(snapshot=frozen))[0])  # the frozen one goes on
    with pytest.raises(SpecError, match="another snapshot"):
        pipeline.fit()


def test_a_file_that_is_missing_damaged_or_another_is_refused(table: BadTable, tmp_path: Path):
    content = table.exclusion.read_bytes()
    damaged = bytearray(content)
    damaged[len(content) // 3] ^= 1
    files = {"damaged": bytes(damaged), "short": content[:-9], "other": b"rows", "empty": b""}
    for name, each in files.items():
        (tmp_path / name).write_bytes(each)
    snapshot = next((table.folder / "work" / "snapshots").iterdir())
    for file, message in (
        (tmp_path / "missing", "does not exist: expected a file that `feedline check --rows` wrote"),
        *((tmp_path / name, "no exclusion can be read from") for name in files),
        (snapshot, "no exclusion can be read from"),
    ):
        with pytest.raises(SpecError, match=f"source.exclude: .*{message}"):
            table.pipeline(source={"exclude": str(file)}).plan()


def test_bad_rows_that_appear_later_are_errors(tmp_path: Path):
    """A feature that nobody checked: the plan says that others found its exclusion, and a run refuses its bad rows."""
    table = BadTable(tmp_path, days=1)
    table.check()
    dense = {**FEATURES["dense"], "level": {"expr": "1 / (id - 8)", "on_nonfinite": "error"}}
    pipeline = table.excluding(features={**FEATURES, "dense": dense})
    plan = pipeline.plan()
    facts = describe(plan.source, world_size=1)["excluded"]
    assert (facts["rows"], facts["found_by_other_features"]) == (len(table.bad_ids()), True)
    assert table.ids("id = 8")
    with pytest.raises(DataError, match="'level' holds a value that is not finite"):
        quiet(pipeline, plan)
    assert not describe(table.excluding().plan().source, world_size=1)["excluded"]["found_by_other_features"]


def test_nulls_that_are_excluded_refuse_no_run(tmp_path: Path):
    """Footers prove nulls in a feature that holds none; all rows that have them are excluded."""
    folder = tmp_path / "t"
    folder.mkdir()
    rows = pa.table({"id": range(100), "x": [None if row % 10 == 3 else row / 2 for row in range(100)]})
    pq.write_table(rows, folder / "a.parquet", row_group_size=40)
    table = BadTable(tmp_path, days=0)
    features = {"dense": {"x": []}, "extra": ["id"]}
    pipeline = table.pipeline(features=features, source={"where": None}, batch={"size": 5})
    with pytest.raises(DataError, match="feature 'x' holds nulls"):
        pipeline.complete_plan()
    table.check(pipeline)
    excluding = table.excluding(features=features, source={"where": None}, batch={"size": 5})
    plan = excluding.complete_plan()
    assert plan.source.gaps.warnings() == []
    assert sorted(ids_of(excluding, plan)[0]) == [row for row in range(100) if row % 10 != 3]
    assert plan_column_group(plan, ["x"]).source.gaps.warnings() == []
    dense = {**features, "dense": {"x": [], "y": {"column": "x", "ops": ["log1p"]}}}
    changed = table.excluding(features=dense, source={"where": None}, batch={"size": 5})
    assert changed.plan().without_gaps().source.gaps.warnings()  # up to 10, by other features: none is certain


def test_a_table_of_bad_rows_only_is_refused(tmp_path: Path):
    folder = tmp_path / "t"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "x": pa.array([None, None], pa.float32())}), folder / "a.parquet")
    table = BadTable(tmp_path, days=0)
    changes: dict[str, Any] = {"features": {"dense": {"x": []}}, "source": {"where": None}}
    table.check(table.pipeline(**json.loads(json.dumps(changes))), max_share=1)
    with pytest.raises(SpecError, match=r"source\.exclude: every selected row is excluded: got 2 bad rows"):
        table.excluding(**json.loads(json.dumps(changes))).plan()


# -- rebase ------------------------------------------------------------------------------------------------------------


TOLERANT: dict[str, Any] = {  # what is bad breaks an expectation, so that a run without an exclusion delivers it
    "dense": {"x": {"column": "x", "expect": {"max": "< 90"}}},
    "extra": ["id"],
}


class Tolerant(BadTable):
    """Rows with unique ids, of which those with x >= 90 are bad."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.table = folder, folder / "t"
        self.files: dict[str, list[int]] = {}
        for number in range(4):
            self.put(f"ds={number // 2}/{number}.parquet", list(range(200 * number, 200 * number + 170)))

    def put(self, name: str, ids: list[int]) -> None:
        path = self.table / name
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pa.table({"id": ids, "x": pa.array([self.x(row) for row in ids], pa.float32())})
        pq.write_table(rows, path, row_group_size=60)
        self.files[name] = ids

    @staticmethod
    def x(row: int) -> float:
        return row * 37 % 100

    def all_ids(self) -> list[int]:
        return sorted(row for ids in self.files.values() for row in ids if row % 7 != 3)

    def spec(self, **changes: Any) -> dict[str, Any]:
        return super().spec(**{"features": TOLERANT, "batch": {"size": 8, "tail": "partial"}, **changes})


def quiet(pipeline: Pipeline, plan: Plan, *steps: int | None) -> list[int]:
    with warnings.catch_warnings(action="ignore"):  # of broken expectations
        return ids_of(pipeline, plan, *steps)[0]


@pytest.mark.parametrize("shuffle", [pytest.param("off", marks=pytest.mark.nightly), {"seed": 3, "window_rows": 100}])
def test_an_epoch_goes_on_without_rows_that_are_excluded_in_its_middle(tmp_path: Path, shuffle: Any):
    """No row key is needed: files are as they were. Rows that came before stay delivered, bad ones among them."""
    table = Tolerant(tmp_path)
    plain = table.pipeline(shuffle=shuffle)
    plan = plain.plan()
    before = quiet(plain, plan, 0, 0, 11)
    state = state_of(plan.facts(), 0, 11)
    table.check(plain)
    pipeline = table.excluding(shuffle=shuffle)
    with pytest.raises(StateError) as caught:
        pipeline.plan_for(state)
    exclusion = Exclusion.read(str(table.exclusion))
    assert f"Its run had nothing and pipeline.yaml has {exclusion.id} in source.exclude" in str(caught.value)
    assert 'snapshot="rebase"' in str(caught.value)
    assert "or leave source.exclude out to go on as before" in str(caught.value)
    rest = pipeline.rebase(state)
    after = quiet(pipeline, rest, 0, 11)
    bad = {row for row in table.all_ids() if table.x(row) >= 90}
    assert bad & set(before)
    assert sorted(before + after) == sorted(set(table.all_ids()) - (bad - set(before)))
    # the rebased run's own state resumes, and its next epoch has no bad row at all
    then = state_of(rest.facts(), 0, 20)
    assert quiet(pipeline, pipeline.plan_for(then), 0, 20) == quiet(pipeline, rest, 0, 20)
    assert sorted(quiet(pipeline, rest, 1)) == sorted(set(table.all_ids()) - bad)
    assert pipeline.rebase(then).fingerprint == rest.fingerprint  # nothing has changed


def test_a_rewritten_table_is_rebased_from_one_exclusion_to_another(tmp_path: Path):
    table = Tolerant(tmp_path)
    source = {"row_key": "id"}
    table.check(table.pipeline(source=dict(source)))
    old = table.excluding(source=dict(source))
    plan = old.plan()
    before = quiet(old, plan, 0, 0, 15)
    state = state_of(plan.facts(), 0, 15)
    kept = [row for row in table.files["ds=0/0.parquet"] if row % 3]
    table.put("ds=0/0.parquet", kept[::-1])  # rewritten: rows are gone, others have moved
    table.put("ds=1/9.parquet", list(range(2000, 2090)))
    table.check(table.pipeline(source=dict(source)), earlier=str(table.exclusion), out=str(tmp_path / "new"))
    new = table.pipeline(source={**source, "exclude": str(tmp_path / "new")})
    with pytest.raises(SpecError, match="another snapshot"):  # the state names its own
        new.plan_for(state)
    rest = new.rebase(state)
    after = quiet(new, rest, 0, 15)
    bad = {row for row in table.all_ids() if table.x(row) >= 90}
    gone = set(range(170)) - set(kept)
    assert len(after) == len(set(after))
    assert not set(after) & set(before)
    assert set(after) == set(table.all_ids()) - bad - set(before)
    assert set(before) & gone


def test_a_state_of_another_exclusion_names_both(tmp_path: Path):
    """The file has been written anew, by other bounds: work_dir still has the one of the run."""
    table = Tolerant(tmp_path)
    table.check(table.pipeline())
    plan = table.excluding().plan()
    state, first = state_of(plan.facts(), 0, 3), Exclusion.read(str(table.exclusion))
    stricter = {**TOLERANT, "dense": {"x": {"column": "x", "expect": {"max": "< 50"}}}}
    table.check(table.pipeline(features=stricter))
    with pytest.raises(StateError, match=f"Its run had {first.id} and pipeline.yaml has ") as caught:
        table.excluding().plan_for(state)
    kept = f"{tmp_path}/work/exclusions/{first.id}.arrow"
    assert f"or name {kept} in source.exclude to go on as before" in str(caught.value)
    assert table.pipeline(source={"exclude": kept}).plan_for(state).fingerprint == plan.fingerprint
    rest = table.excluding().rebase(state)
    bad = {row for row in table.all_ids() if table.x(row) >= 50}
    assert not bad & set(quiet(table.excluding(), rest, 0, 3))


def test_a_rebase_to_an_exclusion_stays_on_its_snapshot(tmp_path: Path):
    """The table has grown, and nobody has checked what is new."""
    table = Tolerant(tmp_path)
    plain = table.pipeline()
    plan = plain.plan()
    state = state_of(plan.facts(), 0, 3)
    table.check(plain)
    table.put("ds=1/9.parquet", list(range(2000, 2090)))
    rest = table.excluding().rebase(state)
    assert rest.source.snapshot.id == plan.source.snapshot.id
