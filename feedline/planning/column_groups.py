"""Plan a column group: some of a pipeline's features, for the rows and steps of the plan of all of them.

Runs in: the feeder, `Pipeline.batches`. Window and block sizes depend on the bytes that blocks
read per row: those of the plan of all features decide, or the groups of a job would not read the same rows.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from feedline.blocks.batch_schema import batch_schema
from feedline.loader.encoding.layout import SlotLayout
from feedline.planning.binding.read_columns import ReadColumns
from feedline.planning.make_plan import column_schema, read_epochs
from feedline.planning.plan import Plan
from feedline.planning.source_plan import SourcePlan
from feedline.spec.chosen_features import choose_features
from feedline.transforms.compile.compiled import compile_some
from feedline.transforms.registry.user_code import functions_of


def plan_column_group(plan: Plan, names: Sequence[str]) -> Plan:
    """The plan of some features, by their names or those of their groups (see `choose_features`); of all for no name.

    plan: of the pipeline. The result has the same snapshot, rows, steps and fingerprints; features, layout, job and
    columns are those of the group. Raises SpecError for unknown names.
    """
    sources = tuple(_plan_group(each, names) for each in plan.sources)
    return plan if all(map(operator.is_, sources, plan.sources)) else replace(plan, sources=sources)


def _plan_group(plan: SourcePlan, names: Sequence[str]) -> SourcePlan:
    whole = plan.whole or plan
    if not names:
        return whole
    features = compile_some(whole.features, choose_features(whole.spec, names))
    columns = ReadColumns.of(whole.spec, features, whole.where, whole.sample)
    schema = pa.ipc.read_schema(pa.py_buffer(whole.job.schema))
    job = replace(
        whole.job,
        features=features.features,
        schema=column_schema(schema, columns),
        code=functions_of(features.features),
        auto=read_epochs(whole.spec, columns, whole.snapshot, whole.selection),
    )
    return replace(whole, features=features, layout=SlotLayout(batch_schema(features)), job=job, whole=whole)
