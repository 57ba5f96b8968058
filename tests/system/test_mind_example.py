"""Does the news example learn what readers prefer, and rank by the scores of its evaluation?"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import torch
from example_programs import example_programs
from sklearn.metrics import roc_auc_score

from feedline import Pipeline

pytestmark = pytest.mark.nightly

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mind"
IMPRESSIONS, DAYS, BATCH = 1800, 6, 256
START_S, STOP_S = 60, 15
HELD_OUT = "2026-01-06"


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, ModuleType]]:
    with example_programs(EXAMPLE) as programs:
        yield programs


@pytest.fixture(scope="module")
def folder(programs: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example over small tables, fitted and trained."""
    folder = tmp_path_factory.mktemp("mind")
    options = ["--impressions", str(IMPRESSIONS), "--days", str(DAYS), "--group-rows", "1024"]
    programs["generate"].main([str(folder / "warehouse" / "mind"), *options])
    text = (EXAMPLE / "pipeline.yaml").read_text().replace("../../warehouse", "warehouse")
    assert "size: 1024" in text
    (folder / "pipeline.yaml").write_text(text.replace("size: 1024", f"size: {BATCH}"))
    Pipeline.from_yaml(folder / "pipeline.yaml").fit()
    arguments = ["--pipeline", folder / "pipeline.yaml", "--model", folder / "model.pt", "--json", folder / "out.json"]
    programs["train"].main([*map(str, arguments), "--learning-rate", "0.02", "--epochs", "1"])
    return folder


@pytest.fixture(scope="module")
def table(folder: Path) -> pa.Table:
    return ds.dataset(folder / "warehouse" / "mind" / "behaviors", partitioning="hive").to_table()


def test_the_tables_have_the_shape_of_mind(folder: Path, table: pa.Table, programs: dict[str, ModuleType]):
    counts = "count(*) n, count(distinct user_id) u, count(distinct history) h"
    query = f"select min(n), max(n), max(u), max(h), count(*) from (select {counts} from t group by impression_id)"
    assert duckdb.from_arrow(table).query("t", query).fetchall() == [
        (*programs["generate"].CANDIDATES, 1, 1, IMPRESSIONS)
    ]
    runs = np.count_nonzero(np.diff(table["impression_id"].to_numpy())) + 1
    assert runs == IMPRESSIONS, "rows of an impression are no neighbours"
    assert 0.1 < pc.mean(table["clicked"]).as_py() < 0.3
    news = pq.read_table(folder / "warehouse" / "mind" / "news.parquet")
    known = set(news["news_id"].to_pylist())
    assert len(known) == news.num_rows
    assert known.issuperset(pc.unique(table["news_id"]).to_pylist())
    assert known.issuperset(pc.unique(pc.list_flatten(table["history"])).to_pylist())


def test_the_history_says_which_category_is_clicked(folder: Path, table: pa.Table):
    """What the model is to learn: candidates of a category that the history holds are clicked more often."""
    news = pq.read_table(folder / "warehouse" / "mind" / "news.parquet")
    category = dict(zip(news["news_id"].to_pylist(), news["category"].to_pylist(), strict=True))
    rows = table.select(["news_id", "history", "clicked"]).to_pylist()
    alike = [np.mean([category[each] == category[row["news_id"]] for each in row["history"] or ["N0"]]) for row in rows]
    assert roc_auc_score([row["clicked"] for row in rows], alike) > 0.6


def test_the_model_learns_the_held_out_day(folder: Path, table: pa.Table):
    results = json.loads((folder / "out.json").read_text())
    assert results["held_out_rows"] == pc.sum(pc.equal(table["ds"], HELD_OUT)).as_py()
    assert min(results["auc"], results["impression_auc"]) > 0.58


def test_auc_is_that_of_scikit_learn(programs: dict[str, ModuleType]):
    draw = np.random.default_rng(0)
    score, label, group = draw.integers(0, 9, 400), draw.integers(0, 2, 400), draw.integers(0, 90, 400)
    auc = programs["train"].auc
    assert auc(score, label) == pytest.approx(roc_auc_score(label, score))
    groups = [group == each for each in np.unique(group)]
    both = [rows for rows in groups if 0 < label[rows].sum() < rows.sum()]
    assert 0 < len(both) < len(groups)
    expected = np.mean([roc_auc_score(label[rows], score[rows]) for rows in both])
    assert auc(score, label, group) == pytest.approx(expected)


def test_a_deduplicated_batch_scores_as_a_plain_one(programs: dict[str, ModuleType], folder: Path):
    pipeline, train = folder / "pipeline.yaml", programs["train"]
    batch = next(Pipeline.from_yaml(pipeline).batches())
    model = train.NewsModel.load(batch.schema, folder / "model.pt")
    assert batch.groups["reader"].unique_rows < batch.rows // 5
    with torch.no_grad():
        torch.testing.assert_close(model(batch), model(batch.expanded()), rtol=1e-4, atol=1e-5)


def test_served_scores_are_those_of_the_evaluation(programs: dict[str, ModuleType], folder: Path, table: pa.Table):
    """Each impression of the held-out day is ranked by the scores that its rows have in the evaluation."""
    train, pipeline = programs["train"], folder / "pipeline.yaml"
    model = train.NewsModel.load(Pipeline.from_yaml(pipeline).schema, folder / "model.pt")
    held_out = Pipeline.from_yaml(pipeline, {**train.EVALUATION, "source.where": f'ds == "{HELD_OUT}"'})
    found = zip(*train.scores(model, held_out.batches()), strict=True)
    expected, _, impressions = (np.concatenate(each) for each in found)
    rows = table.filter(pc.equal(table["ds"], HELD_OUT)).to_pandas()
    np.testing.assert_array_equal(rows["impression_id"], impressions)
    with server(folder) as address:
        for impression in np.unique(impressions)[:12]:
            shown = rows[rows["impression_id"] == impression]
            score = expected[impressions == impression]
            best = np.argsort(-score, kind="stable")
            request = {"user_id": shown["user_id"].iloc[0], "history": list(shown["history"].iloc[0])}
            status, answer = post(address, {**request, "candidates": shown["news_id"].tolist()})
            assert status == 200
            np.testing.assert_allclose(answer["scores"], score[best], rtol=1e-4)
            assert answer["ranked"] == shown["news_id"].iloc[best].tolist()
        status, answer = post(address, {"user_id": "new", "history": [], "candidates": ["unheard of", "N0"]})
        assert (status, sorted(answer["ranked"])) == (200, ["N0", "unheard of"])
        assert post(address, {**request, "candidates": []})[0] == 400
        assert post(address, {**request, "candidates": [7]})[0] == 400
        assert post(address, {**request, "history": "N1"})[0] == 400
        assert post(address, {**request, "candidates": ["N0"]}, "/other")[0] == 404
    assert len(np.unique(expected)) > len(expected) // 2, "the scores do not differ"


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """The serving process; yields its address."""
    command = [sys.executable, EXAMPLE / "serve.py", "--pipeline", folder / "pipeline.yaml", "--port", "0"]
    process = subprocess.Popen(
        [*map(str, command), "--model", str(folder / "model.pt")], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process.stdout.readline().strip().removesuffix("/rank")
        finally:
            process.terminate()
            process.wait(STOP_S)


def post(address: str, request: dict[str, Any], path: str = "/rank") -> tuple[int, dict[str, Any]]:
    body = json.dumps(request).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address + path, body), timeout=START_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)
