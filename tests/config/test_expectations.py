"""Bounds are read, refused and broken; each row of an epoch is checked against them once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st
from minimal_pipeline import MINIMAL
from test_pipeline_spec import parse, refused

from feedline.config import PipelineSpec
from feedline.config.features import MEASURES, Expectation, broken_bounds
from feedline.errors import DataError, SpecError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Observer, Quality
from feedline.loader.ring.reports import EpochCounts, FeederReports, report_packet
from feedline.loader.wire.facts import FeederStats
from feedline.planning.schedule import Block
from feedline.service.feeder.quality_monitor import QualityMonitor
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import OpError

SCHEMA = BatchSchema(
    (
        SlotColumn(name="x", group="dense", dtype="float32", arrow="float", offset=0),
        SlotColumn(name="h", group="sparse", dtype="int64", arrow="list<int64>", offset=0),
    )
)


def spec(expect: Any, group: str = "dense", **keys: Any) -> PipelineSpec:
    text = MINIMAL.replace("{dense: {price: []}}", json.dumps({group: {"x": {"column": "x", "expect": expect}}}))
    return parse(text + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items()))


def bounds(**expect: str) -> tuple[Expectation, ...]:
    return spec(expect).features[0].expect


def test_bounds_are_read_and_written():
    text = "features: {sparse: {h: {column: c, expect: {null_rate: <= 0.05, list_length_mean: ['>= 5', < 1e2]}}}}"
    [feature] = parse(MINIMAL.replace("features: {dense: {price: []}}", text)).features
    assert feature.expect == (
        Expectation(measure="null_rate", sign="<=", value=0.05),
        Expectation(measure="list_length_mean", sign=">=", value=5),
        Expectation(measure="list_length_mean", sign="<", value=100.0),
    )
    assert feature.long_form()["expect"] == {"null_rate": ["<= 0.05"], "list_length_mean": [">= 5", "< 100.0"]}
    whole = spec({"max": "< 3"}, on_expect="error", on_nonfinite="zero")
    assert PipelineSpec.from_canonical(whole.canonical()) == whole
    assert (whole.on_expect, whole.features[0].on_nonfinite) == ("error", "zero")


@pytest.mark.parametrize(
    ("group", "expect", "words"),
    [
        ("dense", {"null_rat": "<= 1"}, "null_rat: unknown measure: got 'null_rat', expected one of 'null_rate'"),
        ("dense", {"null_rate": 0.05}, 'null_rate: must be a bound such as <= 0.05, < 1, ">= 0" or "> 0", or a list'),
        ("dense", {"null_rate": 0.05}, "got 0.05. Write <= 0.05"),
        ("dense", {"null_rate": "<= 1e999"}, "got '<= 1e999'"),
        ("dense", {"null_rate": ["<= 1", 3]}, "expect.null_rate[1]: must be a bound"),
        ("dense", {"list_length_p50": "<= 1"}, "dense features have no list_length_p50: expected one of null_rate"),
        ("categorical", {"nonfinite": "<= 1"}, "categorical features have no nonfinite"),
        ("extra", {"min": "<= 1"}, "extra features have no min: expected one of null_rate"),
        ("dense", "<= 0.05", "expect: must be a mapping from measures to bounds: got '<= 0.05'. Write {null_rate"),
    ],
)
def test_other_bounds_are_refused(group: str, expect: Any, words: str):
    with pytest.raises(SpecError) as caught:
        spec(expect, group)
    assert words in str(caught.value)
    assert f"features.{group}.x.expect" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{column: x, on_nonfinite: drop}", "on_nonfinite: must be one of error, zero, keep: got 'drop'"),
        (
            "{column: x, expect: {min: >= 0}}",
            "not YAML: found character '>' that cannot start any token. Quote the value",
        ),
        ("\n      column: x\n      expect:\n        min: >= 0\n", "a value that begins with > or |"),
    ],
)
def test_other_errors_of_a_feature(body: str, words: str):
    [message] = refused(MINIMAL.replace("{dense: {price: []}}", f"\n  dense:\n    x: {body}"))
    assert words in message


def test_ids_are_always_finite():
    [message] = refused(MINIMAL.replace("dense: {price: []}", "categorical: {x: {column: x, on_nonfinite: zero}}"))
    assert message.endswith("categorical features hold integers, which are always finite: remove it")


def test_an_oov_rate_needs_an_op_that_looks_values_up():
    features = spec({"oov_rate": "<= 0.1"}).features
    with pytest.raises(
        OpError, match=r"x: no ops: no op looks values up, so there is no oov_rate. Remove it"
    ) as caught:
        compile_features(features, pl.DataFrame({"x": [1.0]}).to_arrow().schema)
    assert caught.value.path == ("features", "dense", "x", "expect", "oov_rate")


def test_expectations_do_not_cover_the_inputs_of_a_fit():
    """The values behind `modulo` are observed; an expectation is of what `vocabulary` makes of them."""
    feature = {"x": {"column": "x", "ops": [{"modulo": 10}, "vocabulary"], "expect": {"oov_rate": "<= 0.1"}}}
    text = MINIMAL.replace("{dense: {price: []}}", json.dumps({"categorical": feature}))
    frame = pl.DataFrame({"x": [11, 21, 2]})
    features, schema = parse(text).features, frame.to_arrow().schema
    compiled = compile_features(features, schema, fit_frames(features, schema, [frame]))
    assert compiled.apply(frame)["x"].to_list() == [3, 3, 4]


@given(st.sampled_from(["<=", "<", ">=", ">"]), st.floats(-9, 9), st.floats(-9, 9))
def test_bounds_compare_as_written(sign: str, value: float, measured: float):
    bound = Expectation(measure="max", sign=sign, value=value)
    holds = {"<=": measured <= value, "<": measured < value, ">=": measured >= value, ">": measured > value}[sign]
    assert (broken_bounds((bound,), {"max": measured}) == []) == holds
    assert broken_bounds((bound,), {"max": None}) == []
    assert broken_bounds((bound,), {}) == []


def test_bounds_that_stay_broken():
    final = {
        (measure, sign)
        for measure in MEASURES
        for sign in ("<=", ">")
        if Expectation(measure=measure, sign=sign, value=0).final
    }
    assert final == {("nonfinite", "<="), ("max", "<="), ("list_length_max", "<="), ("min", ">")}


@given(
    st.sampled_from(["min", "max", "list_length_max", "null_rate", "nonfinite", "list_length_mean", "list_length_p50"]),
    st.sampled_from(["<=", "<", ">=", ">"]),
    st.sampled_from([-1, 0, 0.5, 1, 2]),
    st.lists(st.lists(st.sampled_from([-2.0, 0.5, 1.0, np.nan]), max_size=3) | st.none(), min_size=1, max_size=4),
)
def test_a_bound_of_rows_is_met_exactly_if_each_row_meets_it(measure: str, sign: str, value: float, rows: list[Any]):
    bound = Expectation(measure=measure, sign=sign, value=value)

    def holds(rows: list[Any]) -> bool:
        values = np.array([each for row in rows for each in row or ()])
        finite, lengths = values[np.isfinite(values)], [len(row or ()) for row in rows]
        measured = {
            "min": finite.min(initial=np.inf) if len(finite) else None,
            "max": finite.max(initial=-np.inf) if len(finite) else None,
            "list_length_max": max(lengths),
            "null_rate": sum(row is None for row in rows) / len(rows),
            "nonfinite": len(values) - len(finite),
            "list_length_mean": sum(lengths) / len(rows),
            "list_length_p50": sorted(lengths)[(len(rows) - 1) // 2],
        }
        return not broken_bounds((bound,), measured)

    if bound.per_row:
        assert holds(rows) == all(holds([row]) for row in rows)


def test_bounds_that_a_row_breaks():
    text = "min >= 0, min > 1, max <= 0, max < 5, list_length_max <= 9, null_rate <= 0, oov_rate <= 0, "
    text += "nonfinite <= 0, nonfinite < 1, nonfinite_rate <= 0"
    others = "min <= 0, max > 0, null_rate <= 0.1, null_rate < 1, nonfinite <= 1, nonfinite < 2, nonfinite <= -1, "
    others += "oov_rate >= 0, list_length_mean <= 4, list_length_p99 <= 9, list_length_max >= 1"
    for bounds, per_row in ((text, True), (others, False)):
        for measure, sign, value in (each.split() for each in bounds.split(", ")):
            assert Expectation(measure=measure, sign=sign, value=float(value)).per_row == per_row, (measure, sign)


# -- an epoch ------------------------------------------------------------------------------------------------------


def part(rows: int, *, nulls: int = 0, highest: float = 1.0) -> Quality:
    observer = Observer(SCHEMA, [("x",), ("h",)])
    observer.count_rows(pl.DataFrame({"x": [None] * nulls + [0.5] * (rows - nulls), "h": [[1]] * rows}))
    observer.count_floats(SCHEMA["x"], rows, (0.0, highest))
    observer.count_integers(SCHEMA["h"], np.ones(rows, dtype=np.int64))
    observer.count_lists(SCHEMA["h"], np.arange(rows + 1))
    return observer.quality()


def block(last_step: int) -> Block:
    return Block(lane=0, index=last_step, start=0, rows=1, pieces=(), first_step=0, last_step=last_step)


def epoch(on_expect: Any, enough_rows: int = 10**6, **expect: str) -> QualityMonitor:
    monitor = QualityMonitor(SCHEMA, spec(expect).features, on_expect, enough_rows=enough_rows)
    monitor.begin(4)
    return monitor


def test_warnings_come_at_the_end_one_per_feature():
    monitor = epoch("warn", max="<= 1", null_rate="< 0.1", min=">= 0")
    monitor.add(0, [(block(0), part(10, nulls=2, highest=3.5))])
    [text] = monitor.end()
    both = "got max 3.5, expected <= 1; got null_rate 0.2, expected < 0.1"
    assert text == f"feature 'x' is not as expected in epoch 4: {both} (10 rows delivered)"
    monitor.begin(5)
    monitor.add(0, [(block(0), part(10))])
    assert monitor.end() == []


def test_a_bound_that_stays_broken_fails_at_once():
    monitor = epoch("error", max="<= 1", null_rate="<= 0.1")
    monitor.add(0, [(block(0), part(10, nulls=5))])
    with pytest.raises(
        DataError, match=r"^feature 'x' is not as expected in epoch 4: got max 2, expected <= 1 \(12 rows"
    ):
        monitor.add(1, [(block(1), part(2, highest=2.0))])


def test_other_bounds_fail_after_enough_rows():
    monitor = epoch("error", enough_rows=100, null_rate="<= 0.1")
    monitor.add(0, [(block(0), part(50, nulls=25))])
    with pytest.raises(DataError, match=r"got null_rate 0\.25, expected <= 0\.1 \(100 rows delivered\)"):
        monitor.add(1, [(block(1), part(50))])
    mended = epoch("error", enough_rows=100, null_rate="<= 0.1")
    mended.add(0, [(block(0), part(50, nulls=5))])
    mended.add(1, [(block(1), part(60))])
    assert mended.end() == []


def test_an_error_at_the_end():
    monitor = epoch("error", null_rate="<= 0.1")
    monitor.add(0, [(block(0), part(50, nulls=25))])
    with pytest.raises(DataError, match=r"got null_rate 0\.5, expected <= 0\.1"):
        monitor.end()


def rows_of(monitor: QualityMonitor) -> int:
    assert monitor.total is not None
    return monitor.total.rows


def handed_over(reports: FeederReports, stream: int, successor: int) -> EpochCounts:
    counts = reports.hand_over(stream, successor)
    assert counts is not None
    return EpochCounts.from_bytes(counts)


def test_another_feeder_continues_and_counts_nothing_twice():
    first = epoch("warn")
    first.add(0, [(block(0), part(10)), (block(0), part(11))])
    first.add(1, [])
    first.add(2, [(block(2), part(20))])
    reports = FeederReports()
    reports.receive(report_packet(7, FeederStats(batches=3), first.epoch_counts()))
    assert reports.stats == FeederStats(batches=3)
    assert reports.quality is not None
    assert reports.quality.rows == 41
    second = epoch("warn")
    second.begin(4, handed_over(reports, 7, 8))  # the trainer continues at step 1, which was announced before
    second.add(1, [(block(1), part(99))])
    second.add(2, [(block(2), part(20))])
    second.add(3, [(block(3), part(30))])
    assert rows_of(second) == 71
    counts = second.epoch_counts()
    assert counts is not None
    assert EpochCounts.from_bytes(counts).through == 3
    reports.receive(report_packet(8, FeederStats(), counts))
    assert reports.quality.rows == 71


def test_counts_outlive_successors_that_die_silently():
    reports = FeederReports()
    monitor = epoch("warn")
    monitor.add(0, [(block(0), part(10))])
    reports.receive(report_packet(1, FeederStats(), monitor.epoch_counts()))
    counts = handed_over(reports, 1, 2).to_bytes()
    assert handed_over(reports, 2, 3).to_bytes() == counts
    reports.receive(report_packet(2, FeederStats(), None))  # the second did say something, but nothing of its counts
    assert reports.quality is not None
    assert reports.quality.rows == 10
    last = epoch("warn")
    last.begin(4, handed_over(reports, 3, 4))
    reports.receive(report_packet(1, FeederStats(), monitor.epoch_counts()))  # late: it is counted in its heir's
    assert reports.quality.rows == 10
    last.add(1, [(block(1), part(5))])
    reports.receive(report_packet(4, FeederStats(), last.epoch_counts()))
    assert reports.quality.rows == 15


def test_a_feeder_that_continues_keeps_unreported_counts():
    monitor = epoch("warn")
    monitor.add(0, [(block(0), part(10))])
    counts = monitor.epoch_counts()
    assert counts is not None
    seen = EpochCounts.from_bytes(counts)
    monitor.add(1, [(block(1), part(5))])
    monitor.begin(4, seen)  # an interrupt: the trainer asks for step 1 once more
    monitor.add(1, [(block(1), part(5))])
    assert rows_of(monitor) == 15
    monitor.begin(5)
    monitor.begin(5, replace(seen, through=0))
    assert rows_of(monitor) == 25
