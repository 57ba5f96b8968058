"""Random expressions over random tables against two evaluations that share nothing with the language's own.

DuckDB evaluates the SQL that `expression_pairs` writes beside each text. The predicate is evaluated row by row in plain
Python, with sets of the truth values that an opaque part allows.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from expression_pairs import ANY, CONDITIONS, NAN, PRUNABLE, SCHEMA, TABLES, Sides, conditions
from hypothesis import given, reject
from hypothesis import strategies as st

from feedline.expressions import bind_expression, parse
from feedline.expressions.predicates import And, Comparison, IsNull, Membership, Not, Opaque, Or, Predicate
from feedline.expressions.row_preservation import offending_node

# --- the checks -------------------------------------------------------------------------------------------------------


def evaluated(text: str, table: pa.Table) -> list[object]:
    bound = bind_expression(parse(text), table.schema)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    series = frame.lazy().select(bound.polars.alias("result")).collect(engine="in-memory")["result"]
    assert series.dtype == bound.dtype
    assert len(series) == table.num_rows
    return series.to_list()


def answered(sql: str, table: pa.Table) -> list[object]:
    with duckdb.connect() as connection:
        connection.register("t", table.append_column("row", pa.array(range(table.num_rows))))
        try:
            return [value for (value,) in connection.sql(f'SELECT ({sql}) FROM t ORDER BY "row"').fetchall()]
        except duckdb.OutOfRangeException:  # beyond int64, where the language wraps as numpy does
            reject()


def same(left: object, right: object) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        if left is None or right is None:
            return left is right
        a, b = float(left), float(right)  # type: ignore[arg-type]
        return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-300)
    return left == right and (left is None) == (right is None)


def check(side: Sides, table: pa.Table) -> None:
    ours, theirs = evaluated(side.text, table), answered(side.sql, table)
    wrong = [
        (row, mine, other) for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)) if not same(mine, other)
    ]
    assert not wrong, f"{side.text}\n{side.sql}\n{wrong}\n{table.to_pylist()[wrong[0][0]]}"


@examples(60)
@given(ANY, st.sampled_from(TABLES))
def test_expressions_agree_with_sql(side: Sides, table: pa.Table):
    check(side, table)


@examples(60)
@given(CONDITIONS, st.sampled_from(TABLES))
def test_conditions_agree_with_sql(side: Sides, table: pa.Table):
    check(side, table)


@given(ANY)
def test_every_expression_preserves_rows(side: Sides):
    assert offending_node(bind_expression(parse(side.text), SCHEMA).polars) is None


@examples(60)
@given(ANY, st.sampled_from(TABLES), st.integers(0, 400))
def test_a_slice_of_the_rows_gives_a_slice_of_the_values(side: Sides, table: pa.Table, at: int):
    whole = evaluated(side.text, table)
    parts = [*evaluated(side.text, table.slice(0, at)), *evaluated(side.text, table.slice(at))]
    assert all(same(left, right) for left, right in zip(whole, parts, strict=True))


# --- the predicate ----------------------------------------------------------------------------------------------------

Truth = bool | None
OPERATORS: dict[str, Callable[[object, object], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def truths(predicate: Predicate, row: dict[str, object]) -> set[Truth]:
    """The truth values that the predicate allows for a row; one of them unless a part is opaque."""
    match predicate:
        case Opaque():
            return {True, False, None}
        case IsNull(column=name):
            return {row[name] is None}
        case Comparison(column=name, op=op, value=value):
            return {None if row[name] is None else OPERATORS[op](row[name], value)}
        case Membership(column=name, values=values):
            return {None if row[name] is None else any(row[name] == value for value in values)}
        case Not(item=item):
            return {None if truth is None else not truth for truth in truths(item, row)}
        case And(items=items):
            return combined([truths(item, row) for item in items], all)
        case Or(items=items):
            return combined([truths(item, row) for item in items], any)
    raise AssertionError(predicate)


def combined(parts: list[set[Truth]], join: Callable[[list[bool]], bool]) -> set[Truth]:
    decisive = join is any
    results: set[tuple[Truth, ...]] = {()}
    for part in parts:
        results = {(*result, truth) for result in results for truth in part}
    return {
        decisive if decisive in result else None if None in result else join([bool(t) for t in result])
        for result in results
    }


def rows_of(table: pa.Table) -> list[dict[str, object]]:
    return table.to_pylist()


@examples(60)
@given(conditions(PRUNABLE), st.sampled_from(TABLES))
def test_the_predicate_of_a_prunable_condition_decides_every_row(side: Sides, table: pa.Table):
    bound = bind_expression(parse(side.text), SCHEMA)
    if "items" not in side.text:  # whether a list is null is not known from statistics of its elements
        assert not opaque(bound.predicate)
        assert [{truth} for truth in evaluated(side.text, table)] == [
            truths(bound.predicate, row) for row in rows_of(table)
        ]


def opaque(predicate: Predicate) -> bool:
    match predicate:
        case And(items=items) | Or(items=items):
            return any(opaque(item) for item in items)
        case Not(item=item):
            return opaque(item)
    return isinstance(predicate, Opaque)


@examples(60)
@given(CONDITIONS, st.sampled_from(TABLES))
def test_the_predicate_of_any_condition_allows_its_result(side: Sides, table: pa.Table):
    predicate = bind_expression(parse(side.text), SCHEMA).predicate
    for truth, row in zip(evaluated(side.text, table), rows_of(table), strict=True):
        assert truth in truths(predicate, row)


def test_the_oracle_notices_a_wrong_answer():
    table = pa.table({"single": pa.array([NAN, 1.0, None], pa.float32())})
    check(Sides("single <= 1", "CASE WHEN isnan(single) THEN false ELSE single <= 1 END", "bool"), table)
    with pytest.raises(AssertionError):
        check(Sides("single > 1", "single > 1", "bool"), table)  # DuckDB orders NaN above all numbers
