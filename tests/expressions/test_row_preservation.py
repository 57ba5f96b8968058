"""Expressions that mix, drop or add rows are recognised at any depth; checked against Polars' results, too."""

from __future__ import annotations

import polars as pl
import pytest

from feedline.expressions.row_preservation import offending_node

x, y, items, text, when, record = (pl.col(name) for name in ("x", "y", "items", "text", "when", "record"))
elements = items.list.eval(pl.element() + 1)

PRESERVING = {
    "a column": x,
    "arithmetic": (x + 1) * y / 2,
    "comparison": (x > 1) & ~(y < 2) | x.is_null(),
    "choice": pl.when(x > 1).then(x).otherwise(0),
    "names": (x + 1).alias("z").name.suffix("_1"),
    "casts": x.cast(pl.Float32).cast(pl.Int8, strict=False),
    "fill": x.fill_null(0).clip(0, 10).fill_nan(None),
    "several columns of a row": pl.sum_horizontal(x, y) + pl.coalesce(x, y, 0) + pl.max_horizontal(x, y),
    "a list of literals": x.is_in([1, 2]),
    "a typed list of literals": when.is_in(pl.lit([1], dtype=pl.List(pl.Int64)).cast(pl.List(pl.Datetime("us")))),
    "a table of replacements": x.replace_strict(pl.Series([1, 2]), pl.Series([3, 4]), default=None),
    "a literal table searched": pl.lit(pl.Series([1, 2])).search_sorted(x),
    "text": text.str.to_lowercase().str.split(" ").list.len(),
    "time": when.dt.hour().cast(pl.Int64) * 100,
    "list": items.list.head(3).list.sum() + items.list.len(),
    "list sorted": items.list.sort().list.unique(maintain_order=True).list.first(),
    "elements": elements,
    "elements below another node": elements.list.len() + x,
    "elements cumulated": items.list.eval(pl.element().cum_sum()).list.sum(),
    "elements filtered": items.list.filter(pl.element() > 1).list.len(),
    "elements aggregated": items.list.agg(pl.element().sum()),
    "elements in elements": items.list.eval(pl.element().cast(pl.String).str.split(",").list.eval(pl.element())),
    "a field": record.struct.field("a") + 1,
    "a struct": pl.struct(x, y),
    "lists joined": pl.concat_list(x, y),
}
MIXING = {
    "mean": (x.mean(), 'col("x").mean()'),
    "filled with its mean": (x.fill_null(x.mean()), 'col("x").mean()'),
    "filled by strategy": (x.fill_null(strategy="mean"), 'col("x").fill_null_with_strategy()'),
    "forward filled": (x.forward_fill() + 1, 'col("x").fill_null_with_strategy()'),
    "shifted": (x - x.shift(1), 'col("x").shift([dyn int: 1])'),
    "over": (x.max().over("y") + 1, 'col("x").max().over([col("y")])'),
    "clipped at its maximum": (x.clip(0, x.max()), 'col("x").max()'),
    "chosen": (pl.when(x > 1).then(x).otherwise(x.mean()), 'col("x").mean()'),
    "struct of a mean": (pl.struct(x.mean()).struct.field("x") + x, 'col("x").mean()'),
    "mean below elements": ((elements.list.len() - x.mean()).alias("z"), 'col("x").mean()'),
    "sum of lists": (items.list.len().sum() + x, 'col("items").list.length().sum()'),
    "cumulative evaluation": (x.cumulative_eval(pl.element().sum()), "cumulative_eval()"),
    "is in another column": (x.is_in(y.implode()), 'col("x").is_in([col("y").implode()])'),
    "number of rows": (x / pl.len(), "len()"),
    "row index": (x + pl.int_range(pl.len()), None),
    "filtered": (x.filter(x > 1), 'col("x").filter([(col("x")) > (dyn int: 1)])'),
    "exploded": (items.explode(), None),
    "exploded elements": (items.list.explode() + 1, None),
    "head": (x.head(2), None),
    "a series as long as the rows": (x + pl.lit(pl.Series([1, 2, 3])), "Series"),
    "a literal": (pl.lit(1), "dyn int: 1"),
    "several columns": (pl.col("x", "y"), None),
    "all columns": (pl.all(), None),
    "a Python function": (x.map_elements(lambda value: value, return_dtype=pl.Int64), "python_udf()"),
    "a function of batches": (x.map_batches(lambda series: series) + 1, "python_udf()"),
    "a function of elements": (
        items.list.eval(pl.element().map_batches(lambda series: series)).list.len(),
        "python_udf()",
    ),
    "fields with others": (record.struct.with_fields(pl.field("a").mean()), None),
}


@pytest.mark.parametrize("name", PRESERVING)
def test_row_preserving_expressions_are_accepted(name: str):
    assert offending_node(PRESERVING[name]) is None


@pytest.mark.parametrize("name", MIXING)
def test_other_expressions_are_refused_and_the_node_is_named(name: str):
    expr, node = MIXING[name]
    found = offending_node(expr)
    assert found == node if node else found


FRAME = pl.DataFrame(
    {
        "x": [3, 1, None, 2],
        "y": [1, 1, 2, None],
        "items": [[1, 2], [], None, [5, None]],
        "text": ["A b", "", None, "c"],
        "when": pl.Series([0, 10**15, None, 1]).cast(pl.Datetime("us")),
        "record": [{"a": 1}, {"a": None}, None, {"a": 3}],
    }
)


@pytest.mark.parametrize("name", PRESERVING)
def test_accepted_expressions_preserve_rows(name: str):
    expr = PRESERVING[name].alias("result")
    parts = [FRAME.slice(at, 1).select(expr) for at in range(len(FRAME))]
    assert pl.concat(parts).equals(FRAME.select(expr))
