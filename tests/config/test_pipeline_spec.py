"""pipeline.yaml as a whole: defaults, errors with positions, overrides, canonical text. Parts have their own tests."""

import json

import pytest
from minimal_pipeline import MINIMAL

from feedline.config import PipelineSpec, load_spec, parse_spec
from feedline.config.overrides import parse_overrides
from feedline.config.sections import ShuffleSpec
from feedline.errors import SpecError

REFERENCE = """\
version: 1
name: clicks-ctr
work_dir: .feedline
source:
  table: s3://warehouse/clicks
  where: ds >= "2026-01-01" and country in ["US", "DE"] and dwell is not None
features:
  dense:
    price: [{fill_null: 0}, log1p, standardize]
    hour:  {expr: ts.dt.hour() / 23}
  categorical:
    item_id: [{hash_bucket: 1000000}]
  sparse:
    history: {column: item_history, ops: [{first_x: 50}, {vocabulary: {min_count: 5}}]}
  label:
    clicked: []
  extra: [request_id]
batch:   {size: 8192, tail: drop}
shuffle: {seed: 0, window_rows: 524288, rows: true}
lanes:   64
epochs:  1
cluster: {threads: auto}
memory:  4GiB
"""

# every key of the format on a line of its own
COMPLETE = """\
version: 1
name: small
work_dir: work
source:
  table: data
  where: price > 0
  split_rows: 100
features:
  dense:
    price:
      column: cost
      ops: [log1p]
  categorical:
    overlap:
      op: id_overlap_count
      inputs: [a, b]
  sparse:
    history: []
  label:
    clicked:
      expr: dwell > 3
  extra:
    request_id: []
batch:
  size: 8
  tail: pad
shuffle:
  seed: 3
  window_rows: 1000
  rows: true
  by: session_id
lanes: 4
epochs: 2
cluster:
  scheduler: tls://scheduler:8786
  tls:
    ca: ca.pem
    cert: cert.pem
    key: key.pem
  insecure: false
  wait_s: 5
  window: 7
  cpu: x86-64-v3
memory: 500 MB
allow_code: false
on_nonfinite: zero
on_expect: error
cache:
  dir: finished
  size: 10 GB
  free: 2 GiB
  mode: features
  shared: true
"""


def parse(text=MINIMAL, overrides=None, **options):
    return parse_spec(text, file="p.yaml", overrides=overrides or {}, **options)


def refused(text=MINIMAL, overrides=None):
    with pytest.raises(SpecError) as caught:
        parse(text, overrides)
    return str(caught.value).splitlines()


def test_the_reference_of_the_design():
    spec = parse(REFERENCE, base_dir="/jobs")
    assert (spec.version, spec.name, spec.work_dir, spec.lanes, spec.epochs) == (
        1,
        "clicks-ctr",
        "/jobs/.feedline",
        64,
        1,
    )
    assert spec.memory == 4 * 1024**3
    assert spec.source.table == "s3://warehouse/clicks"
    assert spec.source.where == 'ds >= "2026-01-01" and country in ["US", "DE"] and dwell is not None'
    assert [(f.group, f.name, f.column, f.expr) for f in spec.features] == [
        ("dense", "price", "price", None),
        ("dense", "hour", None, "ts.dt.hour() / 23"),
        ("categorical", "item_id", "item_id", None),
        ("sparse", "history", "item_history", None),
        ("label", "clicked", "clicked", None),
        ("extra", "request_id", "request_id", None),
    ]
    assert [(call.op, call.value) for call in spec.features[3].ops] == [
        ("first_x", {"": 50}),
        ("vocabulary", {"min_count": 5}),
    ]


def test_shuffle_off_is_a_word():
    assert parse(MINIMAL + "shuffle: off\n").shuffle is None
    assert parse(MINIMAL, {"shuffle": "off"}).shuffle is None
    assert parse(MINIMAL + "shuffle: {}\n").shuffle == ShuffleSpec()
    for wrong, got in (("on", "'on'"), ("false", "false"), ("", "nothing"), ("[]", "a list")):
        [message] = refused(MINIMAL + f"shuffle: {wrong}\n")
        assert f"shuffle: must be a mapping, or the word off: got {got}" in message


def test_null_is_the_default_where_the_default_is_none():
    text = COMPLETE.replace("where: price > 0", "where:").replace("lanes: 4", "lanes: null").replace("500 MB", "~")
    spec = parse(text.replace("by: session_id", "by: null"))
    assert (spec.source.where, spec.lanes, spec.memory, spec.shuffle.by) == (None, None, None, None)


UNKNOWN = (
    "unknown key: got 'tial', expected one of 'size', 'tail', 'balance', 'max_tokens', 'buckets', 'length', 'longer'. "
    "Did you mean 'tail'?"
)


