"""Plan what `feedline init` writes: from the facts of a table and a person's choices.

Pure.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

from feedline.errors import PlanError
from feedline.workbench.begin.column_choice import choose_columns, keep_best
from feedline.workbench.begin.init_plan import (
    Choices,
    DedupChoice,
    HeldOut,
    InitPlan,
    LabelChoice,
    LeftOut,
)
from feedline.workbench.begin.label_choice import guess_label, require_column
from feedline.workbench.begin.quoting import number, percent
from feedline.workbench.profile.table_facts import TableFacts

WORTHWHILE = 0.1  # the share of a slot's bytes that deduplication has to save
_MOST_ROWS_OF_A_BATCH, _FEWEST_ROWS_OF_A_BATCH = 8_192, 64
_STEPS = 50  # of an epoch at least, by the size of batches
_STEPS_TO_DROP = 20  # a last step that is not full is less than a twentieth then
_NAME = re.compile(r"[^A-Za-z0-9]+")


def guess_choices(facts: TableFacts, choices: Choices) -> Choices:
    """The caller's choices, and guesses for the others: "" where there is none. Raises SpecError for a column that the
    table lacks."""
    if not facts.rows:
        raise PlanError(
            f"{facts.uri} has no rows: got 0 rows in {facts.files} files, expected some. Name another table"
        )
    for name, option in ((choices.time, "--time"), (choices.session, "--session")):
        if name:
            require_column(facts, name, option)
    time = next((each.column for each in facts.times), "") if choices.time is None else choices.time
    session = next((each.column for each in facts.sessions if each.clustered and each.saved_share >= WORTHWHILE), "")
    return replace(
        choices,
        label=guess_label(facts) if choices.label is None else choices.label,
        time=time,
        session=session if choices.session is None else choices.session,
        session_named=choices.session_named or bool(choices.session),
    )


def plan_pipeline(
    facts: TableFacts, choices: Choices, *, label: LabelChoice, held_out: HeldOut, table: str
) -> InitPlan:
    """The pipeline for a table. facts: of the rows to learn from. choices: without an open one. table: as pipeline.yaml
    names it. Raises PlanError for a table without features."""
    time, session = choices.time or None, choices.session or None
    split_by = [key.name for key in facts.partitions if held_out.train is not None and key.name in held_out.by]
    features, left_out = choose_columns(facts, label=label.column, time=time, split_by=split_by)
    features, beyond = keep_best(features, choices.max_features)
    why = f"not among the {choices.max_features} best features (--max-features)"
    left_out += [LeftOut(column=each.column, reason=why, enable=each) for each in beyond]
    if not features:
        reasons = "; ".join(f"{each.column!r}: {each.reason}" for each in left_out[:3])
        shown = f" ({reasons})" if reasons else ""
        raise PlanError(
            f"no column of {facts.uri} can be a feature beside the label {label.column!r}: got "
            f"{len(facts.columns)} columns{shown}. Name another label, or write a pipeline.yaml"
        )
    plan = InitPlan(
        name=pipeline_name(table),
        table=table,
        format=facts.format,
        rows=facts.rows,
        sampled_rows=facts.sampled.rows,
        label=label,
        features=tuple(features),
        left_out=tuple(left_out),
        held_out=held_out,
        time=time,
        session=session,
        dedup=_dedup(facts, session),
        batch_size=_FEWEST_ROWS_OF_A_BATCH,
        tail="partial",
        skip_bad_files=bool(facts.skipped),
        notes=_notes(facts, session),
    )
    return fitting_batches(plan, facts.rows)


def fitting_batches(plan: InitPlan, rows: int) -> InitPlan:
    """The plan with batches for an epoch of so many rows."""
    size = _FEWEST_ROWS_OF_A_BATCH  # a power of two: large enough for a GPU, small enough for some steps
    while 2 * size <= min(_MOST_ROWS_OF_A_BATCH, rows // _STEPS):
        size *= 2
    return replace(plan, batch_size=size, tail="drop" if rows >= _STEPS_TO_DROP * size else "partial")


def pipeline_name(table: str) -> str:
    """A name for the pipeline, of the table's last folder or file."""
    parts = [part for part in table.split("?")[0].split("/") if part and not set(part) & set("*?[]")]
    last = posixpath.splitext(parts[-1])[0] if parts else ""
    return _NAME.sub("-", last).strip("-").lower() or "table"


def _dedup(facts: TableFacts, session: str | None) -> DedupChoice | None:
    """Deduplication within the session; its groups are measured on the planned features."""
    for each in facts.sessions:
        if each.column == session and each.clustered and each.saved_share >= WORTHWHILE:
            repeats = f"{len(each.repeated)} columns repeat within it: about {percent(each.saved_share)}"
            rows = f"{number(each.rows_per_key)} rows of a session lie together"
            return DedupChoice(by=each.column, reason=f"{rows}, and {repeats} of a batch's bytes")
    return None


def _notes(facts: TableFacts, session: str | None) -> tuple[str, ...]:
    said = [f"column {column.name!r} may be the label" for column in facts.disguises]
    said += [f"column {column.name!r} is left out" for column in facts.columns if column.role == "unsupported"]
    warnings = [each for each in facts.warnings if not each.startswith(tuple(said))]
    apart = [each for each in facts.sessions if each.saved_share >= WORTHWHILE and not each.clustered]
    sessions = [
        f"rows of equal {each.column} are apart: stored together (feedline optimize --cluster-by), groups that repeat "
        f"would save about {percent(each.saved_share)} of a batch's bytes (feedline plan --dedup)"
        for each in apart[:1]
        if session is None
    ]
    number_skipped = f"{len(facts.skipped):,} corrupt file" + ("s are" if len(facts.skipped) > 1 else " is")
    skipped = [f"{number_skipped} left out"] if facts.skipped else []
    return (*warnings, *skipped, *sessions)
