"""`feedline head` and `feedline schema PIPELINE`: rows beside their features, and the tensors of a batch."""

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from feedline.cli import app
from feedline.commands.head import json_facts, preview
from feedline.config import load_spec
from feedline.errors import FeedlineError
from feedline.pipeline import Pipeline

PIPELINE = """
version: 1
name: head
source: {table: table, where: day >= 2}
features:
  dense: {price: [{fill_null: 0}, standardize], "x_{1..2}": [], half: {expr: price / 2, ops: [{fill_null: 0}]}}
  categorical: {city: [vocabulary], word: {column: city, ops: [{hash_bucket: 10}]}}
  sparse:
    seen: {column: tags, ops: [{vocabulary: {min_count: 2}}, {first_x: 2}]}
    both: {op: {cartesian: 50}, inputs: [tags, {column: tags, ops: [{first_x: 1}]}]}
  label: {price_again: {column: price}}
batch: {size: 2}
on_nonfinite: zero
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    for day, cities, prices, tags in (
        (1, ["a", "a", "b"], [9.0, 9.0, 9.0], [[1], [2], [3]]),
        (2, ["b", "c"], [1.0, None], [[7, 8, 7], []]),
        (3, ["b", None], [3.0, 5.0], [None, [7]]),
    ):
        folder = tmp_path / "table" / f"day={day}"
        folder.mkdir(parents=True)
        count = len(cities)
        table = {"city": cities, "price": prices, "tags": pa.array(tags, pa.list_(pa.int64()))}
        table |= {"x_1": [math.nan] * count, "x_2": [0.5] * count}
        pq.write_table(pa.table(table), folder / "part.parquet")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path / "pipeline.yaml"


def by_name(facts: dict) -> dict:
    return {one["name"]: one for one in facts["features"]}


def test_rows_come_in_table_order_with_their_features(path: Path):
    spec = load_spec(path)
    Pipeline(spec).fit()
    facts = preview(spec, 3)
    assert facts["rows"] == 3
    assert [Path(uri).parent.name for uri in facts["files"]] == ["day=2", "day=3"], "day 1 is filtered out"
    found = by_name(facts)
    assert found["price"]["source"] == [1.0, None, 3.0]
    mean = 3.0  # of 1, 3 and 5: nulls count as 0, and are filled after day 1 is left out
    values = [1.0, 0.0, 3.0, 5.0]
    mean = sum(values) / 4
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 4)
    assert found["price"]["value"] == pytest.approx([(value - mean) / deviation for value in values[:3]], rel=1e-6)
    assert found["x_1"]["value"] == [0.0] * 3, "as on_nonfinite says"
    assert all(math.isnan(value) for value in found["x_1"]["source"])
    assert found["half"]["source"] == [0.5, None, 1.5]
    assert found["half"]["value"] == [0.5, 0.0, 1.5]
    assert found["city"]["source"] == ["b", "c", "b"]
    assert found["city"]["decoded"] == ["b", "c", "b"]
    assert found["city"]["value"] == [3, 4, 3], "b is the most frequent"
    assert found["word"]["decoded"] is None
    assert found["seen"]["source"] == [[7, 8, 7], [], None]
    assert found["seen"]["decoded"] == [[7, "<unknown>"], [], None]
    assert found["both"]["source"][0] == [[7, 8, 7], [7, 8, 7]]
    assert found["price_again"]["value"] == [1.0, None, 3.0], "a null that a batch would refuse is shown"


def test_features_that_are_not_fitted_are_named_beside_the_others(path: Path):
    found = by_name(preview(load_spec(path), 10))
    assert found["city"]["value"] is None
    assert len(found["word"]["value"]) == 4, "as many rows as there are"


def test_a_row_that_cannot_be_computed_shows_its_error(path: Path):
    spec = load_spec(
        path, {"features.dense": {"price": [{"cast": "int64"}, {"cast": "float32"}], "x_1": [{"cast": "int8"}]}}
    )
    found = by_name(json_facts(preview(spec, 1)))
    assert found["price"]["value"] == [1.0]
    assert "x_1" in found["x_1"]["value"][0]["error"]


def test_the_command(path: Path):
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["head", str(path), "-n", "2"])
    assert result.exit_code == 0, result.output
    assert "not fitted" in result.output
    assert "[7, 8, 7]" in result.output
    result = CliRunner().invoke(app, ["head", str(path), "--rows", "2", "--json"])
    document = json.loads(result.output)
    assert document["rows"] == 2
    assert by_name(document)["x_1"]["source"] == ["nan", "nan"]
    with pytest.raises(FeedlineError, match="no row is kept: got none of 7 rows"):
        preview(load_spec(path, {"source.where": "price > 100"}), 1)


def test_the_tensors_of_a_batch(path: Path):
    missing = CliRunner().invoke(app, ["schema", str(path)])
    assert isinstance(missing.exception, FeedlineError)
    assert "not fitted" in str(missing.exception)
    Pipeline(load_spec(path)).fit()
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["schema", str(path)])
    assert "batch.dense: float32 [2, 4]" in result.output
    document = json.loads(CliRunner().invoke(app, ["schema", str(path), "--json"]).output)
    filled = {
        "categorical.word.ops": [{"hash_bucket": 9}, {"fill_null": 9}],
        "label.price_again.ops": [{"fill_null": 0}],
    }
    whole = load_spec(path, {f"features.{place}": ops for place, ops in filled.items()})
    [batch, *_] = Pipeline(whole).batches()
    shapes = {one["tensor"]: (one["dtype"], one["shape"]) for one in document["tensors"]}
    for name, (dtype, shape) in shapes.items():
        tensor = getattr(batch, name)
        assert (str(tensor.dtype), list(tensor.shape)) == (f"torch.{dtype}", shape)
    found = by_name(document)
    for name in ("price", "x_1", "city", "price_again"):
        tensor, place = re.fullmatch(r"(\w+)\[:, (\d+)\]", found[name]["tensor"]).groups()
        cut = getattr(batch, tensor)[:, int(place)]
        assert cut.tolist() == batch[name].tolist() or all(math.isnan(value) for value in cut.tolist())
    assert found["seen"]["tensor"] == 'sparse["seen"]'
    assert found["city"]["num_embeddings"] == 2 + 1 + 2, "padding, null, unknown, and what days 2 and 3 hold"
    assert found["both"]["num_embeddings"] == 50


def test_the_json_schema_needs_no_pipeline():
    assert "properties" in json.loads(CliRunner().invoke(app, ["schema"]).output)
    refused = CliRunner().invoke(app, ["schema", "--set", "batch.size=3"])
    assert "got no pipeline" in str(refused.exception)


def test_times_beyond_python_s_calendar_are_shown(tmp_path: Path):
    times = pa.array([253_402_300_799_000_000, 10**18], pa.timestamp("us", "Asia/Tokyo"))
    days = pa.array([2**31 - 1, -(2**31)], pa.int32()).cast(pa.date32())
    table = {"until": times, "days": days, "all": pa.array([[2**60], []], pa.list_(pa.timestamp("us")))}
    pq.write_table(pa.table(table), tmp_path / "table.parquet")
    (tmp_path / "p.yaml").write_text(
        "version: 1\nname: far\nsource: {table: table.parquet}\nbatch: {size: 2}\n"
        "features: {categorical: {year: {expr: until.dt.year()}}, extra: [until, days, all]}\n"
    )
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["head", str(tmp_path / "p.yaml"), "--json"])
    assert result.exit_code == 0, result.output
    found = by_name(json.loads(result.output))
    assert found["year"]["value"] == [10_000, 33_658]
    assert found["until"]["source"] == ["9999-12-31T23:59:59+00:00", "+33658-09-27T01:46:40+00:00"]
    assert found["days"]["value"] == ["+5881580-07-11", "-5877641-06-23"]
    assert found["all"]["value"] == [["+38504-08-17T21:30:06.846976"], []]
