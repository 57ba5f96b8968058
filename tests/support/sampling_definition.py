"""The documented definition of sampling in plain Python, one value at a time."""

from __future__ import annotations

import datetime
import math
import struct
from fractions import Fraction
from typing import Any

from reference_hash import GOLDEN, MASK, digest_of, hash_of, mix

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def place_hash(path: str, index: int, seed: int) -> int:
    return mix(hash_of(path, seed) + (index + 1) * GOLDEN)


def word(value: Any) -> int:
    match value:
        case None:
            return 0x6C6C756E
        case bool() | int():
            return int(value)
        case float():
            number = 0.0 if value == 0 else value
            return 0x7FF8000000000000 if math.isnan(number) else struct.unpack("<Q", struct.pack("<d", number))[0]
        case str():
            return digest_of(value.encode())
        case bytes():
            return digest_of(value)
        case datetime.datetime():
            since = (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)) - EPOCH
            seconds = since.days * 86_400 + since.seconds
            return digest_of(struct.pack("<qq", seconds, since.microseconds * 1000))
        case datetime.date():
            return (value - EPOCH.date()).days
    raise AssertionError(value)


def key_hash(values: tuple[Any, ...], seed: int) -> int:
    hashed = [hash_of(word(value), seed) for value in values]
    combined = hashed[0]
    for value in hashed[1:]:
        combined = (mix(combined + GOLDEN) + value) & MASK
    return combined


def stays(hashed: int, fraction: float) -> bool:
    return fraction == 1 or hashed < math.floor(Fraction(fraction) * 2**64)
