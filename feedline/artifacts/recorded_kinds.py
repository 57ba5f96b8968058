"""The kind of values that a recorded Arrow type stands for.

Pure.
"""

from __future__ import annotations

import re

_LIST = re.compile(r"(?:large_|fixed_size_)?list(?:_view)?<[^:]+: (.*?)(?: not null)?>(?:\[\d+\])?")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")
_KINDS = (
    (re.compile(r"u?int\d+"), "integer"),
    (re.compile(r"halffloat|float|double"), "float"),
    (re.compile(r"(large_)?string(_view)?"), "string"),
    (re.compile(r"(large_)?binary(_view)?"), "binary"),
)


def kind_of(arrow_type: str) -> str:
    """Reduce an Arrow type to the kind that a fit depends on: integer, float, string, binary, or lists of them."""
    if (match := _LIST.fullmatch(arrow_type)) is not None:
        return f"list of {kind_of(match[1])}"
    if (match := _DICTIONARY.fullmatch(arrow_type)) is not None:
        return kind_of(match[1])
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(arrow_type)), arrow_type)
