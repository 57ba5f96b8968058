"""Checksums over all batches, independent of row order: do all contenders deliver the same rows?

Runs in the contenders' processes, with the same code for each. Integer sums are exact (modulo 2**64), float sums are
in float64 and compared to 1e-5. Products with a row's mark detect values that moved to another row: its first id, or
where ids are hashed or missing the bits of its first dense value, of which only nulls are filled.

Each loader hashes in its own way, so sums of hashed ids are compared among those with the same hash only (`hashes`):
all others have Polars', Feedline has its own. What connects the two is `hashed_ids`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from shapes import Shape

SCRAMBLER = 2_654_435_761
RELATIVE = 1e-5  # float32 log1p differs by an ulp between numpy and Polars
CACHED = 2**17  # dense values converted at once: a wide batch would leave the caches, at three times the cost


class Checksums:
    """Sums over batches; `totals` and `hashes` map names to plain numbers."""

    def __init__(self, shape: Shape) -> None:
        self.rows = 0
        self._hashed = shape.hashed
        self._marked_by_id = bool(shape.ids) and not shape.hashed
        self._sums: dict[str, torch.Tensor] = {}
        self._hashes: dict[str, torch.Tensor] = {}

    def add(self, batch: Any) -> None:
        """Add one batch's tensors, reading each once."""
        first = self._mark(batch)
        mark = (first & 255).double()
        self.rows += len(first)
        if self._hashed:
            self._add_hashes(batch.categorical, first & 255)
        else:
            self._sum("ids", batch.categorical.sum(0))
        self._sum("labels", batch.labels.double().sum(0))
        self._sum("labels x id", mark @ batch.labels.double())
        part = max(1, CACHED // batch.dense.shape[1])
        for start in range(0, len(first), part):
            dense = batch.dense[start : start + part].double()
            self._sum("dense", dense.sum(0))
            self._sum("dense x id", mark[start : start + part] @ dense)
        for name, jagged in batch.sparse.items():
            lengths = jagged.lengths.long()
            self._sum(f"{name} values", jagged.values.sum())
            self._sum(f"{name} lengths", lengths.sum())
            self._sum(f"{name} lengths x id", (lengths * first).sum())
            if len(jagged.values):
                starts = (lengths.cumsum(0) - lengths).clamp_(max=len(jagged.values) - 1)
                heads = jagged.values[starts] * (lengths > 0)
                self._sum(f"{name} first values x id", (heads * first).sum())

    @property
    def totals(self) -> dict[str, Any]:
        """The sums so far, as plain numbers."""
        return {"rows": self.rows} | {name: value.tolist() for name, value in self._sums.items()}

    @property
    def hashes(self) -> dict[str, Any]:
        """The sums of hashed ids so far, and the bounds of each column; empty if ids are not hashed."""
        return {name: value.tolist() for name, value in self._hashes.items()}

    def _mark(self, batch: Any) -> torch.Tensor:
        if self._marked_by_id:
            ids: torch.Tensor = batch.categorical[:, 0]
            return ids
        bits = batch.dense[:, 0].contiguous().view(torch.int32).long()
        scrambled: torch.Tensor = (bits * SCRAMBLER) >> 20  # the low bits of an integer's mantissa are zeros
        return scrambled

    def _add_hashes(self, ids: torch.Tensor, mark: torch.Tensor) -> None:
        low, high = ids.aminmax(dim=0)
        sums, products = ids.sum(0), (ids.T * mark).sum(1)
        if self._hashes:
            low, high = torch.minimum(low, self._hashes["low"]), torch.maximum(high, self._hashes["high"])
            sums, products = sums + self._hashes["ids"], products + self._hashes["ids x mark"]
        self._hashes = {"low": low, "high": high, "ids": sums, "ids x mark": products}

    def _sum(self, name: str, value: torch.Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()


def differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """Describe where the totals of two contenders differ."""
    found = [f"{name} is in one only" for name in sorted(expected.keys() ^ got.keys())]
    for name in expected.keys() & got.keys():
        theirs, ours = _flat(expected[name]), _flat(got[name])
        if len(theirs) != len(ours):
            found.append(f"{name}: {len(ours)} columns, expected {len(theirs)}")
            continue
        wrong = [k for k, (a, b) in enumerate(zip(theirs, ours, strict=True)) if not _same(a, b)]
        component = f"[{wrong[0]}]" if wrong and isinstance(expected[name], list) else ""
        found += [f"{name}{component}: got {ours[k]}, expected {theirs[k]}" for k in wrong[:1]]
    return found


def _flat(value: Any) -> list[int | float]:
    return value if isinstance(value, list) else [value]


def _same(a: float, b: float) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return math.isclose(a, b, rel_tol=RELATIVE)
