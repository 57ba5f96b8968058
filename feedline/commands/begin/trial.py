"""Try a plan on its table before it is written: every feature compiles, both sides of the split hold rows.

Runs in: the process of `feedline init`. It counts rows of tables that are not too large for a
command of seconds; nothing is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from feedline.commands.begin.choices.held_out import SHARE
from feedline.commands.begin.figures import percent
from feedline.commands.begin.init_plan import Choices, DedupChoice, InitPlan, LeftOut
from feedline.commands.begin.pipeline_text import pipeline_text
from feedline.commands.begin.plan_pipeline import WORTHWHILE, fitting_batches, plan_pipeline
from feedline.errors import DataError, FeedlineError, PlanError, SpecError
from feedline.expressions import bind_where
from feedline.planning.binding.table_features import compile_spec
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.plan import Plan
from feedline.planning.resolve import preview_plan
from feedline.planning.sources.mixed_plan import require_plain
from feedline.profiling.table_facts import TableFacts
from feedline.spec import PipelineSpec, parse_spec
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot

_MOST_COUNTED = 20_000_000  # rows of a table whose filter is evaluated row by row
_LEAST, _MOST, _MOST_HELD_OUT = 0.03, 0.25, 0.5  # shares of the rows: sought of a time, and accepted
_TRIES = 12  # of shares of a range of times


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFolder:
    """Where a plan is tried: the folder of its pipeline.yaml, and a folder for what the trial keeps."""

    folder: str
    work_dir: str

    def spec_of(self, plan: InitPlan, **overrides: object) -> PipelineSpec:
        """The spec of the plan's text, with some keys replaced."""
        keys = {"work_dir": self.work_dir, **{key.replace("__", "."): value for key, value in overrides.items()}}
        return parse_spec(pipeline_text(plan), file="pipeline.yaml", overrides=keys, base_dir=self.folder)


def try_plan(facts: TableFacts, choices: Choices, snapshot: Snapshot, *, table: str, folder: TrialFolder) -> InitPlan:
    """The plan for a table, without features that do not compile, with a split that has rows on both sides, and with
    deduplicated groups as measured. Raises as `plan_pipeline`."""
    refused: set[str] = set()
    share, tries = SHARE, 0
    while True:
        plan = plan_pipeline(facts, choices, table=table, refused=refused, share=share)
        plan = without_refused(plan, folder.spec_of(plan), snapshot)
        if not _is_countable(plan, facts):
            return plan
        rows = _rows_of(plan.where, snapshot, folder.work_dir)
        if plan.held_out is not None:
            held_out = _rows_of(plan.held_out_where, snapshot, folder.work_dir)
            part = held_out / max(rows + held_out, 1)
            if plan.held_out.by == plan.time and not _LEAST <= part <= _MOST and tries < _TRIES:
                share, tries = share / 4 if part > _MOST else min(2 * share, 0.5), tries + 1
                continue
            if not rows or not 0 < part <= _MOST_HELD_OUT:
                refused.add(plan.held_out.by)
                continue
            reason = f"{plan.held_out.reason} ({held_out:,} rows, {percent(part)})"
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


def _rows_of(where: str | None, snapshot: Snapshot, work_dir: str) -> int:
    """The rows that a filter keeps, which may be none."""
    bound = None if where is None else bind_where(where, snapshot.schema)
    return int(select_rows(snapshot, bound, work_dir=work_dir).rows.sum())


def _is_countable(plan: InitPlan, facts: TableFacts) -> bool:
    """Whether counting takes seconds: few rows, or a filter that the names of folders answer."""
    keys = {key.name for key in facts.partitions}
    by_folders = plan.label.where is None and (plan.held_out is None or plan.held_out.by in keys)
    return by_folders or facts.rows <= _MOST_COUNTED


def _with_groups(plan: InitPlan, folder: TrialFolder, snapshot: Snapshot) -> InitPlan:
    """The plan with deduplicated groups that save enough of its batches' bytes, and without `dedup` if none does."""
    if plan.dedup is None:
        return plan
    try:
        clustered = folder.spec_of(plan, shuffle__by=plan.dedup.by)
        proposals = describe_proposals(_plan_on(clustered, snapshot))["proposals"]
    except (DataError, SpecError):  # a row of the sample cannot be computed before `feedline fit`
        return replace(plan, dedup=None)
    groups = tuple((each["name"], tuple(each["columns"])) for each in proposals)
    plain = sum(each["bytes_plain"] or 0 for each in proposals)
    saved = sum(each["bytes_saved"] or 0 for each in proposals)
    if not groups or saved < WORTHWHILE * plain:
        return replace(plan, dedup=None)
    reason = f"{plan.dedup.reason}. Measured: {saved:,.0f} of {plain:,.0f} bytes a row ({percent(saved / plain)})"
    return replace(plan, dedup=DedupChoice(by=plan.dedup.by, reason=reason, groups=groups))
