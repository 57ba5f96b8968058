"""Say in words what a value of a pipeline.yaml must be, from pydantic's error about it.

Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from pydantic_core import ErrorDetails

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("greater than", "gt"),
    "less_than": ("less than", "lt"),
}
_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_too_short": "a non-empty string",
}


def expectation_of(detail: ErrorDetails, keys: Sequence[str]) -> tuple[str, str]:
    """What a value must be, by pydantic's type of error, and the usual remedy for the value found. keys: of the section
    at its position, if it is one."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "expected":
        return context["expected"], context["remedy"]
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
        near = difflib.get_close_matches(str(value).lower(), words, n=1)
        remedy = f"Did you mean {near[0]}?" if near and len(words) > 1 else ""
        return (f"one of {', '.join(words)}" if len(words) > 1 else words[0]), remedy
    if kind == "model_type" and keys:
        remedy = "" if value is not None else "Write one of its keys below it"
        return f"a mapping with the keys {', '.join(keys)}", remedy
    if kind in _BOUNDS:
        bound, key = _BOUNDS[kind]
        limit = f"{context[key]:.17g}" if key in ("gt", "lt") else context[key]
        return f"{bound} {limit}", ""
    return _TYPES.get(kind, f"valid ({detail['msg']})"), _remedy(kind, value)


def _remedy(kind: str, value: object) -> str:
    if kind == "string_type":
        return "Quote it" if isinstance(value, (bool, int, float)) else ""
    if kind == "bool_type":
        return "YAML 1.2 has no other booleans" if isinstance(value, str) else ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        return f"Write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(_[0-9]+)*", value):
        return f"Write {value.replace('_', '')}, without quotes or underscores"
    return ""
