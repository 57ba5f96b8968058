"""Declare ops and apply them to values.

Runs in: every process. Pure. An op is declared once, with the decorator `op` on the function that builds its
expression: YAML validation, error messages, the JSON Schema and `docs/ops.md` (see `catalogue`) derive from that. The
function takes a `Value` (an expression and its type) and the parameters, and returns the next `Value`. A function over
elements never gets lists: `BoundOp.apply` evaluates its expression inside the list, and keeps weights and vectors. An
op over several columns declares its `inputs`, and its function takes a sequence of values.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any, Literal, TypeVar

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from feedline.config.features import OpCall
from feedline.config.yaml_document import Path
from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.expressions.types import BOOLEAN, DECIMAL, FLOAT, NUMBERS, STRING, STRUCT
from feedline.transforms.learning.learner import Artifact, Learner, Learning, Reading
from feedline.transforms.values.kinds import ANYTHING, ELEMENTS, TEMPORAL, Kind, Value
from feedline.transforms.values.lookup_counts import hold_lookup

Lists = Literal["elements", "whole", "only", "never"]
# From parameters, artifact and this bound of each input: n if ids are in [0, n), None if unknown.
Ids = Callable[[Any, Artifact | None, Sequence[int | None]], int | None]

MAX_INT = 2**63 - 1


class OpError(SpecError):
    """A wrong call of an op; `path` is its position in pipeline.yaml."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message

    def __reduce__(self) -> tuple[type[OpError], tuple[Path, str]]:
        return type(self), (self.path, self.message)


def same_ids(parameters: Any, artifact: Artifact | None, inputs: Sequence[int | None]) -> int | None:
    """For ops whose results are ids of their first input."""
    return inputs[0]


class Parameters(BaseModel):
    """The parameters of an op: strict types, finite numbers, no other keys. The first field takes a bare value."""

    # deferred: a process validates the parameters of few ops
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants", defer_build=True
    )

    @functools.cached_property
    def canonical_json(self) -> str:
        """All parameters, defaults included, as JSON; part of fingerprints."""
        return self.model_dump_json()


class NoParameters(Parameters):
    """For ops without parameters, written as a bare word."""


P = TypeVar("P", bound=Parameters)
F = TypeVar("F", bound=Callable[..., Value])


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A call on columns, each a type and its values, and the resulting values; tested, and shown in the docs.

    outside: the data that the op reads: columns of a table, or the rows of an array by the name of the parameter.
    """

    call: OpCall
    columns: tuple[tuple[pl.DataType, tuple[Any, ...]], ...]
    result: tuple[Any, ...]
    outside: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One of the columns that an op over several columns takes.

    weighted: a list may have weights. vectors: a vector is passed as one, not as a list.
    """

    name: str
    takes: frozenset[str]
    lists: Lists
    weighted: bool = False
    vectors: bool = False
    optional: bool = False

    def fits(self, kind: Kind) -> bool:
        return _fits(kind, self.takes, self.lists) and (self.weighted or not kind.weighted)

    @property
    def accepts(self) -> str:
        return _accepted_kinds(self.takes, self.lists) + (", weighted or not" if self.weighted else "")


