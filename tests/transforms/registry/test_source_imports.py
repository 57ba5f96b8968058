"""What a source imports is read from its text, wherever the statements are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from feedline.transforms.registry.function_code import SourceImports, packages_in

SOURCE = b"""
from __future__ import annotations
import os.path, a.b as ab
from c.d import e as f, g
from . import beside
from .near import *
from ..far import h
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import importlib, only_for_types
else:
    import really
try:
    import perhaps_there
except ImportError:
    pass
class A:
    import in_class
    def method(self):
        import in_function
        return ab.c.d(f.x, os.path.join, self.os.y)
"""


def test_all_statements_are_found_and_names_that_may_be_modules() -> None:
    found = SourceImports(SOURCE, "top.sub")
    assert set(found.modules) == {
        "os.path",
        "a.b",
        "c.d",
        "top.sub",
        "top.sub.near",
        "top.far",
        "typing",
        "really",
        "perhaps_there",
        "in_class",
        "in_function",
    }
    assert {"c.d.e", "c.d.g", "top.sub.beside", "top.far.h"} <= set(found.perhaps)
    assert {"a.b.c", "a.b.c.d", "c.d.e.x", "os.path", "os.path.join"} <= set(found.perhaps)
    assert [*found.stars] == ["top.sub.near"]
    assert found.obstacle == ""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("import importlib", "importlib"),
        ("from importlib import import_module as load", "importlib"),
        ("import importlib.metadata", "importlib.metadata"),
        ("x = __import__('json')", "__import__"),
        ("exec('x = 1')", "exec"),
        ("def f(x):\n    return eval(x)", "eval"),
        ("import ctypes", "ctypes"),
        ("import builtins", "builtins"),
        ("import sys\nsys.path.append('.')", "sys.path"),
        ("import sys as system\nsystem.modules['a']", "sys.modules"),
        ("from sys import modules", "modules"),
        ("import polars as pl\npl.plugins.register_plugin_function()", "register_plugin_function"),
    ],
)
def test_code_that_is_loaded_by_name_is_an_obstacle(line: str, what: str) -> None:
    number = line.count("\n") + 1
    assert SourceImports(line.encode(), "").obstacle == f"{what} in line {number}"


@pytest.mark.parametrize(
    "line", ["x.list.eval(y)", "import sys\nsys.version_info", "import re\nre.compile('a')", "path.modules", "'eval'"]
)
def test_similar_names_are_none(line: str) -> None:
    assert SourceImports(line.encode(), "").obstacle == ""


def test_a_source_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(SyntaxError):
        SourceImports(b"def", "")


def test_packages_are_found_without_parsing() -> None:
    folder = Path(ast.__file__).parent
    for path in [*sorted(folder.glob("a*.py")), *sorted((folder / "asyncio").glob("*.py"))]:
        content = path.read_bytes()
        expected = set[str]()
        for node in ast.walk(ast.parse(content)):
            if isinstance(node, ast.Import):
                expected.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                expected.add(str(node.module).partition(".")[0])
        assert expected <= packages_in(content), path
    assert packages_in(b"from .a import b\nx = 1; import c.d as e, f\nif x: from g.h import (\n i)\n") == {
        "c",
        "f",
        "g",
    }
