"""Quote names, strings and times for YAML and for the expression language, and write figures as people read them.

Pure. Column names may hold anything that Parquet holds: spaces, dots, quotes, line breaks, `${`, braces.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence

from feedline.config.column_ranges import has_range
from feedline.config.yaml_document import resolve_scalar

_WORD = r"[A-Za-z0-9_./+()<>=%*-]+"
# Strings that need no quotes anywhere in YAML: words of an expression or a path, and URIs.
_PLAIN = re.compile(rf"(?=[A-Za-z_./]){_WORD}( {_WORD})*|[a-z][a-z0-9+]*://[A-Za-z0-9_./=-]+")
_NOT_PLAIN_WORDS = {"y", "n", "yes", "no", "on", "off"}  # booleans of YAML 1.1, as other readers take them


def yaml_key(text: str) -> str:
    """A key of a mapping. Variables are not replaced in keys."""
    if _PLAIN.fullmatch(text) and text.lower() not in _NOT_PLAIN_WORDS and resolve_scalar(text) == text:
        return text
    if '"' in text and text.isprintable() and "'" not in text:
        return f"'{text}'"
    return '"' + "".join(map(_escaped, text)) + '"'


def yaml_string(text: str) -> str:
    """A string value, in which `$` is doubled where it would begin a variable."""
    return yaml_key(text.replace("$", "$$"))


def yaml_value(value: object) -> str:
    """A plain value in flow style."""
    if isinstance(value, str):
        return yaml_string(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{yaml_key(str(key))}: {yaml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(yaml_value, value)) + "]"
    return json.dumps(value)


def comment(text: str) -> str:
    """A text on one line, in which characters that end a line or are not printable are escaped."""
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def column_expr(name: str) -> str:
    """The column in an expression."""
    if name.isascii() and name.isidentifier() and not keyword.iskeyword(name):
        return name
    return f"col({string_literal(name)})"


def string_literal(text: str) -> str:
    """A string in an expression."""
    return '"' + "".join(map(_escaped, text)) + '"'


def feature_name(column: str, taken: set[str]) -> str:
    """A name for a feature that no other has: the column's, where that may name a feature. Adds it to `taken`."""
    name = column if column.strip() else "unnamed"
    if has_range(name):
        name = name.replace("{", "(").replace("}", ")")
    unique, number = name, 2
    while unique in taken:
        unique, number = f"{name}_{number}", number + 1
    taken.add(unique)
    return unique


def _escaped(letter: str) -> str:
    """A character within double quotes: YAML's and Python's escapes are the same for these."""
    if letter in '"\\':
        return "\\" + letter
    if letter.isprintable():
        return letter
    code = ord(letter)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# --------------------------------------------------------------------------------------------------------------------
# Write figures as people read them in a comment: `12.4 M`, `3.1 %`.

_WHOLE = 1_000  # from there on numbers have no decimals
_UNITS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k"))


def number(value: float) -> str:
    """A number with three significant digits, thousands as units from 10,000 on."""
    value = float(f"{value:.3g}") if abs(value) >= _UNITS[-1][0] else value  # 999,999 is 1 M
    for size, unit in _UNITS:
        if abs(value) >= size:
            scale = 1e3 if unit == " k" else size
            return f"{value / scale:.3g}{unit}" if abs(value) < 1000 * scale else f"{value / scale:,.0f}{unit}"
    return f"{value:,.0f}" if abs(value) >= _WHOLE or value == int(value) else f"{value:.3g}"


def percent(share: float | None) -> str:
    """A share as a percentage, with as many digits as it takes not to be 0 or 100 by rounding."""
    if share is None:
        return "?"
    for digits in (0, 1, 2):
        if share in (0, 1) or 0 < round(100 * share, digits) < 100:
            return f"{100 * share:.{digits}f} %"
    return "< 0.01 %" if share < 0.5 else "> 99.99 %"


def distinct(count: int, *, exact: bool) -> str:
    """A number of distinct values, marked where it is an estimate."""
    return f"{number(count)} distinct{'' if exact else ' (estimate)'}"
