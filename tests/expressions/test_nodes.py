"""Trees of expressions: their children, the columns that they read, and changed copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feedline.expressions import parse
from feedline.expressions.nodes import ColumnRef, Node, children, column_names, map_children

TREES = {
    "x": {"x"},
    "x > 1": {"x"},
    "-x + y ** 2 < z": {"x", "y", "z"},
    'a["k"] == "v"': {"a"},
    "x in [1, 2]": {"x"},
    "x is None or not (y > 1 and z)": {"x", "y", "z"},
    "when(x > 1, y, 0) > 1": {"x", "y"},
    "clip(x, upper_bound=1) > y": {"x", "y"},
    "x.is_in([1, 2])": {"x"},
}


@pytest.mark.parametrize("text", TREES)
def test_a_changed_copy_reads_renamed_columns_and_keeps_the_original(text: str):
    def rename(node: Node) -> Node:
        if isinstance(node, ColumnRef):
            return replace(node, name=f"new.{node.name}")
        return map_children(node, rename)

    tree = parse(text).tree
    renamed = rename(tree)
    assert column_names(renamed) == {f"new.{name}" for name in TREES[text]}
    assert tree == parse(text).tree
    assert type(renamed) is type(tree)
    assert [type(child) for child in children(renamed)] == [type(child) for child in children(tree)]
