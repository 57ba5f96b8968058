"""The documented hashes over Python's integers, one value at a time: the oracle of the vectorised ones."""

from __future__ import annotations

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    word &= MASK
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def digest_of(data: bytes) -> int:
    words = [int.from_bytes(data[start : start + 8], "little") for start in range(0, len(data), 8)]
    return (len(data) + sum(mix(word + (index + 1) * GOLDEN) for index, word in enumerate(words))) & MASK


def hash_of(value: int | str | bytes, seed: int = 0) -> int:
    if isinstance(value, str):
        value = value.encode()
    return mix((digest_of(value) if isinstance(value, bytes) else value) + (seed + 1) * GOLDEN)


def cross_of(*values: int | str) -> int:
    """Compute the hash of several values as documented for hashed_cross."""
    total = 0
    for value in values:
        word = digest_of(value.encode()) if isinstance(value, str) else value & MASK
        total = (total * GOLDEN + mix((word + GOLDEN) & MASK)) & MASK
    return hash_of(total - 2**64 if total >> 63 else total)


def sigrid_of(value: int, salt: int, limit: int) -> int:
    """Compute TorchArrow's sigrid_hash over Python's integers."""
    key = value & MASK
    key = (~key + (key << 21)) & MASK
    key ^= key >> 24
    key = (key + (key << 3) + (key << 8)) & MASK
    key ^= key >> 14
    key = (key + (key << 2) + (key << 4)) & MASK
    key ^= key >> 28
    key = (key + (key << 31)) & MASK
    salt &= MASK
    a = ((key ^ salt) * 0x9DDFEA08EB382D69) & MASK
    a ^= a >> 47
    b = ((salt ^ a) * 0x9DDFEA08EB382D69) & MASK
    b = ((b ^ (b >> 47)) * 0x9DDFEA08EB382D69) & MASK
    return (b - 2**64 if b >> 63 else b) % limit
