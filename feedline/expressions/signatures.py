"""Check the arguments of a call against the signature of its function.

Pure. A `Function` is declared once: name, receiver, typed parameters, one line of documentation, and the builder that
turns checked arguments into a Polars expression. Errors, the documentation and the allow-list all come from that
declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from feedline.dataclass import dataclass
from feedline.expressions.nodes import Constant, Fault, Span
from feedline.expressions.operators import Operand
from feedline.expressions.types import CAST_TYPES, nearest, quote_name, type_name

Argument: TypeAlias = Operand | Constant | tuple[Constant, ...]

#: `value`: an operand or a literal. `literal`: a literal or None. The rest are literals of that Python type, passed to
#: the builder as plain values; `type` is the name of a type of `cast`.
Accepts: TypeAlias = Literal["value", "literal", "integer", "number", "text", "boolean", "type"]

_PYTHON = {"integer": (int,), "number": (int, float), "text": (str,), "boolean": (bool,)}
_EXPECTATIONS = {
    "value": "a column, an expression or a literal",
    "literal": "a literal; for another column write `coalesce(x, y)` or `when(condition, x, y)`",
    "integer": "a literal integer",
    "number": "a literal number",
    "text": "a literal string",
    "boolean": "True or False",
    "type": f"the name of a type as a string: one of {', '.join(CAST_TYPES)}",
}
MAX_INTEGER = 2**31 - 1  # of an argument: positions, lengths, digits
MAX_TEXT = 4096  # characters of an argument


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, required if it has no default."""

    name: str
    accepts: Accepts
    default: object = ...
    choices: tuple[str, ...] = ()
    minimum: int | None = None

    def check(self, value: object, argument_span: Span) -> None:
        """Raise Fault for a value outside the parameter's choices or range."""
        if self.choices and value not in self.choices:
            choices = ", ".join(f'"{choice}"' for choice in self.choices)
            raise Fault(f"`{self.name}` must be one of {choices}: got {value!r}", argument_span)
        if self.minimum is not None and isinstance(value, int) and value < self.minimum:
            raise Fault(f"`{self.name}` must be at least {self.minimum}: got {value}", argument_span)


@dataclass(frozen=True, slots=True)
class Function:
    """A function (`receiver` None) or a method of the language.

    Attributes:
        name: as written, with its namespace: `coalesce`, `clip`, `dt.hour`.
        receiver: kinds of type that the method accepts; empty: any.
        build: called with (receiver, *parameters), or (list of values) where `many`, and the call's span.
        summary: one line: the result, its type, edge cases.
        many: whether it takes any number of `value`s, at least two.
    """

    name: str
    receiver: frozenset[str] | None
    build: Callable[..., Operand]
    summary: str
    parameters: tuple[Parameter, ...] = ()
    many: bool = False

    def usage(self) -> str:
        """The function as written, with the receiver `x`: `x.clip(lower_bound, upper_bound=None)`."""
        words = [p.name if p.default is ... else f"{p.name}={p.default!r}" for p in self.parameters]
        if self.many:
            words = ["a", "b", "..."]
        prefix = "" if self.receiver is None else "x."
        return f"{prefix}{self.name}({', '.join(words)})"

    def apply(self, arguments: Sequence[Argument], keywords: Mapping[str, Argument], span: Span) -> Operand:
        """The call's operand. Raises Fault where an argument is missing, unknown, or not accepted by its parameter."""
        rest = list(arguments)
        if self.many:
            if keywords:
                raise Fault(f"{quote_name(self.name)} takes no named arguments", span)
            if len(rest) < 2:
                raise Fault(f"{quote_name(self.name)} takes at least two values: got {len(rest)}", span)
            return self.build([_accept(value, "value", self, span) for value in rest], span=span)
        receiver = [] if self.receiver is None else [self._receive(rest, span)]
        return self.build(*receiver, *self._parameters(rest, keywords, span), span=span)

    def _receive(self, rest: list[Argument], span: Span) -> Operand:
        if not rest:
            raise Fault(f"{quote_name(self.name)} needs the column that it works on: write `{self.usage()}`", span)
        first = rest.pop(0)
        if not isinstance(first, Operand):
            raise Fault(f"{quote_name(self.name)} works on a column, not on a literal", _span_of(first, span))
        if self.receiver and first.kind not in self.receiver:
            kinds = " or ".join(sorted(self.receiver))
            raise Fault(f"{quote_name(self.name)} works on {kinds}: got {type_name(first.dtype)}", first.span)
        return first

    def _parameters(self, positional: Sequence[Argument], keywords: Mapping[str, Argument], span: Span) -> list[object]:
        if len(positional) > len(self.parameters):
            argument_span = _span_of(positional[len(self.parameters)], span)
            raise Fault(f"too many arguments for `{self.usage()}`", argument_span)
        values_by_name = dict(zip((p.name for p in self.parameters), positional, strict=False))
        names = [p.name for p in self.parameters]
        for name, value in keywords.items():
            if name == "strategy":
                reason = "a strategy looks at other rows, and transforms are row-preserving: write a literal"
                raise Fault(reason, _span_of(value, span))
            if name not in names:
                raise Fault(
                    f"`{self.usage()}` has no argument {quote_name(name)}{nearest(name, names)}", _span_of(value, span)
                )
            if name in values_by_name:
                raise Fault(f"the argument `{name}` is given twice", _span_of(value, span))
            values_by_name[name] = value
        values: list[object] = []
        for parameter in self.parameters:
            if parameter.name in values_by_name:
                values.append(_accept(values_by_name[parameter.name], parameter.accepts, self, span))
                parameter.check(values[-1], _span_of(values_by_name[parameter.name], span))
            elif parameter.default is ...:
                raise Fault(f"an argument is missing: expected `{self.usage()}`", span)
            elif parameter.accepts in ("value", "literal"):
                values.append(Constant(value=parameter.default, span=span))  # type: ignore[arg-type]
            else:
                values.append(parameter.default)
        return values


def _span_of(argument: Argument, span: Span) -> Span:
    if isinstance(argument, tuple):
        return argument[0].span.to(argument[-1].span) if argument else span
    return argument.span


def _accept(argument: Argument, accepts: Accepts, function: Function, span: Span) -> Any:
    """The argument in the form that the builder takes."""
    argument_span = _span_of(argument, span)
    fault = Fault(f"`{function.usage()}` expects {_EXPECTATIONS[accepts]} here", argument_span)
    if isinstance(argument, tuple):
        raise fault
    if accepts == "value":
        return argument
    if isinstance(argument, Operand):
        raise fault
    if accepts == "literal":
        return argument
    value = argument.value
    if accepts == "type":
        if not isinstance(value, str):
            raise fault
        if value not in CAST_TYPES:
            raise Fault(
                f"{quote_name(value)} is not a type: expected {_EXPECTATIONS['type']}{nearest(value, CAST_TYPES)}",
                argument_span,
            )
        return CAST_TYPES[value]
    if not isinstance(value, _PYTHON[accepts]) or (isinstance(value, bool) and accepts != "boolean"):
        raise fault
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise Fault(f"the argument is too large: got {value}, expected at most {MAX_INTEGER}", argument_span)
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise Fault(
            f"the argument is too long: got {len(value)} characters, expected at most {MAX_TEXT}", argument_span
        )
    return value
