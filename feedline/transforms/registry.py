"""Which ops are there, which parameters and columns do they take, and how is a call in pipeline.yaml bound to one?

Runs in: every process. Pure.

An op is declared once, with the decorator `op` over the function that builds its expression. YAML validation, error
texts, the JSON Schema of pipeline.yaml and `docs/ops.md` all come from that declaration. An op's function takes a
`Value` (an expression and its type) and its parameters and returns the next `Value`; an op over elements never sees
lists: here its expression is put inside `list.eval`.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import polars as pl
from pydantic import BaseModel, ConfigDict, ValidationError

from feedline.errors import SpecError
from feedline.expression_types import BOOLEAN, DECIMAL, FLOAT, NUMBERS, STRING, STRUCT, describe
from feedline.features import OpCall
from feedline.positions import Path, met, path_text, unknown
from feedline.transforms.kinds import ANYTHING, ELEMENTS, TEMPORAL, Kind, Value, element_type

Lists = Literal["elements", "whole", "only", "never"]

MAX_INT = 2**63 - 1
_QUOTED = re.compile(r"'([^']*)'")


class OpError(SpecError):
    """A call of an op is wrong; `path` is where it stands in pipeline.yaml."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message

    def __reduce__(self) -> tuple[type[OpError], tuple[Path, str]]:
        return type(self), (self.path, self.message)


class Parameters(BaseModel):
    """The parameters of an op: strict types, finite numbers, no other keys. The first field takes a bare value."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class NoParameters(Parameters):
    """An op that stands as a bare word."""


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A call on a column of `dtype`, with the values that come out; run as a test and printed in the docs."""

    call: OpCall
    dtype: pl.DataType
    given: tuple[Any, ...]
    result: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One op as declared. `lists`: its elements are taken one by one, or lists whole, or only lists, or none."""

    name: str
    version: int
    placement: str
    parameters: type[Parameters]
    takes: frozenset[str]
    lists: Lists
    gives: str
    text: str
    examples: tuple[Example, ...]
    function: Callable[[Value, Any], Value]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""
        return tuple(self.parameters.model_fields)

    @property
    def is_word(self) -> bool:
        """Whether a bare word is a complete call."""
        try:
            self.parameters.model_validate({})
        except ValidationError:
            return False
        return True

    @property
    def taken(self) -> str:
        """What the op takes, in words."""
        if self.takes == ANYTHING:
            return {"only": "lists", "never": "anything but lists"}.get(self.lists, "anything")
        numbers = ["numbers"] if self.takes >= NUMBERS else []
        others = sorted(self.takes - (NUMBERS if numbers else set()), key=ELEMENTS.index)
        words = _listed([*numbers, *(f"{name} values" if name == "binary" else f"{name}s" for name in others)])
        if self.lists == "only":
            return f"lists of {words}"
        return words if self.lists == "never" else f"{words}, or lists of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundOp:
    """An op with checked parameters."""

    op: Op
    parameters: Parameters
    path: Path

    def apply(self, value: Value) -> Value:
        """The next value of the chain. Raises OpError where the op does not take the value's kind."""
        value = value.plain()
        kind = value.kind
        fits = {"elements": True, "whole": True, "only": kind.listed, "never": not kind.listed}[self.op.lists]
        if not fits or kind.element not in self.op.takes:
            raise OpError(self.path, f"{self.op.name} takes {self.op.taken}: got {kind}{_remedy(self.op, kind)}")
        try:
            if not (kind.listed and self.op.lists == "elements"):
                return self.op.function(value, self.parameters)
            inner = self.op.function(Value(expr=pl.element(), dtype=element_type(value.dtype)), self.parameters)
        except SpecError as error:
            raise OpError(self.path, f"{self.op.name}: {error}") from None
        return Value(expr=value.expr.list.eval(inner.expr), dtype=pl.List(inner.dtype))

    @property
    def identity(self) -> tuple[str, int, str]:
        """What the op does to values, for fingerprints: name, version, parameters with their defaults as JSON."""
        return self.op.name, self.op.version, self.parameters.model_dump_json()


OPS: dict[str, Op] = {}


