"""Try a plan on its table before it is written: every feature compiles, both sides of the split hold rows.

Runs in: the process of `feedline init`. It takes a snapshot, and counts rows of tables that are not too large for a
command of seconds; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from feedline.commands.begin.figures import percent
from feedline.commands.begin.init_plan import Choices, DedupChoice, InitPlan, LeftOut
from feedline.commands.begin.pipeline_text import pipeline_text
from feedline.commands.begin.plan_pipeline import WORTHWHILE, fitting_batches, plan_pipeline
from feedline.errors import DataError, FeedlineError, PlanError, SpecError
from feedline.planning.binding.table_features import compile_spec
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.plan import Plan
from feedline.planning.resolve import current_snapshot, preview_plan
from feedline.planning.sources.mixed_plan import require_plain
from feedline.profiling.table_facts import TableFacts
from feedline.spec import PipelineSpec, parse_spec
from feedline.warehouse.snapshot.snapshot import Snapshot

_MOST_COUNTED = 20_000_000  # rows of a table whose filter is evaluated row by row
_MOST_HELD_OUT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFolder:
    """Where a plan is tried: the folder of its pipeline.yaml, and keys that it has for the trial alone."""

    folder: str
    overrides: Mapping[str, object]

    def spec_of(self, plan: InitPlan, where: str | None = None) -> PipelineSpec:
        """The spec of the plan's text, with another filter if one is given."""
        overrides = dict(self.overrides) if where is None else {**self.overrides, "source.where": where}
        return parse_spec(pipeline_text(plan), file="pipeline.yaml", overrides=overrides, base_dir=self.folder)


def try_plan(facts: TableFacts, choices: Choices, *, table: str, folder: TrialFolder) -> InitPlan:
    """The plan for a table, without features that do not compile, with a split that has rows on both sides, and with
    deduplicated groups as measured. Raises as `plan_pipeline`."""
    refused: set[str] = set()
    snapshot: Snapshot | None = None
    while True:
        plan = plan_pipeline(facts, choices, table=table, refused=refused)
        if snapshot is None:
            snapshot = current_snapshot(folder.spec_of(plan))
        plan = without_refused(plan, folder.spec_of(plan), snapshot)
        if not _is_countable(plan, facts):
            return plan
        learnt = _plan_on(folder.spec_of(plan), snapshot)
        rows = int(learnt.selection.rows.sum())
        if plan.held_out is not None:
            held_out = int(_plan_on(folder.spec_of(plan, plan.held_out_where), snapshot).selection.rows.sum())
            if not rows or not 0 < held_out <= _MOST_HELD_OUT * (rows + held_out):
                refused.add(plan.held_out.by)
                continue
            reason = f"{plan.held_out.reason} ({held_out:,} rows, {percent(held_out / (rows + held_out))})"
            plan = replace(plan, held_out=replace(plan.held_out, reason=reason))
        if not rows:
            raise PlanError(f"no row of {facts.uri} has a label: got nulls in {plan.label.column!r}. Name another one")
        return _with_groups(fitting_batches(plan, rows), folder, snapshot)


def without_refused(plan: InitPlan, spec: PipelineSpec, snapshot: Snapshot) -> InitPlan:
    """The plan without features that do not compile against the table's columns. Raises PlanError if none is left."""
    try:
        compile_spec(spec, snapshot.schema)
    except FeedlineError:
        reasons = {}
        for feature in spec.features:
            try:
                compile_spec(spec, snapshot.schema, [feature])
            except FeedlineError as error:
                reasons[feature.name] = str(error).splitlines()[0]
        if plan.label.feature.name in reasons:
            message = f"the label {plan.label.column!r} cannot be read: {reasons[plan.label.feature.name]}"
            raise PlanError(f"{message}. Name another one with --label") from None
        features = tuple(each for each in plan.features if each.name not in reasons)
        if not features:
            raise PlanError(f"no feature of {plan.table} can be computed: {next(iter(reasons.values()), '')}") from None
        left_out = [
            LeftOut(column=each.column, reason=f"refused: {reasons[each.name]}", enable=each)
            for each in plan.features
            if each.name in reasons
        ]
        return replace(plan, features=features, left_out=(*plan.left_out, *left_out))
    return plan


def _plan_on(spec: PipelineSpec, snapshot: Snapshot) -> Plan:
    return require_plain(preview_plan(spec, [snapshot], lanes=1), "init")


def _is_countable(plan: InitPlan, facts: TableFacts) -> bool:
    """Whether counting takes seconds: few rows, or a filter that the names of folders answer."""
    keys = {key.name for key in facts.partitions}
    by_folders = plan.label.where is None and (plan.held_out is None or plan.held_out.by in keys)
    return by_folders or facts.rows <= _MOST_COUNTED


def _with_groups(plan: InitPlan, folder: TrialFolder, snapshot: Snapshot) -> InitPlan:
    """The plan with deduplicated groups that save enough of its batches' bytes, and without `dedup` if none does."""
    if plan.dedup is None:
        return plan
    clustered = replace(folder, overrides={**folder.overrides, "shuffle.by": plan.dedup.by})
    try:
        proposals = describe_proposals(_plan_on(clustered.spec_of(plan), snapshot))["proposals"]
    except (DataError, SpecError):  # a row of the sample cannot be computed before `feedline fit`
        return replace(plan, dedup=None)
    groups = tuple((each["name"], tuple(each["columns"])) for each in proposals)
    plain = sum(each["bytes_plain"] or 0 for each in proposals)
    saved = sum(each["bytes_saved"] or 0 for each in proposals)
    if not groups or saved < WORTHWHILE * plain:
        return replace(plan, dedup=None)
    reason = f"{plan.dedup.reason}. Measured: {saved:,.0f} of {plain:,.0f} bytes a row ({percent(saved / plain)})"
    return replace(plan, dedup=DedupChoice(by=plan.dedup.by, reason=reason, groups=groups))
