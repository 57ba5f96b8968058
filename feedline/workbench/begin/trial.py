"""Try a plan on its table before it is written: every feature compiles, enough rows are held out.

Runs in: the process of `feedline init`. It counts rows of tables that are not too large for a
command of seconds; nothing is fitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pyarrow.compute as pc

from feedline.errors import DataError, FeedlineError, PlanError, SpecError
from feedline.expressions import bind_where
from feedline.planning.binding.table_features import compile_spec
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.resolve import preview_plan
from feedline.planning.source_plan import SourcePlan
from feedline.spec import PipelineSpec, parse_spec
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.workbench.begin.figures import percent
from feedline.workbench.begin.held_out import (
    MOST,
    KeyRows,
    by_hash,
    by_keys,
    by_time,
    calendar_keys,
    fewest_held_out,
    held_out_share,
)
from feedline.workbench.begin.init_plan import Choices, DedupChoice, HeldOut, InitPlan, LabelChoice, LeftOut
from feedline.workbench.begin.label_choice import choose_label, require_label
from feedline.workbench.begin.learnt_facts import facts_of_learnt
from feedline.workbench.begin.pipeline_text import pipeline_text
from feedline.workbench.begin.plan_pipeline import WORTHWHILE, fitting_batches, plan_pipeline
from feedline.workbench.profile.column_measures import frame_column
from feedline.workbench.profile.table_facts import TableFacts
from feedline.workbench.profile.table_sample import TableSample

_MOST_COUNTED = 20_000_000  # rows of a table whose filter is evaluated row by row
_SEEDS = 10
_ROWS = "\0rows"  # a column that no table has


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFolder:
    """Where a plan is tried: the folder of its pipeline.yaml, and a folder for what the trial keeps."""

    folder: str
    work_dir: str

    def spec_of(self, plan: InitPlan, **overrides: object) -> PipelineSpec:
        """The spec of the plan's text, with some keys replaced."""
        keys = {"work_dir": self.work_dir, **{key.replace("__", "."): value for key, value in overrides.items()}}
        return parse_spec(pipeline_text(plan), file="pipeline.yaml", overrides=keys, base_dir=self.folder)


def try_plan(sample: TableSample, facts: TableFacts, choices: Choices, *, table: str, folder: TrialFolder) -> InitPlan:
    """The plan for a table: rows held out of which there are enough, features of the rows to learn from without those
    that do not compile, and groups as measured. choices: without an open one. Raises as `plan_pipeline`."""
    label = choose_label(facts, require_label(facts, choices.label))
    held_out, rows = _hold_out(sample, facts, choices, label, folder.work_dir)
    facts = facts_of_learnt(sample, facts, choices, label, held_out)
    plan = plan_pipeline(facts, choices, label=label, held_out=held_out, table=table)
    plan = without_refused(plan, folder.spec_of(plan), sample.snapshot)
    return plan if rows is None else _with_groups(fitting_batches(plan, rows), folder, sample.snapshot)


def _hold_out(
    sample: TableSample, facts: TableFacts, choices: Choices, label: LabelChoice, work_dir: str
) -> tuple[HeldOut, int | None]:
    """The rows to hold out, and how many are left to learn from (None: not counted)."""
    snapshot = sample.snapshot
    for found in _ways(sample, facts, choices, label):
        keys = {key.name for key in facts.partitions}
        by_folders = label.where is None and set(found.by) <= keys and found.sample is None
        if not by_folders and facts.rows > _MOST_COUNTED:
            return found, None
        where = " and ".join(each for each in (label.where, found.train) if each) or None
        rows = _rows_of(where, snapshot, work_dir, found.sample)
        others = None if found.sample is None else {**found.sample, "rest": True}
        where = " and ".join(each for each in (label.where, found.held_out) if each) or None
        held_out = _rows_of(where, snapshot, work_dir, others)
        if not rows + held_out:
            raise PlanError(f"no row of {facts.uri} has a label: got nulls in {label.column!r}. Name another one")
        fewest, most = fewest_held_out(rows + held_out), MOST * (rows + held_out)
        if fewest <= held_out <= most if found.sample is None else 0 < held_out < rows + held_out:
            counted = f"{held_out:,} rows, {percent(held_out / (rows + held_out))}"
            return replace(found, reason=f"{found.reason} ({counted})"), rows
    return found, rows  # of a few rows, all on one side


def _ways(sample: TableSample, facts: TableFacts, choices: Choices, label: LabelChoice) -> Iterator[HeldOut]:
    """Ways to hold rows out, the best first."""
    share, time = held_out_share(facts.rows), choices.time or None
    for keys in calendar_keys(facts.partitions, time):
        found = by_keys(_folders(sample.snapshot, keys), share)
        if found is not None:
            yield found
    rows = sample.rows_where(label.where)
    if time is not None and time in rows.column_names and time not in {key.name for key in facts.partitions}:
        for part in (share, 2 * share):  # a sample's share is not the table's
            found = by_time(time, frame_column(rows[time]), part, facts.rows)
            if found is not None:
                yield found
    by_chance = by_hash(facts, choices.session if choices.session_named and choices.session else None)
    assert by_chance.sample is not None
    yield by_chance
    for seed in range(1, _SEEDS):  # of ten rows, a hash may hold out none
        yield replace(by_chance, sample={**by_chance.sample, "seed": seed})


def _folders(snapshot: Snapshot, keys: tuple[str, ...]) -> KeyRows:
    """The rows by the values of some partition keys; folders without a value are left out."""
    per_file = np.bincount(
        snapshot.file_of_row_group, weights=snapshot.rows_per_row_group, minlength=len(snapshot.files)
    )
    values = [pc.struct_field(snapshot.files["partition"], key).combine_chunks() for key in keys]
    frame = pl.DataFrame([pl.Series(key, each) for key, each in zip(keys, values, strict=True)])
    frame = frame.with_columns(pl.Series(_ROWS, per_file.astype(np.int64))).drop_nulls()
    frame = frame.group_by(keys).agg(pl.col(_ROWS).sum()).sort(keys)
    return KeyRows(keys=keys, values=frame.select(keys).rows(), rows=frame[_ROWS].to_list())


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


def _plan_on(spec: PipelineSpec, snapshot: Snapshot) -> SourcePlan:
    return preview_plan(spec, [snapshot], lanes=1).source_for("init")


def _rows_of(where: str | None, snapshot: Snapshot, work_dir: str, sample: Mapping[str, object] | None) -> int:
    """The rows that a filter and a sample keep, which may be none."""
    bound = None if where is None else bind_where(where, snapshot.schema)
    sampled = Sample.of(sample)
    sampling = None if sampled is None else bind_sample(sampled, snapshot.schema)
    return int(select_rows(snapshot, bound, sample=sampling, work_dir=work_dir).rows.sum())


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
