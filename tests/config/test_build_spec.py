"""samples.yaml: what it says, and what is refused with its place and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from feedline.config.build_spec import BuildSpec, Label, load_build_spec
from feedline.errors import SpecError

SPEC = """version: 1
impressions: {table: logs/impressions, key: request_id, time: ts}
outcomes:
  click: {table: clicks, key: [request_id, item_id], time: ts, within: 30m, label: {clicked: exists, dwell: sum(ms)}}
features: {user: {table: users, key: user_id, time: ts}}
negatives: {where: not clicked, keep: 0.1}
out: {table: warehouse/samples, by: day(ts), cluster_by: session_id, sort_by: ts, dedup: {user: [age, hist_*]}}
"""
CLUSTERED = "cluster_by: session_id"
REQUESTS = "rows: request, request: request_id, candidates: [item_id, dwell]"


def loaded(tmp_path: Path, text: str = SPEC) -> BuildSpec:
    path = tmp_path / "samples.yaml"
    path.write_text(text)
    return load_build_spec(path)


def test_a_spec_is_read_with_paths_below_its_folder(tmp_path: Path) -> None:
    spec = loaded(tmp_path)
    assert spec.impressions.table == str(tmp_path / "logs/impressions")
    assert spec.out.table == str(tmp_path / "warehouse/samples")
    assert spec.impressions.key == ("request_id",)
    assert spec.outcomes["click"].labels == (
        Label(name="clicked", function="exists"),
        Label(name="dwell", function="sum", column="ms"),
    )
    assert (spec.lateness_ns, spec.late, spec.outcomes["click"].attribution) == (3600 * 10**9, "drop", "last")
    assert spec.negatives is not None
    assert spec.negatives.weight == "sample_weight"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("within: 30m", "within: 30x", ":4:72: outcomes.click.within: must be a time such as 30m or 7d"),
        ("within: 30m", "within: 0s", "more than 0"),
        ("within: 30m, ", "", "outcomes.click.within: missing key: expected a value"),
        ("sum(ms)", "median(ms)", "'dwell' is no label: got 'median(ms)', expected one of exists, count, sum(x)"),
        ("{clicked: exists, dwell: sum(ms)}", "{}", "label: is empty: expected a label at least"),
        ("negatives:", "negative:", "unknown key: got 'negative', expected one of 'version'"),
        ("negatives:", "negative:", "Did you mean 'negatives'?"),
        ("keep: 0.1", "keep: 0", "negatives.keep: must be greater than 0: got 0"),
        ("by: day(ts)", "by: week(ts)", "out.by: must be day(TIME) or hour(TIME), of the time of the impressions"),
        ("by: day(ts)", "by: day(at)", "by is of another column: got 'day(at)', expected 'day(ts)'"),
        ("hist_*", "'h_{3..1}'", "group 'user': a range must ascend"),
        (CLUSTERED, "rows: requests", "out.rows: must be one of impression, request: got 'requests'"),
        (CLUSTERED, "rows: request", "out.rows: needs request: got `rows: request` alone. Write `request: request_id`"),
        (CLUSTERED, "rows: request, request: x", "out.rows: needs candidates: got `rows: request` alone. Write `cand"),
        (CLUSTERED, REQUESTS, "out.dedup: contradicts `rows: request`, which puts the rows of a request together"),
        (CLUSTERED, f"{CLUSTERED}, {REQUESTS}", "out.cluster_by: contradicts `rows: request`"),
        (
            CLUSTERED,
            "request: x",
            "out.request: is of rows that are requests: got `rows: impression`. Write `rows: req",
        ),
        (CLUSTERED, "candidates: x", "out.candidates: is of rows that are requests: got `rows: impression`"),
        (CLUSTERED, "candidates: 'x_{3..1}'", "out.candidates: a range must ascend"),
        ("version: 1", "version: 2", "version: must be 1: got 2. This release reads version 1"),
        ("version: 1", "version: 1\nlateness: soon", "lateness: must be a time such as 30m"),
        ("version: 1", "version: 1\nlate: keep", "late: must be one of drop, rebuild: got 'keep'"),
        ("clicked: exists", "dwell: count", "duplicate key"),
        ("time: ts, within", "attribution: some, time: ts, within", "attribution: must be one of last, first, all"),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SPEC
    text = SPEC.replace(old, new)
    with pytest.raises(SpecError, match=r"samples\.yaml") as error:
        loaded(tmp_path, text)
    assert message in str(error.value)


def test_a_label_of_two_outcomes_is_refused(tmp_path: Path) -> None:
    more = "  view: {table: views, key: request_id, time: ts, within: 1m, label: {clicked: count}}\nfeatures:"
    with pytest.raises(SpecError, match="give label 'clicked' twice"):
        loaded(tmp_path, SPEC.replace("features:", more))


def test_what_is_no_mapping_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be a mapping: got an empty document, expected the keys version"):
        loaded(tmp_path, "")
    with pytest.raises(SpecError, match=r"cannot be read: .*Name an existing samples.yaml"):
        load_build_spec(tmp_path / "missing.yaml")


def test_variables_are_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGS", "/data")
    assert loaded(tmp_path, SPEC.replace("logs/impressions", "'${LOGS}/i'")).impressions.table == "/data/i"


def test_the_digest_is_of_what_decides_rows(tmp_path: Path) -> None:
    digest = loaded(tmp_path).digest
    for text in (
        SPEC.replace("table: clicks", "table: elsewhere"),
        SPEC.replace("warehouse/samples", "elsewhere"),
        SPEC + "late: rebuild\nlateness: 5m\n",
    ):
        assert loaded(tmp_path, text).digest == digest
    for old, new in (("30m", "31m"), ("keep: 0.1", "keep: 0.2"), ("sum(ms)", "max(ms)"), ("day(ts)", "hour(ts)")):
        assert loaded(tmp_path, SPEC.replace(old, new)).digest != digest
