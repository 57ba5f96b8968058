"""Is the example true to its data, blind to the future, better than a rule, and the same after a crash?"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import weakref
from collections import defaultdict
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from types import ModuleType
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config import load_spec

pytestmark = pytest.mark.nightly

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "flights"
NEW_YORK = ZoneInfo("America/New_York")
AFTERWARDS = {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"}
RUN_S, STOP_S = 100, 15


@cache
def load(name: str) -> ModuleType:
    """One of the example's files as a module; they are programs, not part of the package."""
    spec = importlib.util.spec_from_file_location(f"flights_{name}", EXAMPLE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table as `prepare.py` writes it."""
    target = tmp_path_factory.mktemp("flights") / "warehouse" / "flights"
    load("prepare").main([str(target)])
    return target


@pytest.fixture(scope="module")
def table(directory: Path) -> pa.Table:
    """The table as pyarrow reads it."""
    return ds.dataset(directory, partitioning="hive").to_table().replace_schema_metadata(None)


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    """The package's own file, in its own order."""
    return pd.read_csv(load("prepare").flights_csv())


def test_one_file_a_day(directory: Path):
    files = [str(path.relative_to(directory).parent) for path in directory.rglob("*.parquet")]
    days = pd.date_range("2013-01-01", "2013-12-31")
    assert sorted(files) == sorted(f"month={day.month}/day={day.day}" for day in days)
    assert [path.name for path in directory.parent.iterdir()] == ["flights"]


def test_the_table_holds_the_flights(table: pa.Table, flights: pd.DataFrame):
    assert (table.num_rows, table["arr_delay"].null_count, table["tailnum"].null_count) == (336_776, 9_430, 2_512)
    columns = (
        "sched_arr_time, carrier, flight, tailnum, origin, dest, distance, dep_time, dep_delay, arr_time, arr_delay, "
        "air_time, month, day"
    )
    clock = "make_timestamp(2013, month, day, hour, minute, 0)"
    source = duckdb.from_df(flights.astype({"tailnum": "object"})).project(f"{columns}, {clock} AS sched_dep")
    written = duckdb.from_arrow(table.drop_columns(["history"])).project(f"{columns}, sched_dep")
    assert source.except_(written).fetchall() == written.except_(source).fetchall() == []


def test_prepare_leaves_a_table_that_is_there(directory: Path, capsys: pytest.CaptureFixture):
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    load("prepare").main([str(directory)])
    assert "nothing to do" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def known_destinations(flights: pd.DataFrame, sample: np.ndarray) -> list[list[str]]:
    """The slow way: for each flight of the sample look at all flights of its aircraft, by the clock on the wall."""
    of_aircraft = defaultdict(list)
    due, left = {}, {}
    seen = flights[flights["tailnum"].isin(flights["tailnum"][sample].dropna())]
    for place, row in zip(seen.index, seen.itertuples(), strict=True):
        local = datetime(row.year, row.month, row.day, row.hour, row.minute, tzinfo=NEW_YORK)
        due[place] = local.astimezone(ZoneInfo("UTC"))
        left[place] = None if np.isnan(row.dep_time) else due[place] + timedelta(minutes=row.dep_delay)
        of_aircraft[row.tailnum].append(place)
    known = []
    for place in sample:
        aircraft = flights["tailnum"][place]
        before = [
            (max(due[other], left[other]), due[other], other)
            for other in (of_aircraft[aircraft] if isinstance(aircraft, str) else [])
            if left[other] is not None and left[other] < due[place] and due[other] < due[place]
        ]
        known.append([flights["dest"][other] for *_, other in sorted(before, reverse=True)][:20])
    return known


def test_histories_do_not_look_ahead(table: pa.Table, flights: pd.DataFrame):
    late = flights.index[flights["dep_delay"] > 240]
    early = flights.index[flights["dep_delay"] < -20]
    unknown = flights.index[flights["tailnum"].isna()]
    cancelled = flights.index[flights["dep_time"].isna() & flights["tailnum"].notna()]
    rng = np.random.default_rng(0)
    near = [np.clip(late + step, 0, len(flights) - 1) for step in range(1, 100, 9)]  # flights due soon after a late one
    groups = [flights.index, late, early, unknown, cancelled, *near]
    sample = np.unique(np.concatenate([rng.choice(group, size=min(60, len(group))) for group in groups]))

    key = ["month", "day", "sched_dep", "carrier", "flight", "tailnum", "origin", "dest"]
    written = table.select([*key, "history"]).to_pandas()
    clock = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    expected = flights.assign(sched_dep=clock.astype(written["sched_dep"].dtype)).loc[sample, key]
    expected["known"] = known_destinations(flights, sample)
    both = expected.merge(written, on=key, how="left", validate="one_to_one")

    assert [list(ids) for ids in both["history"]] == [[int(code, 36) for code in known] for known in both["known"]]
    assert max(len(known) for known in both["known"]) == 20
    lengths = pc.list_value_length(table["history"]).to_numpy()
    assert not lengths[table["tailnum"].is_null().to_numpy()].any()
    assert table["history"].null_count == 0


def test_no_feature_is_known_only_afterwards():
    spec = load_spec(EXAMPLE / "pipeline.yaml")
    texts = {f.name: f.expr or f.column for f in spec.features if f.group != "label"}
    leaking = {name for name, text in texts.items() if AFTERWARDS & set(re.findall(r"\w+", text))}
    assert not leaking
    assert {f.group for f in spec.features} == {"dense", "categorical", "sparse", "label"}


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2))
def test_auc_counts_pairs(rows: list[tuple[int, bool]]):
    score, label = np.array([row[0] for row in rows], float), np.array([row[1] for row in rows])
    if label.all() or not label.any():
        return
    pairs = [np.sign(a - b) / 2 + 0.5 for a in score[label] for b in score[~label]]
    assert load("train").auc(score, label) == pytest.approx(np.mean(pairs))


