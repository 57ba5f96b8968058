"""Keep decoded row groups of events that blocks read again and again, within a bound.

Runs in every process that reads histories; threads share it. Blocks of rows in the order of their keys read each row
group once or twice, and then others: nothing is kept. Blocks of rows in any other order read a little of all row groups
each. One is kept when it is read for the third time, if there is room; the least recently read one goes only when it
has not been read for a while, since blocks that need more than fits would otherwise read everything anew.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection

import pyarrow as pa

from feedline.warehouse.snapshot.column_facts import contiguous

Place = tuple[int, int]  # a file, and a row group of it

_WORTH_KEEPING = 3  # readings
_FORGOTTEN = 64  # readings of others after which one is not needed


class KeptGroups:
    """Columns of row groups. limit_bytes: of all of them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[Place, tuple[int, dict[str, pa.Array]]] = OrderedDict()  # with when it was read last
        self._readings: dict[tuple[Place, tuple[str, ...]], int] = {}
        self._now = 0
        self.nbytes = 0

    def begin(self) -> None:
        """A block reads."""
        with self._lock:
            self._now += 1

    def find(self, place: Place, columns: Collection[str]) -> dict[str, pa.Array] | None:
        """The columns of a row group; None if they are not kept."""
        with self._lock:
            found = self._kept.get(place)
            if found is None:
                return None
            self._kept[place] = self._now, found[1]
            self._kept.move_to_end(place)
            return found[1] if found[1].keys() >= set(columns) else None

    def is_worth_keeping(self, place: Place, columns: Collection[str], nbytes: int) -> bool:
        """Whether columns of a row group, which take so many bytes, are to be kept, when some rows of it are needed."""
        key = place, tuple(columns)
        with self._lock:
            count = self._readings[key] = self._readings.get(key, 0) + 1
            return count >= _WORTH_KEEPING and self._make_room(nbytes)

    def keep(self, place: Place, columns: dict[str, pa.Array]) -> None:
        with self._lock:
            _, before = self._kept.pop(place, (0, {}))
            self._kept[place] = self._now, {**before, **columns}
            self.nbytes += sum(array.nbytes for name, array in columns.items() if name not in before)

    def _make_room(self, nbytes: int) -> bool:
        while self._kept and self.nbytes + nbytes > self._limit:
            last_read, columns = next(iter(self._kept.values()))
            if self._now - last_read < _FORGOTTEN:
                return False
            self._kept.popitem(last=False)
            self.nbytes -= sum(array.nbytes for array in columns.values())
        return self.nbytes + nbytes <= self._limit


def columns_of(table: pa.Table) -> dict[str, pa.Array]:
    return {name: contiguous(table.column(name)) for name in table.column_names}
