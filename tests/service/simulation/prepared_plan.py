"""Small plans whose batches are known, and the results of their blocks: computed once, for all runs of a process."""

from __future__ import annotations

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pipelines import image

from feedline import Pipeline
from feedline.blocks.block_encoder import HandOver
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import keep_job
from feedline.blocks.request import BlockRequest, BlockResult, Job
from feedline.config import PipelineSpec, load_spec
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import Hello
from feedline.planning.plan import Plan

EPOCHS = 3  # whose batches are known
# Ids of a row, by its number: some batches outgrow the slots of those before them, and some blocks have arrays large
# enough for a place of their own in a segment.
LENGTHS = (2, 1, 0, 3, 2, 600, 2, 1, 2, 2, 9000, 1)
FORMS: dict[str, dict[str, Any]] = {
    "shuffled": {"batch": {"size": 4, "tail": "partial"}, "shuffle": {"seed": 1, "window_rows": 24}},
    "in order": {"batch": {"size": 3, "tail": "pad"}, "shuffle": "off"},
    "wide blocks": {"batch": {"size": 2, "tail": "drop"}, "shuffle": {"seed": 2, "window_rows": 16}},
}


class PreparedPlan:
    """A pipeline of two lanes over a table of its own."""

    def __init__(self, folder: Path, form: str) -> None:
        rows = 41
        lengths = np.resize(LENGTHS, rows)
        ids = pa.ListArray.from_arrays(np.concatenate(([0], np.cumsum(lengths))), np.arange(lengths.sum()))
        table = pa.table({"n": np.arange(rows, dtype=np.float32), "id": np.arange(rows), "ids": ids})
        (folder / "table").mkdir(parents=True)
        pq.write_table(table, folder / "table" / "part.parquet", row_group_size=4)
        pipeline = {
            "version": 1,
            "name": "simulated",
            "work_dir": "work",
            "source": {"table": "table", "split_rows": 4},
            "features": {"dense": {"n": []}, "categorical": {"id": []}, "sparse": {"ids": []}},
            "lanes": 2,
            "memory": "64MiB",
            "cluster": {"dashboard": False},
            **FORMS[form],
        }
        self.path = folder / "pipeline.yaml"
        self.path.write_text(json.dumps(pipeline))
        self.pipeline = Pipeline.from_yaml(self.path)
        self.plan = self.resolve(Hello(rank=0, world_size=1))
        self.facts = self.plan.facts()
        for job in self.plan.jobs:
            keep_job(job)
        self._results: dict[tuple[str, str, bool, int], tuple[BlockResult, tuple[Rows, ...]]] = {}

    @functools.cached_property
    def spec(self) -> PipelineSpec:
        return load_spec(self.path, {})

    @functools.cached_property
    def _plans(self) -> dict[str, Plan]:
        return {}

    def resolve(self, hello: Hello) -> Plan:
        """The plan that answers a hello."""
        key = json.dumps(to_values(replace(hello, rank=0, world_size=1)))
        if key not in self._plans:
            self._plans[key] = self.pipeline.resolve(hello, job="j" * 64)
        return self._plans[key]

    @functools.cache  # noqa: B019 -- plans live as long as the process
    def images(self, rank: int, world_size: int, epoch: int) -> list[bytes]:
        """The bytes of an epoch's batches."""
        return [image(each) for each in self.pipeline.batches(epoch, rank=rank, world_size=world_size, plan=self.plan)]

    def result(
        self, job: Job | str, request: BlockRequest, key: str, *, packed: bool, first_rows: int
    ) -> tuple[BlockResult, tuple[Rows, ...]]:
        """What a block's task returns, and the parts that it hands over before."""
        digest = job if isinstance(job, str) else job.digest
        name = digest, repr(request), packed, first_rows
        if name not in self._results:
            parts: list[Rows] = []
            hand_over = HandOver(first_rows, parts.append) if first_rows else None
            result = run_block(digest, request, key, packed, hand_over)
            self._results[name] = result, tuple(parts)
        result, given = self._results[name]
        return replace(result, key=key), given


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="feedline-simulation-")


@functools.cache
def prepared(form: str) -> PreparedPlan:
    return PreparedPlan(Path(_folder().name, form.replace(" ", "-")), form)