def _undeclared(*_: Any) -> Value:
    raise AssertionError("a function is bound before it is applied")


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op, declared by decorating its function, after which it is named; the docstring is its documentation.

    takes, gives: the kinds of elements it takes; the result's type, in words. lists: whether it takes lists element by
    element, whole, exclusively, or not at all. version: raised whenever the same call gives different values; part of
    every fingerprint. weighted: its function handles the weights of a list. inputs: the columns of an op over several
    columns: its function gets a value for each, None for an omitted optional one; with `repeats`, the last of them may
    occur any number of times. learns, reads: the source of its artifact: its function gets two more arguments, the
    artifact and the values of `Learning.row_roles` by role (empty for rows that it was not fitted on). ids: the number
    of ids that it may give. per_value: whether its result for a value, or an element of a list, depends on that value
    alone, and on `row_roles` of its row. slices: the elements of each list that it keeps, if that is all it does.
    """

    gives: str
    examples: tuple[Example, ...]
    takes: Set[str] = frozenset()
    lists: Lists = "elements"
    version: int = 1
    parameters: type[Parameters] = NoParameters
    weighted: bool = False
    inputs: tuple[Input, ...] = ()
    repeats: bool = False
    learns: Learning | None = None
    reads: Callable[[Any], Reading] | None = None
    ids: Ids = lambda *_: None
    per_value: bool = False
    slices: Callable[[Any], slice] | None = None
    name: str = ""
    placement: str = ""
    text: str = ""
    function: Callable[..., Value] = _undeclared

    def __call__(self, function: F) -> F:
        name = function.__name__.rstrip("_")
        if name in OPS:
            raise AssertionError(f"op {name} is declared twice")
        text, placement = inspect.cleandoc(function.__doc__ or ""), function.__module__.rpartition(".")[2]
        OPS[name] = replace(self, name=name, placement=placement, text=text, function=function)
        return function

    @property
    def takes_context(self) -> bool:
        """Whether its function takes an artifact and side values, besides values and parameters."""
        return self.learns is not None or self.reads is not None

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.parameters.model_fields)

    @property
    def is_word(self) -> bool:
        try:
            self.parameters.model_validate({})
        except ValidationError:
            return False
        return True

    @property
    def shape(self) -> str:
        return ", ".join([column.name for column in self.inputs] + (["…"] if self.repeats else []))

    @property
    def accepts(self) -> str:
        if not self.inputs:
            return _accepted_kinds(self.takes, self.lists)
        words = [
            f"`{column.name}` ({column.accepts}{', optional' if column.optional else ''})" for column in self.inputs
        ]
        return ", ".join([*words, "…"] if self.repeats else words)


def _fits(kind: Kind, takes: Set[str], lists: Lists) -> bool:
    return kind.element in takes and (lists in ("elements", "whole") or kind.listed is (lists == "only"))


def _accepted_kinds(takes: Set[str], lists: Lists) -> str:
    if takes == ANYTHING:
        return {"only": "lists", "never": "anything but lists"}.get(lists, "anything")
    numbers = ["numbers"] if takes >= NUMBERS else []
    others = sorted(takes - (NUMBERS if numbers else set()), key=ELEMENTS.index)
    words = in_words([*numbers, *(f"{name} values" if name == "binary" else f"{name}s" for name in others)])
    if lists == "only":
        return f"lists of {words}"
    return words if lists == "never" else f"{words}, or lists of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpContext:
    """The further arguments of an op that learns or reads: its artifact, if it needs one, and its side columns' values
    by role.
    """

    artifact: Artifact | None = None
    side_values: Mapping[str, Value] = field(default_factory=dict)


NO_CONTEXT = OpContext()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOp:
    """An op with checked parameters."""

    op: Op
    parameters: Parameters
    path: Path

    def apply(self, value: Value, context: OpContext = NO_CONTEXT) -> Value:
        """The next value of the chain. Raises OpError for a kind that the op does not take."""
        if self.op.inputs:
            return self.combine([value], context)
        kind, value = value.kind, value.plain()
        self._require(kind)
        with self.named_errors():
            if not (kind.listed and self.op.lists == "elements"):
                return _count(self._call(value, context))
            result = _count(value.change_elements(lambda element: self._call(element, context)))
        return result if kind.width is None else replace(result.as_vector(kind.width), lookup=result.lookup)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise errors of the op's function as those of this call."""
        try:
            yield
        except OpError:
            raise
        except SpecError as error:
            raise OpError(self.path, f"{self.op.name}: {error}") from None

    def _require(self, kind: Kind) -> None:
        if not _fits(kind, self.op.takes, self.op.lists):
            raise OpError(self.path, f"{self.op.name} takes {self.op.accepts}: got {kind}{_remedy(self.op, kind)}")
        one_by_one = kind.listed and self.op.lists == "elements"
        if kind.weighted and not (one_by_one or self.op.weighted):
            remedy = "Put `ids` before it to drop the weights, or `weights` to keep only them"
            raise OpError(self.path, f"{self.op.name} takes no weights: got {kind}. {remedy}")

    def _call(self, values: Value | Sequence[Value | None], context: OpContext) -> Value:
        if self.op.takes_context:
            return self.op.function(values, self.parameters, context.artifact, context.side_values)
        return self.op.function(values, self.parameters)

    def learner(self, values: Sequence[Value]) -> Learner | None:
        """The learner of the op's artifact, if it learns from these values. Raises OpError."""
        if self.op.learns is None:
            return None
        if not self.op.inputs:
            self._require(values[0].kind)
        with self.named_errors():
            return self.op.learns.learner(self.parameters, [value.plain() for value in values])

    def combine(self, values: Sequence[Value], context: OpContext = NO_CONTEXT) -> Value:
        """The result of an op over several columns. Raises OpError if they do not fit its inputs."""
        op = self.op
        if not op.inputs:
            names = "column" if len(values) == 1 else f"{len(values)} columns"
            raise OpError(self.path, f"{op.name} takes one column: got `inputs` of {names}. Put it under `ops`")
        waiting = list(values)
        slots = list(op.inputs)
        found: list[Value | None] = []
        while slots:
            slot = slots.pop(0)
            kind = waiting[0].kind if waiting else None
            if kind is not None and slot.fits(kind):
                value = waiting.pop(0)
                found.append(value if slot.vectors else value.plain())
                if op.repeats and not slots and waiting:
                    slots.append(slot)
            elif slot.optional:
                found.append(None)
            else:
                got = f"got {kind}" if kind is not None else f"got {len(values)} of its inputs"
                place = f"input {len(values) - len(waiting) + 1} of {op.name}, {slot.name}, must be {slot.accepts}"
                raise OpError(self.path, f"{place}: {got}. Write {{op: {op.name}, inputs: [{op.shape}]}}")
        if waiting:
            took = len(values) - len(waiting)
            raise OpError(self.path, f"{op.name} takes {op.accepts}: got {waiting[0].kind} as input {took + 1}")
        with self.named_errors():
            return self._call(found, context)

    @property
    def identity(self) -> tuple[str, int, str]:
        """Name, version and parameters (with defaults, as JSON) of the op, for fingerprints."""
        return self.op.name, self.op.version, self.parameters.canonical_json


