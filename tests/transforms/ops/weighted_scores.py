"""What scores of two lists of weighted ids must be, computed in Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

SCORES: dict[str, Callable[[Any, Any], float]] = {
    "id_overlap_count": lambda a, b: float((Counter(a) & Counter(b)).total()),
    "has_id_overlap": lambda a, b: float(bool({*a} & {*b})),
    "get_max_count": lambda a, b: float(sum(max(a.count(item), b.count(item)) for item in {*a} & {*b})),
    "get_jaccard_similarity": lambda a, b: float(
        np.float32((Counter(a) & Counter(b)).total() / ((Counter(a) | Counter(b)).total() or 1))
    ),
}


def sums(row: Any) -> dict[int, float]:
    found: dict[int, float] = {}
    for item, weight in row:
        found[item] = found.get(item, 0.0) + weight
    return found


def cosine_of(left: Any, right: Any) -> float:
    a, b = sums(left), sums(right)
    norm = math.sqrt(sum(x * x for x in a.values())) * math.sqrt(sum(x * x for x in b.values()))
    return sum(a[item] * b[item] for item in {*a} & {*b}) / norm if norm else 0.0


SCORED: dict[str, Callable[[Any, Any], float]] = {
    "get_cosine_similarity": cosine_of,
    "get_score_sum": lambda a, b: sum(weight for item, weight in b if item in {one for one, _ in a}),
    "get_score_min": lambda a, b: min((weight for item, weight in b if item in {one for one, _ in a}), default=0.0),
    "get_score_max": lambda a, b: max((weight for item, weight in b if item in {one for one, _ in a}), default=0.0),
    "column_similarity": cosine_of,
}
