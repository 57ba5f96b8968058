"""How does a Python function say what it makes of columns, so that a pipeline.yaml may use it as an op?

Runs in: whoever writes such a function, and every process that computes with it. Pure, and imports nothing.
docs/user-code.md is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Form = Literal["expression", "numpy", "arrow"]
F = TypeVar("F", bound=Callable[..., Any])

_DECLARED = "__feedline_op__"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDeclaration:
    """What a function is: how columns come to it, the type that it gives, and the version of what it computes."""

    gives: str
    form: Form = "expression"
    version: int = 1


def user_op(*, gives: str, form: Form = "expression", version: int = 1) -> Callable[[F], F]:
    """Declares the decorated function as an op, for `{python: "module:function"}` and for entry points.

    Args:
        gives: the type of a value: float32, int64, bool, string, or a list of one, such as `list<int64>`.
        form: what the function gets for a column and returns: a Polars expression, a numpy array, or an Arrow array.
        version: to be raised when the same source gives other values, because of what it calls.
    """

    def declare(function: F) -> F:
        setattr(function, _DECLARED, OpDeclaration(gives=gives, form=form, version=version))
        return function

    return declare


def declaration_of(function: Callable[..., Any]) -> OpDeclaration | None:
    """What the function was declared as."""
    found = getattr(function, _DECLARED, None)
    return found if isinstance(found, OpDeclaration) else None
