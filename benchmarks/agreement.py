"""Do all contenders deliver the same rows? Runs in the benchmark's process, on what each run returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hashed_ids
import numpy as np
from checksums import differences
from contenders import CONTENDERS
from floor_tables import BenchmarkError
from shapes import Shape


class Agreement:
    """Compares runs with the first one, and their hashed ids with the first ones of the same hash and with strings."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._first: dict[str, tuple[str, Mapping[str, Any]]] = {}

    def wrong(
        self, name: str, result: Mapping[str, Any], sample: np.ndarray | None, files: Sequence[str]
    ) -> str | None:
        """Describe what is wrong with a run; `sample`: hashed ids of the first batches."""
        found = self._differences("all", name, result["checksums"])
        if self._shape.hashed and not found:
            found = self._differences(family(name), name, result["hashes"])
            found = found or _listed(hashed_ids.wrong_bounds(result["hashes"], self._shape))
        if self._shape.hashed and CONTENDERS[name].in_order and not found:
            if sample is None:
                return "returned no sample of its hashed ids"
            strings = hashed_ids.first_strings(files, self._shape, len(sample))
            found = _listed(hashed_ids.inconsistent(sample, strings))
        return found

    def _differences(self, kind: str, name: str, totals: Mapping[str, Any]) -> str | None:
        first, expected = self._first.setdefault(kind, (name, totals))
        wrong = differences(expected, totals)
        return f"disagrees with {first} in {'; '.join(wrong)}" if wrong else None


def family(name: str) -> str:
    """Return whose hash a contender computes."""
    return "Feedline's hash" if CONTENDERS[name].role == "feedline" else "Polars' hash"


def require_strings(names: Sequence[str], shape: Shape) -> None:
    """Raise BenchmarkError if nothing would connect a contender's hashed ids with strings, not even another's ids."""
    for name in names if shape.hashed else ():
        helpers = [other for other in CONTENDERS if CONTENDERS[other].in_order and family(other) == family(name)]
        if not set(helpers).intersection(names):
            raise BenchmarkError(
                f"the hashed ids of {name} are checked beside those of {' or '.join(helpers)}: add one of these"
            )


def _listed(wrong: Sequence[str]) -> str | None:
    return f"has wrong ids in {'; '.join(wrong[:3])}" if wrong else None