def op(
    *,
    takes: Iterable[str],
    gives: str,
    lists: Lists = "elements",
    version: int = 1,
    parameters: type[Parameters] = NoParameters,
    examples: tuple[Example, ...],
) -> Callable[[Callable[[Value, P], Value]], Callable[[Value, P], Value]]:
    """Declares the decorated function as the op of its name; its docstring is the op's documentation.

    Args:
        takes: the kinds of elements it takes.
        gives: what comes out, in words.
        lists: how it meets lists, see `Op`.
        version: to be raised whenever the same call gives other values; part of every fingerprint.
        parameters: the model of its parameters.
        examples: at least one.
    """

    def declare(function: Callable[[Value, P], Value]) -> Callable[[Value, P], Value]:
        name = function.__name__.rstrip("_")
        if name in OPS:
            raise AssertionError(f"op {name} is declared twice")
        OPS[name] = Op(
            name=name,
            version=version,
            placement=function.__module__.rpartition(".")[2],
            parameters=parameters,
            takes=frozenset(takes),
            lists=lists,
            gives=gives,
            text=inspect.cleandoc(function.__doc__ or ""),
            examples=examples,
            function=function,
        )
        return function

    return declare


def example(name: str, arguments: Any, dtype: pl.DataType, given: Iterable[Any], result: Iterable[Any]) -> Example:
    """`arguments` as they stand in YAML behind the op's name; None for a bare word."""
    value = {} if arguments is None else arguments if isinstance(arguments, dict) else {"": arguments}
    call = OpCall(op=name, arguments=json.dumps(value))
    return Example(call=call, dtype=dtype, given=tuple(given), result=tuple(result))


def resolve(call: OpCall) -> BoundOp:
    """The op that a call names, with its parameters checked. Raises OpError."""
    found = OPS.get(call.op)
    if found is None:
        raise OpError(call.path, unknown("op", call.op, OPS))
    arguments = call.value
    place: Path = (*call.path, found.name)
    if arguments and not found.fields:
        raise OpError(place, f"{found.name} takes no parameters: got {met(arguments.get('', arguments))}")
    if "" in arguments:
        arguments = {found.fields[0]: arguments[""]}
    else:
        for key in arguments:
            if key not in found.fields:
                raise OpError((*place, key), unknown(f"parameter of {found.name}", key, found.fields))
    try:
        parameters = found.parameters.model_validate_json(json.dumps(arguments))
    except ValidationError as error:
        raise _complaint(found, place, error, bare="" in call.value) from None
    return BoundOp(op=found, parameters=parameters, path=call.path)


def _complaint(op: Op, place: Path, error: ValidationError, *, bare: bool) -> OpError:
    """The first wrong parameter as a sentence; a union's members complain one by one about the same value."""
    details = error.errors(include_url=False)
    first = details[0]
    if first["type"] == "missing":
        missing = first["loc"][0]
        return OpError(place[:-1], f"{op.name} needs {missing}: write {{{op.name}: {{{missing}: …}}}}")
    where = _steps(first["loc"])
    if first["type"] == "value_error":  # a rule that no type says, in the model's own words
        return OpError(place if bare else (*place, *where), f"{op.name}: {first['ctx']['error']}")
    same = [detail for detail in details if _steps(detail["loc"]) == where]
    choices = dict.fromkeys(_expectation(detail["msg"]) for detail in same)
    numbers = any(choice.endswith("number") for choice in choices)
    expected = " or ".join(choice for choice in choices if not (choice == "an integer" and numbers))
    name = path_text((op.name, *where))
    near = difflib.get_close_matches(str(first["input"]), _QUOTED.findall(expected), n=1)
    remedy = f". Did you mean {near[0]!r}?" if near else ""
    return OpError(place if bare else (*place, *where), f"{name} must be {expected}: got {met(first['input'])}{remedy}")


def _expectation(message: str) -> str:
    words = message.removeprefix("Input should be ")
    for pydantics, ours in (("a valid integer", "an integer"), ("a valid array", "a list"), ("a valid ", "a ")):
        words = words.replace(pydantics, ours)
    return words


