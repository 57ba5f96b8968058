"""The facts of a plan of several sources that a trainer needs, and what a rebase changed in their tables.

Pure. Runs in: the feeder, the CLI, `Pipeline`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.blocks.environment import environment_text
from feedline.loader.wire.codec import from_values
from feedline.loader.wire.facts import PlanFacts, RebaseChanges, RestFacts, SourceFacts
from feedline.planning.plan import column_group_of
from feedline.planning.sources.mixed_sources import MixedSources, with_names


def mixed_facts(plan: MixedSources) -> PlanFacts:
    """`steps` and rows are those of a whole epoch; nulls and missing columns name their source."""
    steps = plan.whole_steps
    return PlanFacts(
        snapshot=plan.snapshot_name,
        plan=plan.fingerprint,
        features=plan.features_fingerprint,
        environment=environment_text(plan.bound[0].job.environment),
        seed=plan.seed,
        lanes=plan.lanes,
        batch_size=plan.spec.batch.size,
        window_rows=plan.window.rows,
        window_blocks=plan.window.blocks,
        steps=steps,
        rows=sum(plan.source_rows),
        rows_dropped=sum(plan.dropped(steps)),
        bad_files=plan.bad_files(),
        nulls=tuple(plan.null_warnings()),
        absent=tuple(with_names(plan.names, [each.gaps.notes() for each in plan.bound])),
        schema=plan.layout.schema,
        rest=_rest_facts(plan),
        sources=source_facts(plan),
        column_group=column_group_of(plan.bound),
        epoch=plan.epoch,
    )


def source_facts(plan: MixedSources) -> tuple[SourceFacts, ...]:
    """The sources, with the passes that a whole epoch makes through each."""
    steps, of_source = plan.whole_steps, zip(plan.names, plan.bound, plan.source_rows, plan.pass_steps, strict=True)
    return tuple(
        SourceFacts(name=name, batch_rows=each.spec.batch.size, rows=rows, pass_steps=own, passes=steps / own)
        for name, each, rows, own in of_source
    )


def _rest_facts(plan: MixedSources) -> RestFacts | None:
    """The epoch that the last rebase shortened, and how the tables have changed."""
    if plan.rest is None:
        return None
    epoch, step = plan.rest
    steps = plan.steps_of(epoch)
    pairs = zip(plan.bound, plan.rests, strict=True)
    changes = [
        each.rebase.changes
        for each, rest in pairs
        if each.rebase is not None and rest is not None and rest.position(plan.positions) == plan.rest
    ]
    return RestFacts(
        epoch=epoch,
        first_step=step,
        steps=steps,
        rows=(steps - step) * plan.lanes * plan.spec.batch.size,
        rows_dropped=sum(plan.dropped(steps)),
        changes=from_values(RebaseChanges, {**_sum_of_changes(changes), "epoch": epoch, "step": step}),
    )


def _sum_of_changes(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The changes of several tables as one: names joined, counts added."""
    total = dict(changes[0])
    for name in ("from", "to"):
        total[name] = ",".join(each[name] for each in changes)
    for name in ("files", "rows"):
        total[name] = {key: sum(each[name][key] for each in changes) for key in total[name]}
    return total
