"""Write figures as people read them in a comment: `12.4 M`, `3.1 %`.

Pure.
"""

from __future__ import annotations

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
