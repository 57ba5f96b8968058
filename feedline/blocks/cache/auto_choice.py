"""Whether finished features are worth keeping: decided from the first segments that a process computes (`mode: auto`).

Runs in: every process that computes blocks. Each decides for itself, once per job: what a segment takes to compute and
what it takes on disk are measured where that happens, the rates of the folder's disk and of memory by
`measured_rates`; `cache_policy` decides. What the folder holds already is read in any case.
"""

from __future__ import annotations

import logging
import threading

from feedline.blocks.cache.cache_costs import FeatureCost, PolicyInputs, StoreRates
from feedline.blocks.cache.cache_policy import choose_mode
from feedline.blocks.cache.measured_rates import cache_rates
from feedline.blocks.request import ReadEpochs
from feedline.resources.cgroups import available_cores
from feedline.warehouse.cache.cache_folder import CacheFolder

logger = logging.getLogger("feedline.cache")

SEGMENTS = 3  # that are computed, and kept, before the decision
_LEAST_EPOCHS = 2  # whoever names a cache expects another reading, if not of this run
_NO_STORE = StoreRates(bytes_per_s=1e15, remote=False)  # waiting for it is part of what computing takes


class AutoChoice:
    """The choice of one process for a job; any thread may use it."""

    def __init__(self, epochs: ReadEpochs, folder: CacheFolder) -> None:
        self._epochs, self._folder = epochs, folder
        self._lock = threading.Lock()
        self._segments = self._rows = self._nbytes = 0
        self._seconds = 0.0
        self.reason = ""
        self.keeps = True
        self.budget = folder.budget

    def measured(self, *, rows: int, nbytes: int, seconds: float) -> None:
        """Take what one segment's features took to compute, and their bytes."""
        with self._lock:
            if self.reason:
                return
            self._segments, self._rows = self._segments + 1, self._rows + rows
            self._nbytes, self._seconds = self._nbytes + nbytes, self._seconds + seconds
            if self._segments < SEGMENTS:
                return
            self._decide()
        logger.info("cache %s: %s", self._folder.ref.folder, self.reason)

    def _decide(self) -> None:
        rates = cache_rates(self._folder.ref.folder)
        if rates is None:
            self.keeps, self.reason = False, "off: nothing can be written there"
            return
        features = FeatureCost(
            name="features", read_cpu_s=self._seconds / self._rows, bytes=self._nbytes / self._rows, warm=0.0
        )
        decision = choose_mode(
            PolicyInputs(
                features=(features,),
                shared=FeatureCost(name="rows"),
                store=_NO_STORE,
                cache=rates,
                threads=max(1.0, float(available_cores())),
                rows=float(self._epochs.rows),
                row_groups=float(self._epochs.row_groups),
                epochs_left=max(_LEAST_EPOCHS, self._epochs.epochs),
                capacity_bytes=float(self._folder.bound()),
            )
        )
        self.keeps, self.reason = decision.mode == "features", decision.reason
