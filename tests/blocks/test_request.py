"""A job is named by all that it says; a cache is part of its name, and no part of what its blocks are."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import fields, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.blocks.request import Job
from feedline.planning.plan import Plan
from feedline.warehouse.cache.cache_folder import CacheRef

REF = CacheRef(folder="/nowhere", size=None, free=1 << 30, shared=False)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet")
    document = {
        "version": 1,
        "name": "n",
        "work_dir": str(tmp_path / "w"),
        "source": {"table": str(tmp_path / "t.parquet")},
        "features": {"dense": {"x": []}},
        "batch": {"size": 1},
    }
    return Pipeline.from_dict(document).plan()


def test_a_job_without_a_cache_is_named_as_if_there_were_none(plan: Plan):
    """Workers and recorded names know the digest of the other fields in their order."""
    job = plan.job
    assert job.cache is None
    shown = ", ".join(f"{each.name}={getattr(job, each.name)!r}" for each in fields(Job) if each.repr)
    assert repr(job) == f"Job({shown})"
    assert "cache" not in [each.name for each in fields(Job) if each.repr]
    assert job.digest == hashlib.blake2b(repr(job).encode(), digest_size=16).hexdigest()


def test_the_cache_is_part_of_a_jobs_name(plan: Plan):
    digests = {
        replace(plan.job, cache=cache).digest
        for cache in (None, REF, replace(REF, folder="/x"), replace(REF, size=5), replace(REF, shared=True))
    }
    assert len(digests) == 5
    assert replace(plan.job, cache=REF) != plan.job
    assert replace(plan.job, cache=None).digest == plan.job.digest


def test_a_job_with_a_cache_travels(plan: Plan):
    job = replace(plan.job, cache=REF)
    back = pickle.loads(pickle.dumps(job))
    assert (back, back.cache, back.digest) == (job, REF, job.digest)


def test_a_block_without_a_cache_counts_nothing(plan: Plan):
    block = next(iter(plan.schedule(0).blocks(0, everything=True)))
    assert run_block(plan.job, plan.request(block, 0), "k", packed=False).cached is None
