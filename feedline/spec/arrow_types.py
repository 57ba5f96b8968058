"""Parse names of Arrow types, such as `decimal128(9, 2)` or `list<float32>`.

Pure; runs wherever a pipeline.yaml is read. The names are Arrow's own, as `str(type)` shows them, with the aliases that
people use: int, long, float, double, str, date, datetime, `T[]` for a list.
"""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pyarrow as pa

_OWN_NAMES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
    *("string", "large_string", "binary", "large_binary", "date32"),
)
_TYPES = {
    **{name: getattr(pa, name)() for name in _OWN_NAMES},
    "bool": pa.bool_(),
    # aliases
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int64(),
    "integer": pa.int64(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "half": pa.float16(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "str": pa.string(),
    "text": pa.string(),
    "utf8": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "date32[day]": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "datetime": pa.timestamp("us"),
}
_UNITS = ("s", "ms", "us", "ns")
_TIMESTAMP = re.compile(r"timestamp\[ *(\w+) *(?:, *(?:tz *= *)?([\w/+:-]+) *)?\]")
_DECIMAL = re.compile(r"decimal(128|256)? *\( *(\d{1,2}) *, *(\d{1,2}) *\)")
_LIST = re.compile(r"(large_)?list *< *(?:(?:item|element) *: *)?(.+?) *>", re.DOTALL)
_MAX_DEPTH = 8


def parse_type(text: str, *, depth: int = 0) -> pa.DataType:
    """The type of that name. Raises ValueError, which lists the names, for any other."""
    text = text.strip()
    if text.lower() in _TYPES:
        return _TYPES[text.lower()]
    if text.endswith("[]") and depth < _MAX_DEPTH:
        return pa.list_(parse_type(text[:-2], depth=depth + 1))
    if (match := _LIST.fullmatch(text)) and depth < _MAX_DEPTH:
        item = parse_type(match[2], depth=depth + 1)
        return pa.large_list(item) if match[1] else pa.list_(item)
    if (match := _TIMESTAMP.fullmatch(text)) and match[1] in _UNITS and _is_zone(match[2]):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        digits, scale = int(match[2]), int(match[3])
        if 1 <= digits <= (76 if match[1] == "256" else 38) and scale <= digits:
            return pa.decimal256(digits, scale) if match[1] == "256" else pa.decimal128(digits, scale)
    raise ValueError(
        f"{text!r} is not the name of a type: expected int8 to int64, uint8 to uint64, float16, float32, float64, "
        "bool, string, binary, date32, timestamp[us], timestamp[us, UTC], decimal128(9, 2), or list<…> of one"
    )


def _is_zone(name: str | None) -> bool:
    if name is None or re.fullmatch(r"[+-]\d\d:\d\d", name):
        return True
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True