def test_overrides_are_validated_like_the_file():
    assert parse(REFERENCE, {"batch.tail": "pad", "shuffle": "off"}).batch.tail == "pad"
    assert refused(REFERENCE, {"batch.tial": "pad"}) == [f'set["batch.tial"]: {UNKNOWN}']
    assert refused(REFERENCE, parse_overrides(["batch.tial=pad"])) == [f"--set batch.tial: {UNKNOWN}"]
    assert refused(REFERENCE, parse_overrides(["shuffle={seed: -1}"])) == [
        "--set shuffle: shuffle.seed: must be at least 0: got -1"
    ]
    assert refused(REFERENCE, parse_overrides(["cluster.scheduler=tcp://127.0.0.1:1"]))[0].startswith(
        "p.yaml:22:20: cluster.threads: contradicts `scheduler`"
    )


def test_commands_repeat_the_overrides(tmp_path):
    file = tmp_path / "a b.yaml"
    file.write_text(REFERENCE)
    assert load_spec(file).command("fit") == f"feedline fit '{file}'"
    spec = load_spec(file, parse_overrides(["source.table=/a b", "batch.tail=pad", "source.table=/c"]))
    assert spec.command("fit") == f"feedline fit '{file}' --set batch.tail=pad --set source.table=/c"
    pipeline = {"version": 1, "name": "a", "source": {"table": "t"}, "features": {"extra": ["a"]}, "batch": {"size": 1}}
    assert load_spec(pipeline, {"lanes": 2}).command("fit") == "Pipeline.from_dict(…).fit()"


def test_an_override_supplies_a_missing_key():
    text = MINIMAL.replace("source: {table: data}\n", "").replace("size: 8", "size: wrong")
    spec = parse(text, {"source.table": "/t", "batch.size": 4, 'features.dense."a.b"': ["log1p"]})
    assert (spec.source.table, spec.batch.size) == ("/t", 4)
    assert [feature.name for feature in spec.features] == ["price", "a.b"]
    spec = parse(REFERENCE, {"features.dense.price": {"column": "cost"}, "features.dense.late": []})
    assert [feature.name for feature in spec.features][:3] == ["price", "hour", "late"]
    assert spec.features[0].column == "cost"


def test_a_wrong_value_of_a_variable_names_it(monkeypatch):
    monkeypatch.setenv("SIZE", "big")
    assert refused(MINIMAL.replace("8", '"${SIZE}"')) == [
        "p.yaml:6:15: batch.size: must be an integer: got 'big' from ${SIZE}"
    ]
    monkeypatch.delenv("SIZE")
    [message] = refused(MINIMAL.replace("8", '"${SIZE}"'))
    assert message.startswith("p.yaml:6:15: batch.size: environment variable SIZE is not set")
    assert parse(MINIMAL.replace("8", '"${SIZE}"'), {"batch.size": 3}).batch.size == 3


def test_later_layers_report_the_same_positions():
    spec = parse(REFERENCE, parse_overrides(["features.sparse.history=[first_x]"]))
    price, *_, request_id = spec.features
    history = next(feature for feature in spec.features if feature.name == "history")
    assert str(spec.error(price.path, "x")) == "p.yaml:9:5: features.dense.price: x"
    assert str(spec.error(price.ops[1].path, "x")) == "p.yaml:9:29: features.dense.price[1]: x"
    assert (
        str(spec.error((*price.ops[0].path, "fill_null"), "x")) == "p.yaml:9:25: features.dense.price[0].fill_null: x"
    )
    assert str(spec.error(("features", "dense", "hour", "expr"), "x")) == "p.yaml:10:19: features.dense.hour.expr: x"
    assert str(spec.error(("source", "where"), "x")).startswith("p.yaml:6:10: source.where: x")
    assert str(spec.error(request_id.path, "x")) == "p.yaml:17:11: features.extra[0]: x"
    assert str(spec.error(history.ops[0].path, "x")) == "--set features.sparse.history: features.sparse.history[0]: x"
    assert isinstance(spec.error((), "x"), SpecError)


def test_paths_are_relative_to_the_file(tmp_path, monkeypatch):
    folder = tmp_path / "jobs"
    folder.mkdir()
    file = folder / "pipeline.yaml"
    text = MINIMAL.replace("{table: data}", "{table: [../a, /b, s3://c/d, ./e/*.parquet]}")
    file.write_text(text)
    expected = (f"{tmp_path}/a", "/b", "s3://c/d", f"{folder}/e/*.parquet")
    spec = load_spec(file)
    assert (spec.source.table, spec.work_dir, spec.base_dir, spec.file) == (
        expected,
        f"{folder}/work",
        str(folder),
        str(file),
    )
    monkeypatch.chdir(tmp_path)
    assert load_spec("jobs/pipeline.yaml") == spec
    assert load_spec("jobs/pipeline.yaml").file == "jobs/pipeline.yaml"
    monkeypatch.chdir(folder)
    assert load_spec("pipeline.yaml") == spec
    assert parse_spec(text) == spec, "paths in a string are relative to the current folder"
    assert parse_spec(text, base_dir=tmp_path).work_dir == f"{tmp_path}/work"
    monkeypatch.setenv("HOME", "/home/someone")
    assert load_spec("pipeline.yaml", {"work_dir": "~/w"}).work_dir == "/home/someone/w"


