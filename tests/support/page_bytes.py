"""Integers and runs of them as Parquet's headers and encodings write them."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


def zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def packed(values: list[int], width: int) -> bytes:
    """A packed run of whole groups."""
    groups = -(-len(values) // 8)
    bits = sum(value << (index * width) for index, value in enumerate(values))
    return varint(groups << 1 | 1) + bits.to_bytes(groups * width, "little")


def repeated(value: int, count: int, width: int) -> bytes:
    return varint(count << 1) + value.to_bytes((width + 7) // 8, "little")


def sized(runs: bytes) -> bytes:
    return struct.pack("<I", len(runs)) + runs


def exact(content: bytes) -> Any:
    """In memory of its own size, where AddressSanitizer sees a byte that is read behind it."""
    return np.frombuffer(content, np.uint8).copy()


def bits(bitmap: Any, count: int) -> list[int]:
    if bitmap is None:
        return [1] * count
    return np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:count].tolist()
