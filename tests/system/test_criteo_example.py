"""Does the Criteo example learn what its labels hold, and serve the scores of its evaluation?"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from example_programs import example_programs
from sklearn.metrics import roc_auc_score

from feedline import Pipeline

pytestmark = pytest.mark.nightly

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "criteo"
ROWS, DAYS, BATCH = 14_000, 7, 256
SERVE_S = 60


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, ModuleType]]:
    with example_programs(EXAMPLE) as programs:
        yield programs


@pytest.fixture(scope="module")
def folder(programs: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example over a small table, fitted and trained."""
    folder = tmp_path_factory.mktemp("criteo")
    options = ["--rows", str(ROWS), "--days", str(DAYS), "--group-rows", "1024"]
    programs["generate"].main([str(folder / "warehouse" / "criteo"), *options])
    text = (EXAMPLE / "pipeline.yaml").read_text().replace("../../warehouse", "warehouse")
    assert "size: 4096" in text
    assert "buckets: 100000" in text
    (folder / "pipeline.yaml").write_text(text.replace("size: 4096", f"size: {BATCH}").replace("100000", "5000"))
    Pipeline.from_yaml(folder / "pipeline.yaml").fit()
    arguments = ["--pipeline", folder / "pipeline.yaml", "--model", folder / "model.pt", "--json", folder / "out.json"]
    programs["train"].main([*map(str, arguments), "--learning-rate", "0.01"])
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> pa.Table:
    return ds.dataset(folder / "warehouse" / "criteo", partitioning="hive").to_table()


def test_the_table_has_the_shape_of_criteo(programs: dict[str, ModuleType], table: pa.Table, tmp_path: Path):
    generate = programs["generate"]
    days = duckdb.from_arrow(table).query("t", "select day, count(*) from t group by day order by day").fetchall()
    assert days == [(day, ROWS // DAYS) for day in range(DAYS)]
    for number, (_, _, null_share) in enumerate(generate.INTEGERS, 1):
        column = table[f"I{number}"]
        assert (column.type, column.null_count / ROWS) == (pa.int64(), pytest.approx(null_share, abs=0.02))
        values = column.drop_null().to_numpy().astype(float)
        assert values.mean() > np.median(values), "no heavy tail"
    for number, (cardinality, null_share) in enumerate(generate.CATEGORIES, 1):
        column = table[f"C{number}"]
        assert column.null_count / ROWS == pytest.approx(null_share, abs=0.02)
        assert pc.all(pc.match_substring_regex(column, "^[0-9a-f]{8}$")).as_py()
        assert pc.count_distinct(column).as_py() <= cardinality
    assert pc.min(table["I2"]).as_py() < 0
    generate.main([str(tmp_path / "again"), "--rows", str(ROWS), "--days", str(DAYS), "--group-rows", "1024"])
    assert ds.dataset(tmp_path / "again", partitioning="hive").to_table().equals(table)


def test_the_model_learns_the_held_out_day(folder: Path):
    results = json.loads((folder / "out.json").read_text())
    assert results["held_out_rows"] == ROWS // DAYS
    assert results["auc"] > 0.65


def test_auc_is_that_of_scikit_learn(programs: dict[str, ModuleType]):
    draw = np.random.default_rng(0)
    score, label = draw.integers(0, 9, 200), draw.integers(0, 2, 200)
    assert programs["train"].auc(score, label) == pytest.approx(roc_auc_score(label, score))


def test_served_scores_are_those_of_the_evaluation(programs: dict[str, ModuleType], folder: Path, table: pa.Table):
    """The rows of an evaluation's batch in one request have its scores, bit for bit; alone, to float32's precision."""
    train, pipeline = programs["train"], folder / "pipeline.yaml"
    model = train.DeepCross.load(Pipeline.from_yaml(pipeline).schema, folder / "model.pt")
    batches = Pipeline.from_yaml(pipeline, {**train.EVALUATION, "source.where": "day == 6"}).batches()
    expected = np.concatenate([score for score, _ in train.scores(model, batches)])
    rows = table.filter(pc.equal(table["day"], 6)).drop_columns(["day", "label"]).to_pylist()
    sparse = [{name: value for name, value in row.items() if value is not None} for row in rows[:3]]
    refused = [{**rows[0], "I1": "many"}]
    lines = [rows[:BATCH], rows[BATCH : 2 * BATCH], *rows[:3], sparse, [], 7, refused, rows[0]]
    answers = served(folder, [*map(json.dumps, lines), "{not json", "[" * 5000])

    assert [answer["scores"] for answer in answers[:2]] == [
        expected[:BATCH].tolist(),
        expected[BATCH : 2 * BATCH].tolist(),
    ]
    alone = [score for answer in answers[2:6] for score in answer["scores"]]
    np.testing.assert_allclose(alone, [*expected[:3], *expected[:3]], rtol=1e-5)
    assert ["error" in answer for answer in answers[6:]] == [True, True, True, False, True, True]
    assert "I1" in answers[8]["error"]
    assert len(np.unique(expected)) > len(expected) // 2, "the scores do not differ"


def served(folder: Path, lines: list[str]) -> list[dict]:
    """The answers of the serving process to these lines."""
    command = [sys.executable, EXAMPLE / "serve.py", "--pipeline", folder / "pipeline.yaml"]
    done = subprocess.run(
        [*map(str, command), "--model", str(folder / "model.pt")],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=SERVE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
