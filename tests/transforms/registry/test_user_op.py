"""Functions of Python are declared as ops without loading a library."""

from __future__ import annotations

import subprocess
import sys

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

    assert declaration_of(double) is None
    declared = user_op(gives="float32", form="numpy", version=3, per_value=True)(double)
    assert declared is double
    assert declaration_of(double) == OpDeclaration(gives="float32", form="numpy", version=3, per_value=True)
