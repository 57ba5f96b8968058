"""The codec of messages between processes: dataclasses as JSON, checked field by field.

Runs in: every process, the Dask scheduler included, so it imports nothing but the standard library. A packed message
begins with the wire version: one of another version is refused before its fields are looked at. A missing, an unknown
or a wrongly typed field is refused by class and name. Fields are integers, floats, booleans, strings, bytes (base64),
Literals, tuples, mappings, dataclasses and classes with a string of JSON of their own (`BatchSchema`), each with None.
A field whose name is a keyword ends with an underscore, which its key has not.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from feedline.dataclass import dataclass
from feedline.errors import FeederError

# Raise it with every change of a message; a test holds the messages of each version.
WIRE_VERSION = 22

T = TypeVar("T")


def pack(message: object, kind: str | None = None) -> bytes:
    """A message as JSON. kind: its name among several, for `unpack_kind`."""
    head = {"wire": WIRE_VERSION} if kind is None else {"wire": WIRE_VERSION, "type": kind}
    return json.dumps(head | to_values(message)).encode()


def unpack(cls: type[T], content: bytes | str) -> T:
    """The message of a class. Raises FeederError for another wire version, or if it is malformed."""
    return from_values(cls, _open(content, cls.__name__))


def unpack_kind(kinds: Mapping[str, type[Any]], content: bytes | str) -> Any:
    """The message of one of these classes, by its kind. Raises FeederError as `unpack`."""
    values = _open(content, "a message")
    kind = values.pop("type", None)
    if kind not in kinds:
        raise _malformed_error("type", kind, f"one of {', '.join(kinds)}")
    return from_values(kinds[kind], values)


def to_values(message: object) -> dict[str, Any]:
    """A message's fields as plain values, which JSON holds."""
    return {
        key: value if (value := getattr(message, name)) is None or form.write is None else form.write(value)
        for name, key, form, _ in _fields(type(message))
    }


def from_values(cls: type[T], values: object) -> T:
    """The inverse of `to_values`. Raises FeederError if a field is missing, unknown or of another type."""
    if not isinstance(values, Mapping):
        raise FeederError(f"a message is malformed: got {values!r:.80}, expected the JSON of {cls.__name__}")
    arguments: dict[str, Any] = {}
    owner = f"{cls.__name__}."
    for name, key, form, is_required in _fields(cls):
        if key in values:
            arguments[name] = form.read(values[key], owner, key)
        elif is_required:
            raise _malformed_error(owner + key, "nothing", form.expected)
    if len(arguments) < len(values):
        unknown = next(iter(set(values) - {key for _, key, _, _ in _fields(cls)}))
        raise _malformed_error(owner + unknown, values[unknown], "no such field")
    return cls(**arguments)


def _open(content: bytes | str, name: str) -> dict[str, Any]:
    """The values of a packed message, without its version."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise FeederError(f"a message is malformed: got {content!r:.80}, expected the JSON of {name}")
    version = values.pop("wire", None)
    if version != WIRE_VERSION:
        raise FeederError(
            f"the other process is of another release: got a message of wire version {version}, expected "
            f"{WIRE_VERSION}. Install one version of Feedline everywhere, and restart both processes"
        )
    return values


@dataclass(frozen=True, slots=True)
class _Form:
    """How the values of an annotation cross. types: of its JSON (None: any). parse: a value of these types, with its
    name for errors, and write: both None where the value stays as it is."""

    expected: str
    types: tuple[type, ...] | None
    parse: Callable[[Any, str], Any] | None = None
    write: Callable[[Any], Any] | None = None

    def read(self, value: object, owner: str, key: object) -> Any:
        """The value of a message's JSON. owner, key: name it in errors."""
        if self.types is not None and type(value) not in self.types:
            raise _malformed_error(f"{owner}{key}", value, self.expected)
        return value if self.parse is None else self.parse(value, f"{owner}{key}")


def _text_form(expected: str, parse: Callable[[str], Any], write: Callable[[Any], str]) -> _Form:
    """Of values that are a string in JSON."""

    def read(value: str, name: str) -> Any:
        try:
            return parse(value)
        except (KeyError, TypeError, ValueError):
            raise _malformed_error(name, value, expected) from None

    return _Form(expected, (str,), read, write)


_PLAIN = {
    int: _Form("an integer", (int,)),
    float: _Form("a number", (float, int), lambda value, _: float(value)),
    bool: _Form("true or false", (bool,)),
    str: _Form("a string", (str,)),
    NoneType: _Form("null", (NoneType,)),
    Any: _Form("a value", None),
    bytes: _text_form("base64", partial(b64decode, validate=True), lambda value: b64encode(value).decode()),
}


def _find_fields(cls: type[Any]) -> list[tuple[str, str, _Form, bool]]:
    """Name, key and form of each field, and whether it is required."""
    hints = get_type_hints(cls)
    required = {each.name for each in fields(cls) if each.default is each.default_factory is MISSING}
    return [(name, name.removesuffix("_"), _form(hints[name]), name in required) for name in hints]


_fields: Any = cache(_find_fields)


def _form(annotation: Any) -> _Form:
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Literal:
        return _literal(parts)
    if origin is UnionType and parts[1:] == (NoneType,):
        return _optional(_form(parts[0]))
    if origin is tuple and parts[1:] == (...,):
        return _tuple(_form(parts[0]))
    if origin is not None and issubclass(origin, Mapping) and parts[0] is str:
        return _mapping(_form(parts[1]))
    cls: Any = annotation
    if hasattr(cls, "to_json"):
        return _text_form(f"the JSON of {cls.__name__}", cls.from_json, cls.to_json)
    if is_dataclass(annotation):
        return _Form(f"the JSON of {cls.__name__}", (dict,), lambda value, _: from_values(cls, value), to_values)
    raise TypeError(f"no message can hold {annotation}")


def _literal(values: tuple[object, ...]) -> _Form:
    expected = f"one of {', '.join(map(str, values))}"

    def parse(value: object, name: str) -> object:
        if value not in values:
            raise _malformed_error(name, value, expected)
        return value

    return _Form(expected, tuple({type(value) for value in values}), parse)


def _optional(form: _Form) -> _Form:
    def parse(value: object, name: str) -> Any:
        return value if value is None or form.parse is None else form.parse(value, name)

    return _Form(f"{form.expected} or null", (*(form.types or ()), NoneType), parse, form.write)


def _tuple(item: _Form) -> _Form:
    def parse(values: list[Any], name: str) -> tuple[Any, ...]:
        return tuple([item.read(value, name, [index]) for index, value in enumerate(values)])

    write = item.write
    return _Form("a list", (list,), parse, list if write is None else lambda values: [write(each) for each in values])


def _mapping(item: _Form) -> _Form:
    if item.write is not None:
        raise TypeError("the values of a mapping are written as they are")

    def parse(values: dict[str, Any], name: str) -> dict[str, Any]:
        return {key: item.read(value, name, [key]) for key, value in values.items()}

    return _Form("a mapping", (dict,), parse, dict)


def _malformed_error(name: str, value: object, expected: str) -> FeederError:
    return FeederError(f"a message is malformed: got {value!r:.80} as {name}, expected {expected}")
