"""Try a plan on its table before it is written: every feature compiles, enough rows are held out.

Runs in: the process of `feedline init`. It counts rows of tables that are not too large for a
command of seconds; nothing is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import TypeAlias

import numpy as np
import polars as pl
import pyarrow.compute as pc

from feedline.config import PipelineSpec, parse_spec
from feedline.dataclass import dataclass
from feedline.errors import DataError, FeedlineError, PlanError, SpecError
from feedline.expressions import bind_where
from feedline.expressions.moments import python_values
from feedline.planning.dedup.proposals import describe_proposals
from feedline.planning.resolve import preview_plan
from feedline.planning.table_features import compile_spec
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.workbench.begin.init_plan import Choices, HeldOut, InitPlan, LabelChoice, LeftOut, all_of
from feedline.workbench.begin.label_choice import choose_label, require_label
from feedline.workbench.begin.learnt_facts import facts_of_learnt
from feedline.workbench.begin.pipeline_text import pipeline_text
from feedline.workbench.begin.plan_pipeline import WORTHWHILE, fitting_batches, plan_pipeline
from feedline.workbench.begin.quoting import column_expr, percent, string_literal
from feedline.workbench.profile.column_measures import frame_column
from feedline.workbench.profile.table_facts import PartitionKey, TableFacts
from feedline.workbench.profile.table_sample import TableSample

# --------------------------------------------------------------------------------------------------------------------
# Choose the rows that the model is evaluated on: the last part of the table's time, or a share by a hash. Rows drawn
# at random share users, sessions and days with those that the model learns from, so a measure on them promises too
# much. The order of choice: partition keys that are dates or parts of one (whole folders, which are never read in
# training), then the chosen time. Without any, `source.sample` keeps the rows to learn from, and its rest is held
# out: by the values of a session or an id where there is one, else by the place of a row. A tenth of the rows is held
# out, and up to a fifth of small tables, as fewer than a thousand rows measure little.

SHARE, MOST = 0.1, 0.5  # of the rows: sought, and accepted
_SHARE_OF_FEW, _ENOUGH_ROWS, _LEAST_SHARE = 0.2, 1_000, 0.01
_FEWEST_KEYS = 1_000  # values of a session by which rows are held out: of few, a tenth is no tenth of the rows
_PERIODS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1))
_FEWEST_PERIODS = 2  # in the held-out part, of those that its border is rounded to
_CALENDAR = ("date", "ds", "dt", "year", "quarter", "month", "week", "day", "hour")
KeyValue: TypeAlias = int | str | date


def held_out_share(rows: int) -> float:
    """The share of the rows to hold out."""
    return max(SHARE, min(_SHARE_OF_FEW, _ENOUGH_ROWS / max(rows, 1)))


def fewest_held_out(rows: int) -> int:
    """The fewest held-out rows that measure something."""
    return max(math.ceil(_LEAST_SHARE * rows), min(_ENOUGH_ROWS, math.ceil(SHARE * rows)), 1)


def calendar_keys(keys: Sequence[PartitionKey], time: str | None) -> list[tuple[str, ...]]:
    """Partition keys whose values together are a time, the best first: the chosen time, dates, years with months."""
    single = [key.name for key in keys if key.name == time or key.type.startswith("date")]
    parts = [key for key in keys if key.name.lower() in _CALENDAR and key.name not in single and _is_ordered(key)]
    parts.sort(key=lambda key: _CALENDAR.index(key.name.lower()))  # years before months
    varied = tuple(key.name for key in parts if key.values > 1)
    single.sort(key=lambda name: name != time)
    return [*((name,) for name in single), *([varied] if varied else [])]


def _is_ordered(key: PartitionKey) -> bool:
    """Whether the order of the values is that of time: of strings, "10" comes before "9"."""
    return not key.type.endswith("string") or len(key.first or "") == len(key.last or "")


def by_keys(
    keys: tuple[str, ...], values: Sequence[tuple[KeyValue, ...]], rows: Sequence[int], share: float
) -> HeldOut | None:
    """The last folders, which have about this share of the rows; None where no border leaves enough on both sides.
    values: of the keys in each folder, ascending; rows: below it."""
    index = late_border(rows, share, fewest_held_out(sum(rows)))
    if index is None:
        return None
    names, border = [*map(column_expr, keys)], [*map(_literal, values[index])]
    return HeldOut(
        by=keys,
        train=_compared(names, border, "<"),
        held_out=_compared(names, border, ">="),
        reason=f"the last {len(rows) - index} of {len(rows)} values of the partition key {' and '.join(keys)}: whole "
        "folders, later than all others",
    )


def late_border(rows: Sequence[int], share: float, fewest: float) -> int | None:
    """The index from which on about this share of the rows lies. rows: of each value, ascending by value. None where
    there is none with so many rows, and at most half of all."""
    # a tenth of rows [70, 20, 6, 4], at least 5: 4, 10, 30 of the last values -> from index 2 on
    total, late, best = sum(rows), 0, None
    for index in range(len(rows) - 1, 0, -1):
        late += rows[index]
        if fewest <= late <= MOST * total:
            off = abs(late - share * total)
            best = (off, index) if best is None or off < best[0] else best
    return None if best is None else best[1]


def by_time(name: str, times: pl.Series, share: float, rows: int) -> HeldOut | None:
    """The last of a column's values. times: sampled ones of a table with so many rows; strings are compared as they
    are stored. None where no border leaves enough on both sides."""
    times = times.drop_nulls()
    counts = times.value_counts(name="count").sort(times.name)
    index = late_border(counts["count"].to_list(), share, fewest_held_out(rows) / max(rows, 1) * len(times))
    if index is None:
        return None
    ends = counts[times.name][[index, len(counts) - 1]]
    if ends.dtype.is_temporal() and not all("0001-02" < text < "9999-12" for text in python_values(ends)):
        return None  # beyond the years that Python's calendar has, in some zone
    border, last = ends
    if isinstance(border, datetime) and isinstance(last, datetime):
        # the border rounded down to the largest period of which the held-out part has some
        periods = (each for each in _PERIODS if last - border >= _FEWEST_PERIODS * each)
        midnight = datetime.min.replace(tzinfo=border.tzinfo)
        rounded = border - (border - midnight) % next(periods, timedelta.resolution)
        border = rounded if int((times >= rounded).sum()) <= MOST * len(times) else border
    expr, text = column_expr(name), _literal(border)
    return HeldOut(
        by=(name,), train=f"{expr} < {text}", held_out=f"{expr} >= {text}", reason=f"the latest rows by {name}"
    )


def by_hash(facts: TableFacts, session: str | None) -> HeldOut:
    """A share of the rows by a hash. session: a column whose values stay on one side."""
    keys: list[str] = []
    if session is not None and not facts.column(session).type.startswith(("list", "struct", "map", "decimal")):
        values = facts.column(session).vocabulary
        keys = [session] if values is not None and values.table >= _FEWEST_KEYS else []
    ids = [each.name for each in facts.columns if each.id_like and each.type.startswith(("int", "uint", "string"))]
    reason = "rows by a hash of their place in the table: another order of the files holds out other rows"
    if keys:
        reason = f"rows by a hash of {session}, so that its values are on one side"
    elif ids:
        keys, reason = ids[:1], f"rows by a hash of {ids[0]}, which names them"
    sample = {"fraction": round(1 - held_out_share(facts.rows), 2)} | ({"key": keys} if keys else {})
    return HeldOut(by=tuple(keys), sample=sample, reason=reason)


def _compared(names: Sequence[str], border: Sequence[str], sign: str) -> str:
    """`a < 1`, or of more names, the first of which decides: `(a < 1 or a == 1 and b < 2)`."""
    if len(names) == 1:
        return f"{names[0]} {sign} {border[0]}"
    rest = _compared(names[1:], border[1:], sign)
    return f"({names[0]} {sign[0]} {border[0]} or {names[0]} == {border[0]} and {rest})"


def _literal(value: object) -> str:
    if isinstance(value, date):  # and datetime
        return string_literal(value.isoformat())
    return string_literal(value) if isinstance(value, str) else repr(value)


# --------------------------------------------------------------------------------------------------------------------

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
    keys = {key.name for key in facts.partitions}
    for way in _ways(sample, facts, choices, label):
        by_folders = label.where is None and set(way.by) <= keys and way.sample is None
        if not by_folders and facts.rows > _MOST_COUNTED:
            return way, None
        rows = _rows_of(all_of(label.where, way.train), snapshot, work_dir, way.sample)
        others = None if way.sample is None else {**way.sample, "rest": True}
        held_out = _rows_of(all_of(label.where, way.held_out), snapshot, work_dir, others)
        total = rows + held_out
        if not total:
            raise PlanError(f"no row of {facts.uri} has a label: got nulls in {label.column!r}. Name another one")
        fewest, most = (fewest_held_out(total), MOST * total) if way.sample is None else (1, total - 1)
        if fewest <= held_out <= most:
            counted = f"{held_out:,} rows, {percent(held_out / total)}"
            return replace(way, reason=f"{way.reason} ({counted})"), rows
    return way, rows  # of a few rows, all on one side


def _ways(sample: TableSample, facts: TableFacts, choices: Choices, label: LabelChoice) -> Iterator[HeldOut]:
    """Ways to hold rows out, the best first."""
    share, time = held_out_share(facts.rows), choices.time or None
    for keys in calendar_keys(facts.partitions, time):
        if (late := by_keys(keys, *_folders(sample.snapshot, keys), share)) is not None:
            yield late
    rows = sample.rows_where(label.where)
    if time is not None and time in rows.column_names and time not in {key.name for key in facts.partitions}:
        for part in (share, 2 * share):  # a sample's share is not the table's
            if (late := by_time(time, frame_column(rows[time]), part, facts.rows)) is not None:
                yield late
    by_chance = by_hash(facts, choices.session if choices.session_named and choices.session else None)
    assert by_chance.sample is not None
    yield by_chance
    for seed in range(1, _SEEDS):  # of ten rows, a hash may hold out none
        yield replace(by_chance, sample={**by_chance.sample, "seed": seed})


def _folders(snapshot: Snapshot, keys: tuple[str, ...]) -> tuple[list[tuple[KeyValue, ...]], list[int]]:
    """The values of some partition keys, ascending, and the rows below each; folders without a value are left out."""
    per_file = np.bincount(
        snapshot.file_of_row_group, weights=snapshot.rows_per_row_group, minlength=len(snapshot.files)
    )
    values = [pc.struct_field(snapshot.files["partition"], key).combine_chunks() for key in keys]
    frame = pl.DataFrame([pl.Series(key, each) for key, each in zip(keys, values, strict=True)])
    frame = frame.with_columns(pl.Series(_ROWS, per_file.astype(np.int64))).drop_nulls()
    frame = frame.group_by(keys).agg(pl.col(_ROWS).sum()).sort(keys)
    return frame.select(keys).rows(), frame[_ROWS].to_list()


def without_refused(plan: InitPlan, spec: PipelineSpec, snapshot: Snapshot) -> InitPlan:
    """The plan without features that do not compile against the table's columns. Raises PlanError if none is left."""
    with suppress(FeedlineError):
        compile_spec(spec, snapshot.schema)
        return plan
    reasons = {}
    for feature in spec.features:
        try:
            compile_spec(spec, snapshot.schema, [feature])
        except FeedlineError as error:
            reasons[feature.name] = str(error).splitlines()[0]
    if plan.label.feature.name in reasons:
        message = f"the label {plan.label.column!r} cannot be read: {reasons[plan.label.feature.name]}"
        raise PlanError(f"{message}. Name another one with --label")
    features = tuple(each for each in plan.features if each.name not in reasons)
    if not features:
        raise PlanError(f"no feature of {plan.table} can be computed: {next(iter(reasons.values()), '')}")
    left_out = (
        LeftOut(column=each.column, reason=f"refused: {reasons[each.name]}", enable=each)
        for each in plan.features
        if each.name in reasons
    )
    return replace(plan, features=features, left_out=(*plan.left_out, *left_out))


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
        proposals = describe_proposals(preview_plan(clustered, [snapshot], lanes=1).source_for("init"))["proposals"]
    except (DataError, SpecError):  # a row of the sample cannot be computed before `feedline fit`
        return replace(plan, dedup=None)
    plain = sum(each["bytes_plain"] or 0 for each in proposals)
    saved = sum(each["bytes_saved"] or 0 for each in proposals)
    if not proposals or saved < WORTHWHILE * plain:
        return replace(plan, dedup=None)
    groups = tuple((each["name"], tuple(each["columns"])) for each in proposals)
    reason = f"{plan.dedup.reason}. Measured: {saved:,.0f} of {plain:,.0f} bytes a row ({percent(saved / plain)})"
    return replace(plan, dedup=replace(plan.dedup, reason=reason, groups=groups))
