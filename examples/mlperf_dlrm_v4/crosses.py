"""Hash several integers to one id, as the benchmark does: xxHash64 of their bytes, modulo the rows of a table.

Runs wherever rows are transformed; pipeline.yaml names these functions. Each integer is 8 bytes, least significant
first (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md, the case of inputs below 32 bytes).
"""

from __future__ import annotations

import numpy as np

from feedline import user_op

P1, P2, P3, P4, P5 = (
    np.uint64(prime)
    for prime in (
        11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261,
    )
)  # fmt: skip
HOUR_S = 3600


@user_op(gives="int64", form="numpy", version=1)
def cross(*columns: np.ndarray, buckets: int) -> np.ndarray:
    """Ids in [0, buckets) of two or three integers, with the seed 0."""
    digest = np.full(len(columns[0]), P5 + np.uint64(8 * len(columns)))
    for column in columns:
        lane = column.astype(np.int64).view(np.uint64)
        digest = _rotate(digest ^ (_rotate(lane * P2, 31) * P1), 27) * P1 + P4
    digest = (digest ^ (digest >> np.uint64(33))) * P2
    digest = (digest ^ (digest >> np.uint64(29))) * P3
    return ((digest ^ (digest >> np.uint64(32))) % np.uint64(buckets)).astype(np.int64)


@user_op(gives="int64", form="numpy", version=1)
def cross_hour(*columns: np.ndarray, buckets: int) -> np.ndarray:
    """The same, with the hour of day in place of the last column, a time in seconds."""
    *others, time = columns
    return cross(*others, time.astype(np.int64) // HOUR_S % 24, buckets=buckets)


def _rotate(words: np.ndarray, bits: int) -> np.ndarray:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))
