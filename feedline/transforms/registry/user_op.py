"""Declare a Python function as an op, so that pipeline.yaml may use it.

Runs in: the user's modules, and every process that calls them. Pure, and imports nothing of Feedline.
docs/user-code.md is the reference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from feedline.dataclass import dataclass

Form = Literal["expression", "numpy", "arrow"]
F = TypeVar("F", bound=Callable[..., Any])

_DECLARED = "__feedline_op__"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpDeclaration:
    """The type a function gives, the form of its arguments, the version of its results, and whether it computes each
    value, or element of a list, from that value alone.
    """

    gives: str
    form: Form = "expression"
    version: int = 1
    per_value: bool = False


def user_op(*, gives: str, form: Form = "expression", version: int = 1, per_value: bool = False) -> Callable[[F], F]:
    """Declare the decorated function as an op, for `{python: "module:function"}` and for entry points.

    Args:
        gives: the type of a value: float32, int64, bool, string, or a list of one, such as `list<int64>`.
        form: what the function gets per column and returns: a Polars expression, a numpy array, or an Arrow array.
        version: raise it when the same source gives other values, because of what it calls.
        per_value: of one column, each result depends on one value alone: lists are given as their elements, and columns
            that files store as dictionaries as the values of these.

    Returns:
        A decorator that gives the function back, which stays callable. Raises nothing: a declaration that does not fit
        is a SpecError of the pipeline that uses it.

    Examples:
        >>> @user_op(gives="float32", form="numpy")
        ... def margin(prices, costs):
        ...     return (prices - costs).astype("float32")
        >>> margin(numpy.array([3.0, 2.5]), numpy.array([1.0, 2.0]))
        array([2. , 0.5], dtype=float32)
    """

    def declare(function: F) -> F:
        setattr(function, _DECLARED, OpDeclaration(gives=gives, form=form, version=version, per_value=per_value))
        return function

    return declare


def declaration_of(function: Callable[..., Any]) -> OpDeclaration | None:
    found = getattr(function, _DECLARED, None)
    return found if isinstance(found, OpDeclaration) else None
