"""Functions of Python are declared as ops without loading a library."""

from __future__ import annotations

import subprocess
import sys

import pytest

import feedline
from feedline.transforms.registry.user_op import OpDeclaration, declaration_of, user_op


def test_declaring_costs_no_library() -> None:
    code = "import sys, feedline; feedline.user_op; print(sorted({'polars', 'pyarrow', 'numpy'} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
    assert callable(feedline.user_op)


def test_a_declared_function_stays_itself() -> None:
    def double(x: float) -> float:
        return 2 * x

    declared = user_op(gives="float32", form="numpy", version=3, per_value=True)(double)
    assert declared is double
    assert declared(2) == 4
    assert declaration_of(double) == OpDeclaration(gives="float32", form="numpy", version=3, per_value=True)


def test_expressions_of_version_1_are_the_default() -> None:
    assert declaration_of(user_op(gives="int64")(lambda x: x)) == OpDeclaration(
        gives="int64", form="expression", version=1, per_value=False
    )


@pytest.mark.parametrize("other", [len, print, pytest.mark])
def test_other_callables_have_no_declaration(other: object) -> None:
    assert declaration_of(other) is None


def test_a_foreign_attribute_of_that_name_is_no_declaration() -> None:
    def function() -> None:
        pass

    function.__feedline_op__ = {"gives": "int64"}  # type: ignore[attr-defined]
    assert declaration_of(function) is None
