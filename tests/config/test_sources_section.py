"""Several sources in pipeline.yaml: what is read, what is refused, and how a step's rows are divided among them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.config import PipelineSpec, load_spec
from feedline.config.overrides import override_options, parse_overrides
from feedline.config.pipeline_spec import parse_spec
from feedline.config.sources_section import divide_rows
from feedline.errors import SpecError

MIXED = """\
version: 1
name: mixed
work_dir: work
sources:
  - name: clicks
    table: clicks
    weight: 4
    where: day >= 3
  - name: views
    table: views
    weight: 1
    features:
      dense: {price: {column: cost}}
      sparse: {history: {expr: seen, ops: [{first_x: 3}]}}
features:
  dense: {price: [{fill_null: 0}, log1p], hour: []}
  sparse: {history: [{first_x: 5}]}
batch: {size: 10}
"""


BEFORE, AFTER = MIXED[: MIXED.index("sources:")], MIXED[MIXED.index("features:\n  dense: {price: [") :]


def parse(text: str = MIXED, **overrides: object) -> PipelineSpec:
    return parse_spec(text, file="p.yaml", overrides=overrides)


def refused(text: str, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(SpecError) as error:
        parse_spec(text, file="p.yaml", overrides=overrides or {})
    return str(error.value).splitlines()


def test_each_source_is_a_pipeline_of_its_own():
    whole = parse()
    clicks, views = whole.per_source()
    assert whole.is_mixed
    assert (clicks.source_name, views.source_name) == ("clicks", "views")
    assert (clicks.batch.size, views.batch.size) == (8, 2)
    assert clicks.source.where == "day >= 3"
    assert clicks.features == whole.features
    assert clicks.source.table.endswith("/clicks")
    assert not clicks.is_mixed
    assert clicks.whole is whole


def test_a_source_redefines_features_and_keeps_what_it_leaves_out():
    whole = parse()
    price, hour, history = whole.for_source("views").features
    assert price.column == "cost"
    assert [call.op for call in price.ops] == ["fill_null", "log1p"]
    assert price.known_as == ("column", "price")
    assert hour == whole.features[1]
    assert history.expr == "seen"
    assert [call.arguments for call in history.ops] == ['{"":3}']


@pytest.mark.parametrize("body", ["[]", "{column: cost, ops: []}"])
def test_a_source_may_have_no_ops_where_the_pipeline_has_some(body):
    spec = parse(MIXED.replace("{column: cost}", body))
    again = PipelineSpec.from_canonical(spec.canonical())
    assert [one.for_source("views").features[0].ops for one in (spec, again)] == [(), ()]


def test_the_canonical_text_is_read_back():
    for spec in (parse(), parse(mix={"stop": 7}), parse(**{"sources.1.sample": {"fraction": 0.5}})):
        again = PipelineSpec.from_canonical(spec.canonical())
        assert again == spec
        assert again.for_source("views").features == spec.for_source("views").features
        assert again.for_source("views").features[0].known_as == ("column", "price")


def test_a_pipeline_with_one_source_has_the_canonical_text_that_it_had():
    text = (
        MIXED[: MIXED.index("sources:")]
        + "source: {table: t}\n"
        + MIXED[MIXED.index("features:\n  dense: {price: [") :]
    )
    canonical = parse(text).canonical()
    assert '"source":{' in canonical
    assert "sources" not in canonical
    assert '"mix":' not in canonical


def test_overrides_reach_into_the_list_and_can_be_repeated():
    overrides = parse_overrides(["sources.0.where=day >= 4", "sources.1.weight=3"])
    spec = parse(**overrides)
    assert spec.sources[0].where == "day >= 4"
    assert [each.batch.size for each in spec.per_source()] == [6, 4]
    options = override_options(spec._document.overrides)
    assert options == " --set 'sources.0.where=day >= 4' --set sources.1.weight=3"
    with pytest.raises(SpecError, match=r"sources has no item '2': got 2, expected a number from 0 to 1"):
        parse(**{"sources.2.where": "x"})


def test_errors_of_a_source_point_into_the_list():
    views = parse().per_source()[1]
    assert str(views.error(("source", "table"), "x")) == "p.yaml:10:12: sources[1].table: x"
    assert str(views.error(views.features[0].path, "x")).startswith("p.yaml:13:15: sources[1].features.dense.price: x")


def test_what_reads_one_table_is_refused_with_the_names():
    with pytest.raises(SpecError, match=r"p.yaml:4:1: sources: this reads one table: got the sources clicks, views"):
        _ = parse().source
    with pytest.raises(SpecError, match="unknown source: got 'vies', expected one of 'clicks', 'views'"):
        parse().for_source("vies")


BROKEN: list[tuple[str, str, str]] = [
    ("sources:", "source: {table: t}\nsources:", "sources: a pipeline has one of source, sources: got both"),
    ("name: views", "name: clicks", "sources[1].name: is the name of sources[0], too: got 'clicks' twice"),
    ("weight: 4", "weight: 0", "sources[0].weight: must be greater than 0: got 0"),
    ("weight: 4", "", "sources[0].weight: each source has exactly one of weight, rows_per_batch: got neither"),
    ("weight: 4", "weight: 4\n    rows_per_batch: 8", "sources[0].weight: each source has exactly one of"),
    ("weight: 4", "rows_per_batch: 8", "sources[1].weight: is given beside rows_per_batch of other sources"),
    ("weight: 4", "weight: 40", "sources[1].weight: leaves no row of 'views' in a step: got 0 of 10 rows of a lane"),
    ("size: 10", "size: 10, tail: pad", "batch.tail: needs `tail: drop` with sources"),
    ("dense: {price: {column: cost}}", "dense: {prise: []}", "sources[1].features.dense.prise: unknown feature: got"),
    ("dense: {price: {column: cost}}", "label: {price: []}", "price: the pipeline has 'price' in another group: got"),
    ("{column: cost}", "{column: cost, expect: {null_rate: < 0.1}}", "expect: is checked over the rows of all sources"),
    ("batch: {size: 10}", "batch: {size: 10}\nmix: {stop: 0}", "mix.stop: must be first, all, or a number of steps"),
    ("    table: views\n", "", "sources[1].table: missing key"),
    (
        "batch: {size: 10}",
        "batch: {max_tokens: 64, buckets: [8, 32], length: history}",
        "batch.max_tokens: cannot be combined with sources",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_contradictions_are_refused_by_name(old, new, message):
    assert old in MIXED
    lines = refused(MIXED.replace(old, new, 1))
    assert any(message in line for line in lines), lines


def test_rows_per_batch_add_up_to_the_batch():
    text = MIXED.replace("weight: 4", "rows_per_batch: 7").replace("weight: 1", "rows_per_batch: 3")
    assert [each.batch.size for each in parse(text).per_source()] == [7, 3]
    lines = refused(text.replace("rows_per_batch: 3", "rows_per_batch: 4"))
    message = "the sources' rows_per_batch do not add up to batch.size: got 7 + 4 = 11, expected 10. Change one of them"
    assert lines == [f"p.yaml:4:1: sources: {message}"]


@pytest.mark.parametrize("value", ["[]", "{table: t}", "null"])
def test_sources_are_a_list(value):
    text = BEFORE + f"sources: {value}\n" + AFTER
    assert any("sources: must be a non-empty list of sources" in line for line in refused(text))


def test_a_pipeline_needs_a_source():
    text = BEFORE + AFTER
    assert any("source: missing key: expected a value. The table and its rows" in line for line in refused(text))
    with_mix = text + "source: {table: t}\nmix: {stop: all}\n"
    assert any("mix: has no meaning with one source" in line for line in refused(with_mix))


def test_a_mapping_reads_as_the_file_does():
    pipeline: dict[str, Any] = {
        "version": 1,
        "name": "a",
        "sources": [{"name": "x", "table": "t", "weight": 1}, {"name": "y", "table": "u", "weight": 1.5}],
        "features": {"extra": ["a"]},
        "batch": {"size": 5},
    }
    assert [each.batch.size for each in load_spec(pipeline).per_source()] == [2, 3]


weights = st.lists(st.floats(1e-3, 1e6).map(lambda weight: float(f"{weight:.6g}")), min_size=1, max_size=8)


@examples(200)
@given(size=st.integers(1, 20_000), weights=weights)
def test_rows_are_divided_by_largest_remainder(size, weights):
    rows = divide_rows(size, weights)
    exact = [Fraction(repr(weight)) for weight in weights]
    quotas = [size * weight / sum(exact) for weight in exact]
    assert sum(rows) == size
    assert all(abs(own - quota) < 1 for own, quota in zip(rows, quotas, strict=True))
    rest = [quota - int(quota) for quota in quotas]
    up = [rest[index] for index, own in enumerate(rows) if own > int(quotas[index])]
    down = [rest[index] for index, own in enumerate(rows) if own == int(quotas[index])]
    assert not up or not down or min(up) >= max(down)
    assert divide_rows(size, [2 * weight for weight in weights]) == rows or any(2 * w == float("inf") for w in weights)


def test_equal_remainders_go_to_the_first():
    assert divide_rows(10, [1, 1, 1]) == (4, 3, 3)
    assert divide_rows(2, [1, 1, 1, 1]) == (1, 1, 0, 0)