def test_features_are_what_their_names_say(directory: Path, table: pa.Table, tmp_path: Path):
    from feedline import Pipeline

    day = "month == 3 and day == 10 and arr_delay is not None"
    overrides = {
        "source.table": str(directory),
        "source.where": day,
        "work_dir": str(tmp_path),
        "batch": {"size": 4096, "tail": "partial"},
        "shuffle": "off",
    }
    batches = list(Pipeline.from_yaml(EXAMPLE / "pipeline.yaml", set=overrides).batches(epoch=0, rank=0, world_size=1))
    on_day = pc.and_(pc.equal(table["month"], 3), pc.equal(table["day"], 10))
    rows = table.filter(pc.and_(on_day, pc.is_valid(table["arr_delay"]))).to_pandas()
    (batch,) = batches
    assert batch.rows == len(rows)
    clock = rows["sched_dep"]
    expected = {
        "departure": (clock.dt.hour + clock.dt.minute / 60) / 24,
        "arrival": rows["sched_arr_time"] / 2400,
        "weekday": clock.dt.day_of_week / 6,
        "distance": (np.log1p(rows["distance"]) - 6.7) / 0.75,
        "hour": clock.dt.hour,
        "late": rows["arr_delay"] > 15,
    }
    for name, values in expected.items():
        np.testing.assert_allclose(batch[name].numpy(), np.asarray(values, np.float64), rtol=1e-5, atol=1e-6)
    assert batch["weekday"].unique().tolist() == [1.0]  # the tenth of March 2013 was a Sunday
    assert batch["history"].lengths.tolist() == [min(len(ids), 10) for ids in rows["history"]]

    model = load("train").LateModel(load_spec(EXAMPLE / "pipeline.yaml"))
    kept = weakref.ref(batch)
    gc.disable()
    try:
        model(batch).sum().backward()
        del batch, batches
        assert kept() is None, "a training step left its batch in a reference cycle: the slot is not free"
    finally:
        gc.enable()


def command(directory: Path, folder: Path, *options: str) -> list[str]:
    """train.py over the table of this test."""
    places = [f"--set=source.table={directory}", f"--set=work_dir={folder / 'work'}"]
    return [sys.executable, "-u", str(EXAMPLE / "train.py"), *places, *options]


