"""Pipelines and samples of runs, as numbers, for what explains them."""

from __future__ import annotations

from typing import Any

from feedline.config import PipelineSpec, load_spec
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.run_facts import Capacity, RunFacts
from feedline.workbench.explain.explained_costs import RankSamples


def spec_with(**keys: Any) -> PipelineSpec:
    """A small pipeline with some keys."""
    document = {
        "version": 1,
        "name": "n",
        "work_dir": "w",
        "source": {"table": "t"},
        "features": {"dense": {"x": []}},
        "batch": {"size": 1},
    }
    return load_spec(document | keys)


def rank_samples(number: int, wait_s: float) -> RankSamples:
    """Four seconds of a rank whose ops take 1.9 of two cores, and whose trainer waits `wait_s` of each."""
    facts = RunFacts(
        wall_s=1.0,
        rows=1000,
        batches=10,
        trainer_wait_s=wait_s,
        blocks=2,
        block_rows=1000,
        times=BlockTimes(transform_s=1.9, transform_cpu_s=1.9),
    )
    return RankSamples(rank=number, samples=(facts,) * 4, capacity=Capacity(cores=2, threads=2))
