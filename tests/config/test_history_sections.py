"""The section `histories`, and features that read one: what they mean, and errors with their positions."""

from __future__ import annotations

import pytest
from minimal_pipeline import MINIMAL

from feedline.config import PipelineSpec, parse_spec
from feedline.errors import SpecError

HISTORIES = "histories: {events: {table: e, key: user, time: ts}}\n"
FEATURE = "{sparse: {f: {history: events, column: x, at: t, last: 3}}}"
TEXT = HISTORIES + MINIMAL.replace("{dense: {price: []}}", FEATURE)


def spec_of(old: str = "", new: str = "") -> PipelineSpec:
    assert old in TEXT
    return parse_spec(TEXT.replace(old, new, 1) if old else TEXT, file="p.yaml")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("key: user, ", "", "p.yaml:1:13: histories.events.key: missing key: expected a value. The column of the"),
        (
            "time: ts",
            "tiem: ts",
            "'known_at', 'tie_break', 'memory'. Did you mean 'time'?",
        ),
        ("table: e", "table: 3", "p.yaml:1:29: histories.events.table: must be a path or URI"),
        ("{events:", "{my events:", 'histories."my events": must be a name of letters, digits and underscores'),
        ("{events: {table: e, key: user, time: ts}}", "3", "p.yaml:1:12: histories: must be a mapping from names"),
        (
            "{table: e, key: user, time: ts}",
            "3",
            "histories.events: must be a mapping with the keys table, format, key",
        ),
        ("{events:", "{event:", "p.yaml:6:34: features.sparse.f.history: unknown history: got 'events', expected one"),
        (HISTORIES, "", "unknown history: got 'events', expected one of the section `histories`. Write it"),
        ("last: 3", "last: 0", "features.sparse.f.last: must be an integer from 1 to 2147483647: got 0"),
        ("last: 3", "last: 3, lag: -10m", "features.sparse.f.lag: must be a time that is not negative, such as 10m"),
        ("last: 3", "last: 3, lag: -1", "or an integer of the time's unit: got -1"),
        ("at: t, ", "", "features.sparse.f: missing key: expected `at:`, the row's column with its time"),
        (", last: 3", "", "features.sparse.f: missing key: expected `last: N`, the most events of a row, or `pools`"),
        ("last: 3", "last: 3, scan: 0", "features.sparse.f.scan: must be an integer from 1"),
        (
            "last: 3",
            "last: 3, windw: 3",
            "unknown key of a feature of a history: got 'windw', expected one of 'history'",
        ),
        ("last: 3", "last: 3, tag: pool", "tag says which pools an event is in: got it without pools. Remove it"),
        ("last: 3", "pools: {}", "must be a mapping of 1 to 32 pools: got 0 pools"),
        ("last: 3", "pools: {a: {lats: 3}}", "unknown key of a pool: got 'lats', expected one of 'where', 'last'"),
        ("last: 3", "last: 3, pools: {a: {last: 3}}", "last beside pools: expected it in each pool. Move it there"),
        ("column: x, ", "", "must have one of column, columns, tag: got none"),
        ("{f:", '{"f{1..2}":', "must be a name of its own, without a range, for features of a history"),
        ("last: 3", "last: 3, ops: {y: []}", "features.sparse.f.ops.y: unknown column: got 'y', expected one of 'x'"),
    ],
)
def test_errors_have_a_position_and_a_remedy(old: str, new: str, message: str):
    with pytest.raises(SpecError) as caught:
        spec_of(old, new)
    assert message in str(caught.value)


def test_a_features_columns_and_tag_are_features():
    several = "columns: [x, 'c{1..2}'], tag: pool, at: t, pools: {a: {last: 3}}, ops: {x: [log1p]}"
    spec = spec_of("column: x, at: t, last: 3", several)
    found = {feature.name: (feature.history.column, [op.op for op in feature.ops]) for feature in spec.features}
    assert found == {"f.x": ("x", ["log1p"]), "f.c1": ("c1", []), "f.c2": ("c2", []), "f.pool": (None, [])}
    assert PipelineSpec.from_canonical(spec.canonical()) == spec


def test_equal_reads_are_one_column():
    same = [spec_of("last: 3", f"last: 3, lag: {lag}").features[0].column for lag in ("0", "0s", "0d")]
    assert len(set(same)) == 1
    other = [spec_of("last: 3", f"last: 3, {key}").features[0].column for key in ("lag: 1s", "scan: 5", "where: x > 1")]
    assert len({*same, *other}) == 4


def test_the_table_is_part_of_a_columns_name_and_memory_is_not():
    names = {key: spec_of("time: ts", f"time: ts{key}").features[0].column for key in ("", ", memory: 1GiB")}
    assert len(set(names.values())) == 1
    assert spec_of("table: e", "table: other").features[0].column not in names.values()
