"""A short run measures its own feeder for as long as it is to, and explains what was measured when it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, furnished

from feedline.commands.run import RunRequest, feeder_accesses
from feedline.config import load_spec
from feedline.errors import FeedlineError
from feedline.progress import Progress, on_progress
from feedline.workbench.explain.explained_costs import Explanation, Measuring
from feedline.workbench.explain.short_run import run_shortly


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def explained(
    path: Path,
    seconds: float = 0.6,
    stop: Callable[[], bool] = lambda: False,
    *,
    step_s: float | None = None,
    **options: Any,
) -> Explanation:
    spec = load_spec(path)
    request = RunRequest(spec=spec, ranks=[0], world_size=1)
    measuring = Measuring(seconds=seconds, stop=stop, sample_s=0.1)
    return run_shortly(feeder_accesses(request)[0], spec, measuring, cores=2.0, step_s=step_s, **options)


def test_a_trainer_of_a_slow_pace_is_the_limit(place: Place):
    """Steps of 0.1 s: epochs of 78 steps follow each other in no time otherwise."""
    found = explained(place.write(), seconds=1.5, step_s=0.1, headspace=True)
    verdict = found.slowest.verdict()
    assert verdict.limit == "trainer"
    assert verdict.rows_per_s <= 256 / 0.1
    assert found.headspace.rows_per_s == pytest.approx(2560, rel=0.3)  # samples may cut a step
    assert (found.source, found.stopped) == ("short run", False)
    assert found.seconds == pytest.approx(1.5, abs=0.2)
    assert found.slowest.capacity.threads == 1


def test_epochs_follow_each_other_until_the_time_is_over(place: Place):
    seen: list[Progress] = []
    with on_progress(seen.append):
        found = explained(place.write(), seconds=1.0)
    assert seen[0].phase == "planning"
    assert seen[-1].text() == "running: 0 of 1 s"
    facts = [sample for sample in found.slowest.samples if sample.rows]
    assert sum(sample.blocks for sample in facts) > 0
    assert found.slowest.verdict().trainer_wait is None
    assert found.slowest.verdict().limit != "trainer"


def test_an_interrupt_before_the_first_batch_says_so(place: Place):
    began_s = time.monotonic()
    found = explained(place.write(), seconds=60.0, stop=lambda: True)
    assert found.stopped
    assert found.slowest.verdict().sentence.startswith("Nothing was delivered")
    assert time.monotonic() - began_s < 30


def test_an_error_of_the_feeder_is_raised(place: Place):
    with pytest.raises(FeedlineError, match=r"unknown column: got 'missing'"):
        explained(place.write(features={"dense": {"missing": []}}))