def _steps(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The parameter and the positions inside it, without the names of a union's members."""
    return (*location[:1], *(step for step in location[1:] if isinstance(step, int)))


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
        return ". Take a number out of it with expr, such as `expr: NAME.dt.hour()`"
    return '. Take one field of it with expr, such as `expr: NAME["field"]`' if kind.element == STRUCT else ""


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


_VARIABLE = {"type": "string", "pattern": r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$", "description": "From the environment."}


def op_schema() -> dict[str, Any]:
    """The JSON Schema of one op as it stands in a list of ops: a word, or a map of one key {op: parameters}."""
    properties: dict[str, Any] = {}
    for found in OPS.values():
        if not found.fields:
            continue
        schema = found.parameters.model_json_schema()
        parameters = {
            name: {
                **{key: value[key] for key in ("description", "default") if key in value},
                "anyOf": [_bare_schema(value), _VARIABLE],
            }
            for name, value in schema["properties"].items()
        }
        mapping = {
            "type": "object",
            "properties": parameters,
            "required": schema.get("required", []),
            "additionalProperties": False,
        }
        first = parameters[found.fields[0]]["anyOf"]
        others_required = set(schema.get("required", [])) - {found.fields[0]}
        choices = [mapping] if others_required else [*first, mapping]
        properties[found.name] = {"description": _summary(found), "anyOf": choices}
    words = [found.name for found in OPS.values() if found.is_word]
    calls = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
    return {"description": "An op: a word, or {op: parameters}.", "anyOf": [{"enum": words}, calls]}


def document() -> str:
    """The text of docs/ops.md: every op with what it takes and gives, its parameters, semantics and examples."""
    parts = [
        "# Ops",
        "Generated from the declarations in `feedline/transforms`; do not edit.",
        (
            "An op stands in a feature's list of ops, as a word or as a map of one key, where a bare value is the op's "
            "first parameter: `price: [{fill_null: 0}, log1p]`, `price: [{clip: {min: 0, max: 1}}]`. Ops are "
            "applied in order. An op on numbers or strings works on the elements of lists too where it says so; a null "
            "list stays null, and becomes an empty list in the batch. The version of an op is part of the fingerprint "
            "of a pipeline's features."
        ),
    ]
    for placement, title in (
        ("dense", "Dense: normalisation"),
        ("sparse", "Sparse: ids and lists"),
        ("generated", "Generated"),
    ):
        parts.append(f"## {title}")
        for found in OPS.values():
            if found.placement == placement:
                parts.extend(_section(found))
    return "\n\n".join(parts) + "\n"


def _section(found: Op) -> Iterable[str]:
    yield f"### {found.name}"
    yield found.text
    yield f"Takes {found.taken}; gives {found.gives}. Version {found.version}."
    if found.fields:
        lines = ["| parameter | type | default | |", "|---|---|---|---|"]
        for name, value in found.parameters.model_json_schema()["properties"].items():
            required = found.parameters.model_fields[name].is_required()
            default = "required" if required else _flow(value.get("default"))
            lines.append(f"| `{name}` | {_type_words(value)} | {default} | {value.get('description', '')} |")
        yield "\n".join(lines)
    lines = ["| example | type | values | become |", "|---|---|---|---|"]
    for shown in found.examples:
        cells = (_flow(shown.call.written()), describe(shown.dtype), _flow(shown.given), _flow(shown.result))
        lines.append("| " + " | ".join(f"`{cell}`" for cell in cells) + " |")
    yield "\n".join(lines)


def _summary(found: Op) -> str:
    return found.text.partition("\n\n")[0].replace("\n", " ")


def _bare_schema(schema: dict[str, Any]) -> dict[str, Any]:
    bare = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
    if "anyOf" in bare:  # None is what Python calls a parameter that was left out
        bare["anyOf"] = [choice for choice in bare["anyOf"] if choice != {"type": "null"}]
    return bare


def _type_words(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        words = dict.fromkeys(_type_words(choice) for choice in _bare_schema(schema)["anyOf"])
        return _listed([word for word in words if not (word == "integer" and "number" in words)])
    if schema["type"] == "array":
        return f"list of {_type_words(schema['items'])}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if schema.get(key, MAX_INT) != MAX_INT]
    return " ".join([schema["type"], ", ".join(bounds)]).strip()


_BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}


def _flow(value: object) -> str:
    """A value as YAML writes it on one line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), repr(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, bytes):
        return json.dumps(value.decode("latin-1"))
    plain = isinstance(value, str) and value.replace("_", "").replace(" ", "").isalnum() and not value[:1].isdigit()
    return str(value) if plain and value not in ("null", "true", "false") else json.dumps(value, ensure_ascii=False)
