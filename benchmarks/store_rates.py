"""Fit a store's latency and bandwidth to fetches that were timed, for the benchmark of the cache's policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feedline.blocks.cache.cache_costs import StoreRates

_UNKNOWN_BYTES_PER_S = 1e12  # of a store whose requests took no time beyond their latency
_ALIKE = 100.0  # condition number of samples that cannot tell latency from bandwidth
_SMALL_BYTES = 256 << 10  # of a request: below it a store's answer is mostly latency


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSample:
    """What one thread fetched of the store for a block: requests one after another, and when, on a monotonic clock."""

    requests: int
    bytes: int
    begin_s: float
    end_s: float


def store_rates(samples: Sequence[FetchSample], *, parallel: float = 1.0, remote: bool = True) -> StoreRates | None:
    """Fit seconds = requests * latency + bytes / rate to the first blocks' fetches; None without any.

    Least squares, neither part negative. Where samples cannot tell the parts apart, small requests are taken for
    latency and large ones for bandwidth. The store's bandwidth is at least what all threads received in the time in
    which any of them waited.
    """
    used = [each for each in samples if each.requests > 0 and each.end_s > each.begin_s]
    if not used:
        return None
    latency_s, byte_s = _fit(used)
    stream = 1 / byte_s if byte_s > 1 / _UNKNOWN_BYTES_PER_S else _UNKNOWN_BYTES_PER_S
    together = sum(each.bytes for each in used) / _busy_s(used)
    return StoreRates(
        latency_s=latency_s * parallel,
        bytes_per_s=max(stream, together, 1.0),
        stream_bytes_per_s=max(stream, 1.0),
        parallel=parallel,
        remote=remote,
    )


def _fit(samples: Sequence[FetchSample]) -> tuple[float, float]:
    """Seconds per request and per byte."""
    requests = np.array([each.requests for each in samples], np.float64)
    amounts = np.array([each.bytes for each in samples], np.float64)
    seconds = np.array([each.end_s - each.begin_s for each in samples])
    alone = (float(requests @ seconds / (requests @ requests)), 0.0)
    if not amounts.any():
        return alone
    by_bytes = (0.0, float(amounts @ seconds / (amounts @ amounts)))
    scales = np.array([np.linalg.norm(requests), np.linalg.norm(amounts)])
    matrix = np.stack([requests, amounts], axis=1) / scales
    if np.linalg.cond(matrix) > _ALIKE:
        return alone if amounts.sum() < _SMALL_BYTES * requests.sum() else by_bytes
    latency_s, byte_s = np.linalg.lstsq(matrix, seconds, rcond=None)[0] / scales
    if latency_s < 0:
        return by_bytes
    return (float(latency_s), float(byte_s)) if byte_s >= 0 else alone


def _busy_s(samples: Sequence[FetchSample]) -> float:
    """Seconds in which at least one fetch was under way."""
    busy_s, until = 0.0, float("-inf")
    for each in sorted(samples, key=lambda sample: sample.begin_s):
        busy_s += max(0.0, each.end_s - max(each.begin_s, until))
        until = max(until, each.end_s)
    return busy_s
