"""Change a pipeline.yaml for one run: overrides by dotted key, and environment variables.

Pure. An override replaces the value at its key (`features.dense."a.b"` quotes a name with a dot) and creates the
mappings in between. Overrides are applied in order, before variables and before validation; errors name the override
instead of a line. Then `${NAME}` in every string is replaced: a string that is nothing but `${NAME}` becomes the
variable's content read as an unquoted YAML scalar, any other stays a string; `$$` is one `$`.
"""

from __future__ import annotations

import json
import math
import operator
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, SupportsIndex

from feedline.config.yaml_document import (
    MAX_DEPTH,
    SURROGATE,
    Document,
    Path,
    Position,
    Problems,
    describe_value,
    path_text,
    read_document,
    resolve_scalar,
)
from feedline.errors import SpecError

_VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|(?P<wrong>\{[^}]*\}?))")
_WORD = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_DECODER = json.JSONDecoder()


class CommandLineOverrides(dict[str, object]):
    """Overrides from `--set KEY=VALUE`: errors about them say so."""


def parse_overrides(arguments: Iterable[str]) -> dict[str, object]:
    """`["batch.tail=pad", "shuffle={seed: 3}"]` as a mapping from key to value; the last of equal keys wins.

    A value that starts with `[` or `{` is flow-style YAML, a wholly quoted one is that string; any other is one
    unquoted scalar, whatever colons, commas or hashes it contains, so that an expression needs no second quoting.
    """
    overrides = CommandLineOverrides()
    for argument in arguments:
        label = f"--set {argument}"
        path, rest = _split_key(argument, label, stop="=")
        if not rest.startswith("="):
            raise SpecError(f"{label}: no value: expected KEY=VALUE. An empty value is KEY=null")
        key = path_text(path)
        overrides.pop(key, None)
        overrides[key] = _parse_value(rest[1:].strip(), f"--set {key}")
    return overrides


def _parse_value(text: str, label: str) -> object:
    if text.startswith(("[", "{")):
        return read_document(text, label).value
    if text.startswith(('"', "'")) and text.endswith(text[0]):
        try:
            value = read_document(text, label).value
        except SpecError:  # `"a" == b or c == "d"`: an expression that begins and ends with a quote
            return text
        return value if isinstance(value, str) else text
    try:
        return resolve_scalar(text)
    except ValueError as error:
        raise SpecError(f"{label}: {error}") from error


def _split_key(text: str, label: str, stop: str = "") -> tuple[Path, str]:
    """The parts of a dotted key, and the rest of the string from the first unquoted `stop` character."""
    parts: list[str] = []
    position = -1
    bare = re.compile(rf'[^."{stop}]*')
    while not parts or text.startswith(".", position):
        position += 1
        if text.startswith('"', position):
            try:
                part, position = _DECODER.raw_decode(text, position)
            except json.JSONDecodeError as error:
                raise SpecError(f'{label}: a quote in the key is not closed: expected features.dense."a.b"') from error
        else:
            match = bare.match(text, position)
            part, position = (match.group().strip(), match.end()) if match else ("", position)
        if not part:
            raise SpecError(
                f"{label}: not a key: got {describe_value(text)}, expected words with dots, as in batch.tail"
            )
        parts.append(part)
    if text[position : position + 1] not in ("", *stop):
        raise SpecError(
            f"{label}: not a key: got {describe_value(text)}: a quoted name must be a whole part, as in "
            'features.dense."a.b"'
        )
    return tuple(parts), text[position:]


def apply_overrides(document: Document, overrides: Mapping[str, object]) -> None:
    """Write each override into the document, in order, with the override as the position of what it wrote.

    Raises:
        SpecError: a key is not a dotted path, leads into a scalar or list, or YAML cannot represent a value.
    """
    for key, value in overrides.items():
        label = f"--set {key}" if isinstance(overrides, CommandLineOverrides) else f"set[{json.dumps(str(key))}]"
        if not isinstance(key, str):
            raise SpecError(f"{label}: not a key: got {type(key).__name__}, expected a string such as 'batch.tail'")
        path, _ = _split_key(key, label)
        position = Position(override=label)
        if not isinstance(document.value, dict):
            raise document.error((), "not a mapping: expected the keys of a pipeline")
        target: Any = document.value
        name = path_text(path)
        for depth, part in enumerate(path[:-1], start=1):
            if isinstance(target, list):
                target, path = _item(target, path, depth, label)
                continue
            if target.get(part) is None:
                target[part] = {}
                _forget(document, path[:depth])
                document.positions[path[:depth]] = document.key_positions[path[:depth]] = position
            items = target[part] if path[:depth] == ("sources",) and isinstance(target[part], list) else None
            if not isinstance(target[part], dict) and not items:
                whole = path_text(path[:depth])
                message = f"{whole} has no keys to set: got {describe_value(target[part])}. Set {whole} as a whole"
                raise SpecError(f"{label}: {message}")
            target = target[part]
        if isinstance(target, list):
            _, path = _item(target, path, len(path), label)
        target[path[-1]] = document.overrides[name] = plain_value(value, label)
        _forget(document, path)
        document.positions[path] = document.key_positions[path] = position


