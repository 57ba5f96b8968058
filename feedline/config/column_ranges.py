"""Expand a range in a name, `C{1..26}` or `C{01..26}`, and read lists of names in an option, `a,"b,c"`.

Pure. There is no wildcard: a column that is added to the table does not become an input of a trained model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
_LISTED = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,"]*))\s*(?:,|$)')
_BARE = re.compile(r"[^\s,\"{}]+")
_MAX_NAMES = 10_000  # a typo such as {1..100000000} must not fill the memory


def has_range(name: str) -> bool:
    """Whether the name contains a range, or braces that look like one, which `expand` refuses."""
    return _BRACES.search(name) is not None


def expand_range(name: str) -> list[str]:
    """The names that a name with a range stands for, in order; a name without a range stands for itself. Raises
    ValueError for other braces, such as `{a,b}`, two ranges, a descending range, and more than 10,000 names."""
    ranges = _RANGE.findall(name)
    wrong = _BRACES.search(_RANGE.sub("", name))
    if wrong is not None:
        raise ValueError(
            f"braces in a name are for a range of numbers: got {wrong.group()!r} in {name!r}, expected for example "
            "{1..26}. Write an entry for each name"
        )
    if not ranges:
        return [name]
    if len(ranges) > 1:
        raise ValueError(
            f"a name may contain only one range: got {name!r}. Write an entry for each value of one of them"
        )
    [(first, last)] = ranges
    count = int(last) - int(first) + 1
    if count < 1:
        raise ValueError(f"a range must ascend: got {name!r}. Write {{{last}..{first}}}")
    if count > _MAX_NAMES:
        raise ValueError(f"a range must have at most {_MAX_NAMES:,} names: got {count:,} in {name!r}")
    width = len(first) if first.startswith("0") else 0  # C{08..10} -> C08, C09, C10; C{8..10} -> C8, C9, C10
    before, after = _RANGE.split(name)[0], _RANGE.split(name)[-1]
    return [f"{before}{number:0{width}}{after}" for number in range(int(first), int(last) + 1)]


def split_names(text: str, *, ranges: bool = False) -> tuple[str, ...]:
    """The names in a list `a,b,"c,d"`. Quoted ones are taken as they are, with `""` for a quote; `ranges` in others are
    expanded. Raises ValueError for a list that does not end where a name does, and as `expand` does."""
    names: list[str] = []
    position = 0
    while position < len(text):
        found = _LISTED.match(text, position)
        if found is None:
            raise ValueError(f'a list of names is malformed: got {text!r}, expected a,b or, quoted, "a,b",c')
        position = found.end()
        if found[1] is not None:
            names.append(found[1].replace('""', '"'))
        elif word := found[2].strip():
            names += expand_range(word) if ranges else [word]
    return tuple(names)


def join_names(names: Iterable[str]) -> str:
    """The list that `split_names` reads as these names."""
    return ",".join(name if _BARE.fullmatch(name) else '"' + name.replace('"', '""') + '"' for name in names)
