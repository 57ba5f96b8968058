"""How are 64-bit words sorted fastest on this processor?

Runs on the workers. numpy sorts words with AVX-512 where there is any: on Intel's processors 32,768 of them in about
92 us, on AMD's Zen 4, whose compressing stores are slow, in 1,010 us, where Polars takes 310 on either. So whichever is
faster is found out once per process, by trying both. The words come out the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Words = npt.NDArray[np.uint64]

_TRIED_WORDS = 8192
_TRIES = 3


def sorted_words(words: Words) -> Words:
    """The words in ascending order; those given may be used up."""
    return by_numpy(words) if _numpy_is_faster() else by_polars(words)


def by_numpy(words: Words) -> Words:
    """In place."""
    words.sort()
    return words


def by_polars(words: Words) -> Words:
    """On the caller's thread: the pool's are others' at that moment."""
    return pl.Series(words).sort(multithreaded=False).to_numpy()


@cache
def _numpy_is_faster() -> bool:
    words = np.random.Generator(np.random.Philox(0)).integers(0, 2**63, _TRIED_WORDS).astype(np.uint64)
    return _seconds(by_numpy, words) <= _seconds(by_polars, words)


def _seconds(way: Callable[[Words], Any], words: Words) -> float:
    """Of the fastest of a few tries, in CPU time of this thread."""
    tries = []
    for _ in range(_TRIES):
        fresh = words.copy()
        start = time.thread_time()
        way(fresh)
        tries.append(time.thread_time() - start)
    return min(tries)