def _item(items: list[Any], path: Path, depth: int, label: str) -> tuple[Any, Path]:
    """The item of a list that a part of the path numbers, and the path with its index."""
    whole, part = path_text(path[: depth - 1]), str(path[depth - 1])
    if not part.isdecimal() or int(part) >= len(items):
        message = f"{whole} has no item {part!r}: got {len(items)}, expected a number from 0 to {len(items) - 1}"
        raise SpecError(f"{label}: {message}, as in {whole}.0.where")
    return items[int(part)], (*path[: depth - 1], int(part), *path[depth:])


def override_options(overrides: Mapping[str, Any]) -> str:
    """Options for a shell that `parse_overrides` reads as these overrides, each with a space before it."""
    settings = [f"{_option_key(key)}={_option_value(value)}" for key, value in overrides.items()]
    return "".join(f" --set {shlex.quote(setting)}" for setting in settings)


def _option_key(key: str) -> str:
    path, _ = _split_key(key, key)
    parts = map(str, path)
    return ".".join(json.dumps(part, ensure_ascii=False) if "=" in part else path_text((part,)) for part in parts)


def _option_value(value: Any) -> str:
    if not isinstance(value, str):
        return flow_text(value)
    plain = value.isprintable() and value == value.strip() and not value.startswith(("[", "{", '"', "'"))
    return value if plain and _is_string(value) else flow_text(value)


def flow_text(value: Any) -> str:
    """A value as YAML in flow style, bytes as a string."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow_text(name)}: {flow_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow_text, value)) + "]"
    if isinstance(value, datetime):
        return str(value)
    value = value.decode("latin-1") if isinstance(value, bytes) else value
    if isinstance(value, str) and _WORD.fullmatch(value) and _is_string(value):
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)


def _is_string(text: str) -> bool:
    try:
        return resolve_scalar(text) == text
    except ValueError:
        return False


def _forget(document: Document, path: Path) -> None:
    for table in (document.positions, document.key_positions):
        for below in [key for key in table if key[: len(path)] == path]:
            del table[below]


def plain_value(value: object, label: str, depth: int = 0) -> Any:
    """A copy of a Python value that consists of dicts, lists, strings, numbers, booleans and None."""
    if depth > MAX_DEPTH:
        raise SpecError(f"{label}: nested too deeply: expected at most {MAX_DEPTH} levels")
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str) and SURROGATE.search(value):
        raise SpecError(f"{label}: not UTF-8: got a lone surrogate in a string")
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, SupportsIndex):
        return operator.index(value)
    if isinstance(value, Mapping):
        if bad_keys := [key for key in value if not isinstance(key, str) or not key]:
            raise SpecError(f"{label}: key is not a name: got {bad_keys[0]!r}, expected a non-empty string")
        return {key: plain_value(item, label, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item, label, depth + 1) for item in value]
    kinds = "a string, number, boolean, None, list or mapping"
    raise SpecError(f"{label}: not a value of a pipeline: got {type(value).__name__}, expected {kinds}")


def substitute_variables(document: Document, environment: Mapping[str, str]) -> None:
    """Replace `${NAME}` and `$$` in every string of the document.

    Raises:
        SpecError: one line for each variable that is not set and each `${` without a name.
    """
    problems = Problems(document)

    def walk(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            return {key: walk(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "$" not in value:
            return value
        try:
            new = _substitute(value, environment)
        except ValueError as error:
            problems.add(path, str(error))
            return value
        if (match := _VARIABLE.fullmatch(value)) and match["name"]:
            document.positions[path] = replace(document.position(path), variable=match["name"])
        return new

    document.value = walk(document.value, ())
    problems.raise_all()


def _substitute(text: str, environment: Mapping[str, str]) -> bool | int | float | str | None:
    def value_of(match: re.Match[str]) -> str:
        if match["wrong"]:
            raise ValueError(f"not a variable: got {'$' + match['wrong']!r}, expected ${{NAME}}. A plain ${{ is $${{")
        if not match["name"]:
            return "$"
        if match["name"] not in environment:
            raise ValueError(f"environment variable {match['name']} is not set: expected a value for {match.group()}")
        if SURROGATE.search(environment[match["name"]]):
            raise ValueError(f"environment variable {match['name']} is not UTF-8: expected a UTF-8 string")
        return environment[match["name"]]

    new = _VARIABLE.sub(value_of, text)
    whole = _VARIABLE.fullmatch(text)
    return resolve_scalar(new.strip()) if whole and whole["name"] else new
