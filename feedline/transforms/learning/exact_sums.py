"""Sum many numbers exactly, to the last bit, in any order and any partition.

Runs in: workers that fit. Pure numpy. A sum is kept in bins: bin k counts units of 2**(32 k). A value is split bin by
bin from above, t = (x + C) - C with C = 1.5 * 2**(52 + 32 k): t is the nearest multiple of the bin's unit, and x - t is
exact (Rump, Ogita and Oishi 2008; with fixed borders: Demmel and Nguyen 2013). A bin's parts are integers up to 2**31,
which float64 adds without rounding; the remainder continues into lower bins until it is 0. So is the sum of squares,
whose rounding errors (Dekker 1971) are added like other values. `normal` carries units into the next bin when partial
sums are added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Numbers = npt.NDArray[Any]
Bins = dict[int, int]

BIN_BITS = 32
BLOCK_VALUES = 32768  # smaller blocks cost more calls than caches save; sums of parts are exact up to 2**21
SPLITTER = 2.0**27 + 1  # splits 53 bits into twice 26, the second with a sign
EXACT_INTEGERS = 2**53
FEW_BINS = 4  # after this many bins, values without a remainder are dropped

# A power of two that scales extreme values so that neither C nor a square leaves float64; it shifts by whole bins.
SHIFT_BINS = 20
SHIFT = 2.0 ** (SHIFT_BINS * BIN_BITS)
LARGE, SMALL = 2.0**400, 2.0**-400

_TOP_BIN = 30  # the highest bin whose units and sums float64 holds
_HALF = 1 << (BIN_BITS - 1)


def bins_of(values: Numbers, *, squares: bool = False) -> Bins:
    """The exact sum of integers or finite floats, or of their squares, as the units of its bins, in normal form.

    It does not depend on the order of the values; `normal` of the added bins of parts equals the bins of the whole.
    """
    found: Bins = {}
    for start in range(0, len(values), BLOCK_VALUES):
        for shift, term in _terms(values[start : start + BLOCK_VALUES], squares=squares):
            for index, part in _parts(term):
                units = int(np.ldexp(part.sum(), -index * BIN_BITS))
                found[shift + index] = found.get(shift + index, 0) + units
    return normal(found)


def normal(bins: Mapping[int, int]) -> Bins:
    """The same sum with units from -2**31 to 2**31 - 1 and without empty bins, ascending: one form per sum."""
    # {0: 2**31} -> {0: -2**31, 1: 1}
    pending, normal_bins = dict(bins), {}
    while pending:
        index = min(pending)
        units = pending.pop(index)
        low = (units + _HALF) % (2 * _HALF) - _HALF
        if low:
            normal_bins[index] = low
        if above := (units - low) >> BIN_BITS:
            pending[index + 1] = pending.get(index + 1, 0) + above
    return normal_bins


def total(bins: Mapping[int, int]) -> Fraction:
    lowest = min(bins, default=0)
    units = sum(count << ((index - lowest) * BIN_BITS) for index, count in bins.items())
    return units * Fraction(2) ** (lowest * BIN_BITS)


def nearest_float(exact: Fraction) -> float:
    """The nearest float64; an infinity beyond its range."""
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def units_of_each(values: Numbers, *, squares: bool = False) -> dict[int, Integers]:
    """Integers or finite floats, or their squares, split: for each bin the units of each value, int64 [N].

    Adding a bin's units by group gives the group's sum; it fits int64 for up to 2**29 values of a group.
    `normal_groups` carries large units and brings sums into one form.
    """
    found: dict[int, Integers] = {}
    for shift, term in _terms(values, squares=squares):
        for index, part in _parts(term, whole=True):
            units = np.ldexp(part, -index * BIN_BITS, out=part).astype(np.int64)
            at = shift + index
            found[at] = found[at] + units if at in found else units
    return found


def normal_groups(groups: Integers, bins: Integers, units: Integers) -> tuple[Integers, Integers, Integers]:
    """The same sums in normal form (see `normal`), ordered by group and bin, each pair once."""
    while len(groups):
        order = np.lexsort((bins, groups))
        groups, bins, units = groups[order], bins[order], units[order]
        begins = np.flatnonzero(np.r_[True, (groups[1:] != groups[:-1]) | (bins[1:] != bins[:-1])])
        low = ((units + _HALF) & (2 * _HALF - 1)) - _HALF  # carried before the addition, so that no sum overflows
        above = np.add.reduceat((units - low) >> BIN_BITS, begins)
        groups, bins, units = groups[begins], bins[begins], np.add.reduceat(low, begins)
        more = above != 0
        if not more.any() and ((units >= -_HALF) & (units < _HALF)).all():
            some = units != 0
            return groups[some], bins[some], units[some]
        groups = np.concatenate((groups, groups[more]))
        bins, units = np.concatenate((bins, bins[more] + 1)), np.concatenate((units, above[more]))
    return groups, bins, units


def rounded_groups(groups: Integers, bins: Integers, units: Integers, count: int) -> tuple[Floats, Floats]:
    """The sums of `count` groups as float64, and the remainders: together their relative error is at most 2**-95.

    0 for a group without values, an infinity for a sum beyond float64. Independent of the order.
    """
    groups, bins, units = normal_groups(groups, bins, units)
    high, low = np.zeros(count), np.zeros(count)
    lasts = np.searchsorted(groups, np.arange(count), side="right") - 1
    tops = bins[lasts] if len(bins) else np.zeros(count, np.int64)
    down = BIN_BITS * np.maximum(tops - _TOP_BIN, 0)  # the first bin of a sum in range may be out of range itself
    with np.errstate(over="ignore", invalid="ignore"):
        for depth in range(4):  # the highest four bins, from above
            inside = np.flatnonzero(lasts >= depth)
            inside = inside[groups[lasts[inside] - depth] == inside]
            index = lasts[inside] - depth
            part = np.zeros(count)
            part[inside] = np.ldexp(units[index].astype(np.float64), BIN_BITS * bins[index] - down[inside])
            result = high + part
            low += part - (result - high)  # exact, because the added part is never the larger one
            high = result
        result = high + low
        rest = np.ldexp(low - (result - high), down)
        result = np.ldexp(result, down)
    return result, np.where(np.isfinite(result), rest, 0.0)


def _terms(values: Numbers, *, squares: bool) -> Iterator[tuple[int, Floats]]:
    """Float64 terms, with the bins that they are shifted by, whose sum is that of the values (or of the squares).

    Each term is as long as the values and in their order, 0 where a value does not contribute.
    """
    if not len(values):
        return
    if values.dtype.kind in "iu":
        yield from _integer_terms(values, squares=squares)
        return
    wide = values.astype(np.float64)
    if values.dtype.itemsize < 8:
        yield 0, wide * wide if squares else wide  # products of 24 bits are exact and in range
        return
    size = np.abs(wide)
    large, small = size >= LARGE, (size <= SMALL) & (wide != 0) & squares
    if not (large.any() or small.any()):
        yield from _terms_of_products(0, wide, wide) if squares else [(0, wide)]
        return
    for shift, chosen in ((SHIFT_BINS, large), (0, ~(large | small)), (-SHIFT_BINS, small)):
        part = np.where(chosen, wide, 0.0) * SHIFT ** (-shift // SHIFT_BINS)
        yield from _terms_of_products(2 * shift, part, part) if squares else [(shift, part)]


def _integer_terms(values: Numbers, *, squares: bool) -> Iterator[tuple[int, Floats]]:
    if values.dtype.itemsize < 8 or (int(values.max()) <= EXACT_INTEGERS and int(values.min()) >= -EXACT_INTEGERS):
        wide = values.astype(np.float64)
        yield from _terms_of_products(0, wide, wide) if squares else [(0, wide)]
        return
    bits = values.dtype.type(BIN_BITS)
    above = (values >> bits).astype(np.float64)
    below = (values & values.dtype.type(2 * _HALF - 1)).astype(np.float64)
    if not squares:
        yield from ((1, above), (0, below))
        return
    yield from _terms_of_products(2, above, above)
    yield from _terms_of_products(1, above, 2 * below)
    yield from _terms_of_products(0, below, below)


def _terms_of_products(shift: int, left: Floats, right: Floats) -> Iterator[tuple[int, Floats]]:
    return ((shift, term) for term in products(left, right))


def products(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    product = left * right
    one, two = left * SPLITTER, right * SPLITTER
    one -= one - left
    two -= two - right
    rest, other = left - one, right - two
    missing = one * two
    missing -= product
    missing += one * other
    missing += rest * two
    missing += rest * other
    return product, missing


def _parts(values: Floats, *, whole: bool = False) -> Iterator[tuple[int, Floats]]:
    """Bins from above, and for each the values' multiples of its unit; after the last bin the remainder is 0.

    Overwrites `values`. whole: a part for every value, in order; otherwise values without a remainder may be dropped.
    """
    # 2**40 + 3 -> 256 units of bin 1, which are 256 * 2**32, then 3 units of bin 0
    rest, bins = values, 0
    while most := max(rest.max(initial=0.0), -rest.min(initial=0.0)):
        assert math.isfinite(most), "values must be finite: callers remove NaN and infinities"
        mantissa, exponent = math.frexp(most)
        exponent -= mantissa == 0.5  # a power of two halfway between two units goes to the lower bin
        index = -((BIN_BITS - 1 - exponent) // BIN_BITS)
        border = math.ldexp(1.5, 52 + index * BIN_BITS)
        part = rest + border
        part -= border
        rest -= part
        yield index, part
        bins += 1
        if bins >= FEW_BINS and not whole:
            rest = rest[rest != 0]
