"""Find the row of a table of features that held at the time of each impression.

Pure. It is the latest one of the impression's key that is strictly before its time, and at most `within` older; of rows
of one key and time, that with the greatest digest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feedline.warehouse.building.attribution import DIGEST, TIME
from feedline.warehouse.histories.join import bisect

Int64s = NDArray[np.int64]


def latest_before(
    impressions: pl.DataFrame, features: pl.DataFrame, keys: Sequence[str], *, within: int | None
) -> Int64s:
    """int64 [impressions]: the index of each one's row among the features, -1 without one. Both have the keys and
    `time`, features `digest`, too."""
    codes = features.select(keys).unique().with_row_index("code")
    coded = features.select(*keys, TIME, DIGEST).with_row_index("index")
    coded = coded.join(codes, on=list(keys), how="left").sort("code", TIME, DIGEST)
    code, times, index = (coded[name].to_numpy().astype(np.int64) for name in ("code", TIME, "index"))
    found = impressions.select(keys).join(codes, on=list(keys), how="left", maintain_order="left")["code"]
    of = found.fill_null(0).to_numpy().astype(np.int64)
    starts = np.searchsorted(code, np.arange(codes.height + 1))
    if not codes.height:
        return np.full(impressions.height, -1, np.int64)
    has_key = found.is_not_null().to_numpy()
    first, stop = np.where(has_key, starts[of], 0), np.where(has_key, starts[of + 1], 0)
    at = impressions[TIME].to_numpy()
    last = bisect(times, first, stop, at) - 1
    held = last >= first
    if within is not None:
        held &= times[np.maximum(last, 0)] >= at - within
    return np.where(held, index[np.maximum(last, 0)], -1)
