"""Close a client's connections to workers that compute nothing for it any more.

Runs in: the feeder, on the event loop of Dask's client. Dask keeps a connection to each worker that a result was
fetched from until it has 512. Those of workers that left the feeder's route would add up to all workers of a cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

# Longer than a worker is likely to be out of the route, or between two blocks that were submitted before it left.
IDLE_S = 10.0


@dataclass(slots=True)
class IdleConnections:
    """Since when workers that are not of the route have connections that carry nothing."""

    _since_s: dict[str, float] = field(default_factory=dict)  # by address

    def close_others(self, pool: Any, route: Collection[str], now_s: float) -> None:
        """Close connections to workers outside of the route that were idle for `IDLE_S`. Called every few seconds.

        pool: `distributed.core.ConnectionPool`. route: empty if all workers compute for the client.
        """
        idle: set[str] = set()
        if route:
            idle = {
                address
                for address, open_ones in pool.available.items()
                if open_ones and address not in route and not pool.occupied.get(address)
            }
        self._since_s = {address: self._since_s.get(address, now_s) for address in idle}
        for address, since_s in self._since_s.items():
            if now_s - since_s >= IDLE_S:
                pool.remove(address, reason="idle")
