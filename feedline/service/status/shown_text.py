"""Texts that a page without a login may show: without secrets, and without values of rows.

Runs in: the feeder. Pure.
"""

from __future__ import annotations

import re
from functools import lru_cache

from feedline.warehouse.storage.faults import safe_text

# Errors begin with the thing and the rule; what follows this word quotes the value that broke it.
_GOT = ": got "
# Measures of quality that are values of rows, in a complaint about an expectation.
_VALUES = re.compile(r"\bgot (min|max) [^,;]+")


def shown_text(text: str) -> str:
    """A line of a log or an error, up to the value that it quotes."""
    head, got, _ = safe_text(text).partition(_GOT)
    return f"{head} (the log has the value)" if got else head


@lru_cache(maxsize=1024)  # the same few, once a second
def shown_finding(complaint: str) -> str:
    """A complaint about the quality of a feature: with rates and counts, without its smallest and largest value."""
    return _VALUES.sub(r"got \1 …", safe_text(complaint))
