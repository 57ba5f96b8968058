"""Blocks of code in a page of the documentation.

The words after ``` are the language, and `fragment` if the block is not run: of Python with a reason, as in
"python fragment: it needs a GPU".
"""

from __future__ import annotations

import re

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_BOXES = re.compile(r"[│┃\s]+")


def assert_printed(shown: str, printed: str) -> None:
    """Check that each line that a page shows is in a line of an output; "…" is what varies, borders are ignored."""
    lines = [_words(line) for line in printed.splitlines()]
    for line in shown.splitlines():
        pattern = ".*?".join(re.escape(_words(part)) for part in line.split("…"))
        assert any(re.search(pattern, each) for each in lines), f"not printed: {line}\n{printed}"


def _words(line: str) -> str:
    return _BOXES.sub(" ", line).strip()