def test_files_that_cannot_be_read(tmp_path):
    missing = tmp_path / "pipeline.yaml"
    with pytest.raises(SpecError, match=r"pipeline.yaml: cannot be read: No such file or directory"):
        load_spec(missing)
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        load_spec(tmp_path)
    with pytest.raises(SpecError, match="cannot be read: embedded null byte"):
        load_spec("a\0b")
    missing.write_bytes(b"version: 1\nname: \xff\n")
    with pytest.raises(SpecError, match=r"pipeline.yaml:2:7: not UTF-8: got the byte 0xff"):
        load_spec(missing)
    missing.write_bytes(b"")
    with pytest.raises(SpecError, match=r"pipeline.yaml:1:1: must be a mapping: got an empty document"):
        load_spec(missing)
    missing.write_bytes(b"# " + b"x" * (5 << 20))
    with pytest.raises(SpecError, match="document too large"):
        load_spec(missing)


@pytest.mark.parametrize(
    "text", [REFERENCE, MINIMAL, COMPLETE, MINIMAL + "shuffle: off", MINIMAL.replace("data", "[a, s3://b]")]
)
def test_the_canonical_text_gives_an_equal_spec(text):
    spec = parse(text)
    back = PipelineSpec.from_canonical(spec.canonical())
    assert back == spec
    assert hash(back) == hash(spec)
    assert back.canonical() == spec.canonical()
    assert back.features == spec.features
    assert [call.value for f in back.features for call in f.ops] == [
        call.value for f in spec.features for call in f.ops
    ]
    assert back != parse(text, {"batch.size": 9})
    assert spec != spec.canonical()


def test_the_order_of_keys_changes_nothing_but_the_order_of_features():
    assert parse("".join(reversed(MINIMAL.splitlines(keepends=True)))).canonical() == parse().canonical()
    both = MINIMAL.replace("{price: []}", "{price: [], cost: []}")
    assert parse(both).canonical() != parse(both.replace("price: [], cost: []", "cost: [], price: []")).canonical()


def test_dollars_and_variables_are_not_read_twice():
    spec = parse(MINIMAL, {"source.where": 'name == "$${HOME}"'})
    assert spec.source.where == 'name == "${HOME}"'
    assert PipelineSpec.from_canonical(spec.canonical()) == spec


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "{}", '{"features": 3}', '{"features": [[1]]}', '{"features": [[[], 1, 2]]}']
)
def test_other_texts_than_canonical_ones_are_refused(text):
    with pytest.raises(SpecError, match=r"^job: not the canonical text of a pipeline"):
        PipelineSpec.from_canonical(text, file="job")
    with pytest.raises(SpecError, match=r"^job: version: must be 1: got 2"):
        PipelineSpec.from_canonical(parse().canonical().replace('"version":1', '"version":2'), file="job")


def test_a_spec_goes_to_another_process_with_its_positions(monkeypatch):
    monkeypatch.setenv("WHERE", "clicked == 1")
    monkeypatch.setenv("SIZE", "8")
    text = REFERENCE.replace("size: 8192", 'size: "${SIZE}"')
    spec = parse_spec(text, file="p.yaml", overrides={"lanes": 2, "source.where": "${WHERE}"}, base_dir="/jobs")
    for name in ("WHERE", "SIZE"):
        monkeypatch.delenv(name)
    other = PipelineSpec.unpacked(spec.packed())
    assert other == spec
    assert (other.batch.size, other.source.where, other.lanes) == (8, "clicked == 1", 2)
    assert (other.file, other.base_dir, other.work_dir) == ("p.yaml", "/jobs", spec.work_dir)
    assert other.command("fit") == spec.command("fit")
    for path in (("batch", "size"), ("source", "where"), ("lanes",), other.features[0].path, ()):
        assert str(other.error(path, "x")) == str(spec.error(path, "x"))


def test_a_mapping_goes_to_another_process(monkeypatch, tmp_path):
    pipeline = {"version": 1, "name": "p", "source": {"table": "t", "where": "x < ${MOST}"}, "batch": {"size": 2}}
    pipeline["features"] = {"dense": {"x": [{"fill_null": float("inf")}]}}
    monkeypatch.setenv("MOST", "7")
    monkeypatch.chdir(tmp_path)
    spec = load_spec(pipeline)
    monkeypatch.chdir("/")
    other = PipelineSpec.unpacked(spec.packed())
    assert other == spec
    assert (other.source.table, other.source.where) == (f"{tmp_path}/t", "x < 7")
    assert other.command("fit") == "Pipeline.from_dict(…).fit()"


def test_only_a_pipeline_with_an_exclusion_names_it():
    plain = parse(MINIMAL)
    assert "exclude" not in json.loads(plain.canonical())["source"]
    excluding = parse(MINIMAL.replace("{table: data}", "{table: data, exclude: bad.exclusion}"))
    assert PipelineSpec.from_canonical(excluding.canonical()) == excluding != plain
    assert excluding.source.exclude is not None
    assert excluding.source.exclude.endswith("/bad.exclusion")  # relative to pipeline.yaml