def _count(result: Value) -> Value:
    """An op's result as a lookup, if it declares the ids of unknown values."""
    if result.unknown is None:
        return result
    expr, lookup = hold_lookup(result.expr, result.unknown)
    return replace(result, expr=expr, lookup=lookup)


OPS: dict[str, Op] = {}  # those that are declared; `transforms.ops.OPS` are all
op = Op  # as a decorator
# Modules that declare further ops, imported for the first name that is none of OPS: 20 ms of CPU, which the first batch
# of most pipelines need not wait for.
FURTHER: list[str] = []


def find_op(name: str) -> Op | None:
    """The op of that name; None for an unknown one."""
    if name not in OPS:
        declare_all()
    return OPS.get(name)


def declare_all() -> None:
    for module in FURTHER:
        importlib.import_module(module)


def example(
    name: str,
    arguments: Any,
    dtype: pl.DataType,
    values: Iterable[Any],
    result: Iterable[Any],
    outside: Mapping[str, tuple[Any, ...]] | None = None,
) -> Example:
    """An example of an op over one column. arguments: as in YAML after the op's name; None for a bare word."""
    return example_of_several(name, arguments, [(dtype, values)], result, outside)


def example_of_several(
    name: str,
    arguments: Any,
    columns: Iterable[tuple[pl.DataType, Iterable[Any]]],
    result: Iterable[Any],
    outside: Mapping[str, tuple[Any, ...]] | None = None,
) -> Example:
    value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
    call = OpCall(op=name, arguments=json.dumps(value))
    values = tuple((dtype, tuple(rows)) for dtype, rows in columns)
    return Example(call=call, columns=values, result=tuple(result), outside=outside or {})


def _remedy(op: Op, kind: Kind) -> str:
    if kind.element in op.takes:
        return ". It works on a whole list per row" if op.lists == "only" else ". It works on one value per row"
    if kind.element == STRING:
        return ". Make an id of it with hash_bucket, or a number with cast" if op.name != "hash_bucket" else ""
    if kind.element == BOOLEAN:
        return ". Put {cast: int64} before it"
    if kind.element in (FLOAT, DECIMAL):
        return ". Put bucketize, or {cast: int64}, before it"
    if kind.element in TEMPORAL:
        return ". Extract a number with expr, such as `expr: NAME.dt.hour()`"
    return '. Extract one field with expr, such as `expr: NAME["field"]`' if kind.element == STRUCT else ""


def in_words(words: list[str]) -> str:
    """`a, b or c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
