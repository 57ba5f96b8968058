"""Combinations of a test's parameters: in `make test`, half of them, in which each two values meet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def combinations(*choices: Sequence[Any]) -> list[Any]:
    """All combinations of values of three or more parameters; every second one, by the sum of indices, is nightly."""
    assert len(choices) > 2, "two values of two parameters would not meet"
    return [
        pytest.param(*(value for _, value in each), marks=pytest.mark.nightly if sum(at for at, _ in each) % 2 else ())
        for each in itertools.product(*map(enumerate, choices))
    ]
