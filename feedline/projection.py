"""How is a part of a column named: a map's value that a table keeps as a column of its own?

Runs in: every process. Pure.
"""

from __future__ import annotations


def flattened_name(column: str, key: str | int) -> str:
    """The top-level column that holds the values of one key of a map column: `features_map.price`, `weights.7`."""
    return f"{column}.{key}"