def finish(arguments: list[str]) -> str:
    run = subprocess.run(arguments, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_model_beats_the_best_rule(directory: Path, table: pa.Table, tmp_path: Path):
    out = finish(command(directory, tmp_path, f"--json={tmp_path / 'results.json'}"))
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["auc"] > results["rule_auc"] + 0.01
    assert results["held_out_rows"] == 53_991
    assert results["steps"] == 2 * (273_355 // 2_048)
    assert f"AUC {results['auc']:.4f}" in out
    assert "rows/s" in out
    assert 0 <= results["wait_fraction"] <= 1

    arrived = table.filter(pc.is_valid(table["arr_delay"])).select(["month", "sched_dep", "arr_delay"]).to_pandas()
    arrived["late"], arrived["hour"] = arrived["arr_delay"] > 15, arrived["sched_dep"].dt.hour
    seen, unseen = arrived[arrived["month"] <= 10], arrived[arrived["month"] > 10]
    by_hour = seen.groupby("hour")["late"].agg(["sum", "count"])
    rate = (by_hour["sum"] + 20 * seen["late"].mean()) / (by_hour["count"] + 20)
    ranks = unseen["hour"].map(rate).rank()
    late, punctual = int(unseen["late"].sum()), int((~unseen["late"]).sum())
    by_hand = (ranks[unseen["late"]].sum() - late * (late + 1) / 2) / (late * punctual)
    assert results["rule"] == "hour"
    assert results["rule_auc"] == pytest.approx(by_hand)


SHORT = (
    "--epochs=2",
    "--checkpoint-every=10",
    "--set=batch.size=256",
    "--set=source.where=arr_delay is not None and month == 1 and day <= 12",
    "--held-out=arr_delay is not None and month == 2 and day == 1",
)


def kill_at(arguments: list[str], step: int) -> str:
    """Run until the checkpoint of that step is written, kill the trainer there, and see its feeder go; what it said."""
    said = ""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as trainer:
        for line in trainer.stdout:
            said += line
            if line == f"checkpoint at step {step}\n":
                break
        beside = psutil.Process(trainer.pid).children(recursive=True)
        commands = [" ".join(process.cmdline()) for process in beside]
        trainer.kill()
        assert trainer.wait(timeout=STOP_S) == -signal.SIGKILL
    assert any(" feedline feed " in words for words in commands), f"the trainer had no feeder: {commands}"
    assert not psutil.wait_procs(beside, timeout=STOP_S)[1], "the feeder outlived its trainer"
    return said


def resumed_at(said: str, first: int, end: int) -> None:
    """Whether it resumed at one of these steps, or began where the first is 0."""
    found = re.search(r"resumed at step (\d+)", said)
    assert first <= int(found[1]) < end if found else first == 0, said


def left_in(folder: Path) -> list[str]:
    """What Feedline left in a folder for temporary files: nothing but its own, empty folder for sockets."""
    sockets = folder / f"feedline-{os.getuid()}"
    return [str(path) for path in (*folder.glob("feedline-*"), *sockets.glob("*")) if path != sockets]


@pytest.mark.parametrize("kills", [(60,), (20, 60)])
def test_killed_and_resumed_it_ends_the_same(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, ...]
):
    """Two epochs of 40 steps: once undisturbed, once killed on the way."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    finish(command(directory, tmp_path, *SHORT, f"--json={tmp_path / 'undisturbed.json'}"))

    arguments = [*command(directory, tmp_path, *SHORT), f"--checkpoint={tmp_path / 'flights.pt'}"]
    begun = 0
    for step in kills:
        resumed_at(kill_at(arguments, step), begun, step)
        assert left_in(scratch) == []
        arguments, begun = [*arguments, "--resume"] if not begun else arguments, step
    resumed_at(finish([*arguments, f"--json={tmp_path / 'killed.json'}"]), begun, 80)
    assert left_in(scratch) == []

    undisturbed, killed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("undisturbed", "killed"))
    same = ("loss", "steps", "auc", "held_out_rows", "parameters")
    assert {key: killed[key] for key in same} == {key: undisturbed[key] for key in same}
