"""`feedline plan` measures imbalance and padding as they are in the batches that the plan delivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipelines import Place

from feedline import Pipeline
from feedline.commands.plan.step_lengths import describe_lengths, length_rows

LANES = 2
BUCKETS: dict[str, Any] = {"size": None, "max_tokens": 400, "buckets": [2, 6, 40]}


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Place:
    return Place(tmp_path, clicks)


def measured(path: Path, bounds: tuple[int, ...] = ()) -> tuple[list[float], float]:
    """Imbalance and padding of the 16 steps in the middle of an epoch, by its batches."""
    batches = list(Pipeline.from_yaml(path).batches())
    first = max(0, len(batches) // 2 - 8)
    imbalance, elements, places = [], 0, 0
    for batch in batches[first : first + 16]:
        lengths = batch.sparse["hist_0"].lengths.numpy().reshape(LANES, -1)
        sums = lengths.sum(axis=1)
        imbalance.append(float(sums.max() / sums.mean()))
        elements += int(sums.sum())
        longest = lengths.max(axis=1) if batch.bound is None else [batch.bound] * LANES
        places += sum(lengths.shape[1] * int(each) for each in longest)
    return imbalance, 1 - elements / places


@pytest.mark.parametrize(
    ("batch", "before"),
    [({"size": 64, "balance": "hist_0"}, {"size": 64}), ({**BUCKETS, "length": "hist_0"}, None)],
)
def test_steps_are_as_even_as_the_plan_says(place: Place, batch: dict[str, Any], before: dict[str, Any] | None):
    path = place.write(lanes=LANES, batch=batch)
    plan = Pipeline.from_yaml(path).plan()
    facts = describe_lengths(plan.source)
    assert facts is not None
    assert facts["measured"] == {"lanes": LANES, "steps": 16}
    imbalance, padding = measured(path)
    assert facts["after"]["imbalance"] == pytest.approx(np.mean(imbalance))
    assert facts["after"]["worst_imbalance"] == pytest.approx(max(imbalance))
    assert facts["after"]["padding"] == pytest.approx(padding)
    if before is not None:
        imbalance, padding = measured(place.write(lanes=LANES, batch=before))
        assert facts["before"]["imbalance"] == pytest.approx(np.mean(imbalance))
        assert facts["before"]["padding"] == pytest.approx(padding)
        assert facts["after"]["imbalance"] < facts["before"]["imbalance"]
    else:
        assert facts["epoch_padding"] == pytest.approx(facts["after"]["padding"], abs=0.1)
    lines = dict(length_rows(facts, "64 rows"))
    sizes = "2 lanes x 200 rows of up to 2 or 66 rows of up to 6 or 10 rows of up to 40"
    assert lines["batch"] == ("64 rows" if before else sizes)
    assert "by hist_0; measured in 16 steps of 2 lanes" in lines["lengths"]


def test_other_plans_have_no_lengths(place: Place):
    assert describe_lengths(Pipeline.from_yaml(place.write()).plan().source) is None
