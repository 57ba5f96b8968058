"""Write a plan as the text of pipeline.yaml, each line with its reason.

Pure. Features of one group with equal ops whose columns are numbered in turn share an entry, as `"I{1..13}"`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby

from feedline.commands.schema import SCHEMA_LINE
from feedline.config.features import GROUPS
from feedline.planning.dedup.proposals import with_ranges
from feedline.workbench.begin.init_plan import InitPlan, LeftOut, PlannedFeature
from feedline.workbench.begin.quoting import column_expr, comment, yaml_key, yaml_string, yaml_value

_WIDTH, _NOTE_AT = 120, 60
_MOST_LEFT_OUT = 100  # columns left out that have a line of their own
_NUMBERED = re.compile(r"(.*?)(0|[1-9][0-9]*)$", re.DOTALL)
_FEWEST_OF_A_RANGE = 3


def pipeline_text(plan: InitPlan, *, schema: bool = False) -> str:
    """The text of pipeline.yaml. schema: its first line names the schema beside it."""
    lines = [*([SCHEMA_LINE] if schema else []), *_head(plan)]
    lines += ["version: 1", f"name: {yaml_string(plan.name)}", "work_dir: .feedline"]
    lines += _source(plan)
    lines += ["", *_wrapped(_LEAKAGE), "features:"]
    for group in GROUPS:
        members = [plan.label.feature] if group == "label" else [each for each in plan.features if each.group == group]
        if members:
            lines += [f"  {group}:", *_wrapped(_GROUP_NOTES[group], indent="    ")]
            lines += [line for run in _runs(members) for line in _entry(run)]
    lines += _left_out(plan.left_out)
    lines += _delivery(plan)
    return "\n".join(lines) + "\n"


_LEAKAGE = (
    "A feature must be known at the moment of the prediction. What happens after the label (a delay, a payment, an "
    "answer) is in the table as well, and no statistic tells it from the rest: read this list, and delete what you "
    "would not have then."
)


_GROUP_NOTES = {
    "dense": "Ops leave nulls alone until they are filled: with 0, which is the mean after standardize. `clip` limits "
    "long tails to the 1st and 99th percentile. Integers that are ids or codes belong to categorical, with "
    "[vocabulary]: no statistic tells them from numbers.",
    "categorical": "Ids of embeddings: a vocabulary numbers values by frequency, a hash needs no table of them. Nulls "
    "have an id of their own.",
    "sparse": "Lists of ids, the first elements of each; `list_slice: -5` would keep the last.",
    "label": "",
    "extra": "",
}


def _head(plan: InitPlan) -> Iterator[str]:
    whole = plan.sampled_rows >= plan.rows
    figures = "" if whole else f" Figures are of a sample of {plan.sampled_rows:,} rows, or of the files' footers."
    yield from _wrapped(f"Written by `feedline init` for {plan.rows:,} rows, and yours to edit.{figures}")
    for note in plan.notes:
        yield from _wrapped(f"Note: {note}")


def _source(plan: InitPlan) -> Iterator[str]:
    yield "source:"
    yield f"  table: {yaml_string(plan.table)}"
    if plan.format == "manifest":
        yield "  format: manifest"
    if plan.where is not None:
        reasons = [] if plan.label.where is None else ["rows with a label"]
        if plan.held_out.train is not None:
            reasons.append(f"train.py evaluates on the others: {plan.held_out.reason}")
        yield from _wrapped("; ".join(reasons), indent="  ")
        yield f"  where: {yaml_value(plan.where)}"
    if plan.held_out.sample is not None:
        yield from _wrapped(f"train.py evaluates on the rest: {plan.held_out.reason}", indent="  ")
        yield f"  sample: {yaml_value(plan.held_out.sample)}"
    if plan.skip_bad_files:
        yield "  on_bad_file: skip  # corrupt files are left out and reported; `error`, the default, refuses them"


def _delivery(plan: InitPlan) -> Iterator[str]:
    if plan.dedup is not None and plan.dedup.groups:
        yield from ("", *_wrapped(plan.dedup.reason), "dedup:")
        for name, columns in plan.dedup.groups:
            yield f"  {yaml_key(name)}: {{columns: [{', '.join(map(yaml_string, with_ranges(columns)))}]}}"
    yield ""
    yield "batch:"
    yield from _noted(f"  size: {plan.batch_size}", "rows of a step on each rank")
    tail = "the last rows that do not fill a step are left out" if plan.tail == "drop" else "the last step is shorter"
    yield from _noted(f"  tail: {plan.tail}", tail)
    if plan.dedup is not None and plan.dedup.groups:
        by = f"shuffle: {{seed: 0, by: {yaml_string(plan.dedup.by)}}}"
        yield from _noted(by, "sessions are shuffled, their rows stay together")
    else:
        yield from _noted("shuffle: {seed: 0}", "another seed gives another order of rows")
    yield from _noted("on_nonfinite: zero", "NaN and infinities become 0")
    yield from _noted("epochs: 1", "of `feedline run`; train.py counts its own")


def _runs(features: Sequence[PlannedFeature]) -> list[list[PlannedFeature]]:
    """Features that share an entry: neighbours with equal ops, named by their columns, which are numbered in turn."""
    runs: list[list[PlannedFeature]] = []
    for feature in features:  # f1 f2 f3 g1 g2 -> [f1 f2 f3] [g1] [g2]
        if runs and _follows(runs[-1][-1], feature):
            runs[-1].append(feature)
        else:
            runs.append([feature])
    return [part for run in runs for part in ([run] if len(run) >= _FEWEST_OF_A_RANGE else [[each] for each in run])]


def _follows(last: PlannedFeature, feature: PlannedFeature) -> bool:
    if last.ops != feature.ops or not (_is_plain(last) and _is_plain(feature)):
        return False
    first, second = _NUMBERED.fullmatch(last.name), _NUMBERED.fullmatch(feature.name)
    return first is not None and second is not None and first[1] == second[1] and int(second[2]) == int(first[2]) + 1


def _is_plain(feature: PlannedFeature) -> bool:
    """Whether an entry for several features may hold it: `$` and braces mean something there."""
    return feature.expr is None and feature.name == feature.column and not set(feature.name) & set("${}")


def _entry(run: Sequence[PlannedFeature]) -> Iterator[str]:
    first, last = run[0], run[-1]
    if len(run) == 1:
        yield from _noted(f"    {entry_of(first)}", first.reason)
    else:
        [name] = with_ranges([each.name for each in run])
        reasons = list(dict.fromkeys(each.reason for each in run))
        shown = reasons[0] if len(reasons) == 1 else f"{len(run)} columns, such as {first.name}: {first.reason}"
        yield from _noted(f"    {yaml_key(name)}: {yaml_value(list(last.ops))}", shown)
    for feature in run:
        if feature.check is not None:
            yield from _wrapped(f"CHECK {feature.name}: {feature.check}", indent="    ")


def entry_of(feature: PlannedFeature) -> str:
    """The feature's entry in its group."""
    ops = list(feature.ops)
    expr = feature.expr
    if expr is None and not feature.column.strip():
        expr = column_expr(feature.column)  # `column` takes no blank name
    if expr is not None:
        body = {"expr": expr} | ({"ops": ops} if ops else {})
    elif feature.name != feature.column or feature.strict:
        body = {"column": feature.column} | ({"ops": ops} if ops else {})
    else:
        return f"{yaml_key(feature.name)}: {yaml_value(ops)}"
    if feature.strict:
        body["on_nonfinite"] = "error"
    return f"{yaml_key(feature.name)}: {yaml_value(body)}"


def _left_out(columns: Sequence[LeftOut]) -> Iterator[str]:
    """The columns left out, with the entry that would read them; of very many only their number by reason."""
    if not columns:
        return
    yield ""
    yield "  # Left out, with the line that would read it where there is one:"
    for each in columns[:_MOST_LEFT_OUT]:
        yield from _wrapped(f"{each.column}: {each.reason}", indent="  ")
        if each.enable is not None:
            yield f"  #   {each.enable.group}: {{{comment(entry_of(each.enable))}}}"
    rest = sorted(columns[_MOST_LEFT_OUT:], key=lambda each: each.reason)
    for reason, group in groupby(rest, key=lambda each: each.reason):
        names = [each.column for each in group]
        yield from _wrapped(f"{len(names):,} more, from {names[0]} to {names[-1]}: {reason}", indent="  ")


def _noted(line: str, note: str) -> list[str]:
    """A line with its reason behind it, or above it where that is too long."""
    if not note:
        return [line]
    behind = f"{line:<{_NOTE_AT}}  # {comment(note)}"
    if len(behind) <= _WIDTH:
        return [behind]
    return [*_wrapped(note, indent=" " * (len(line) - len(line.lstrip()))), line]


def _wrapped(text: str, indent: str = "") -> list[str]:
    before = f"{indent}# "
    return textwrap.wrap(
        comment(text),
        _WIDTH,
        initial_indent=before,
        subsequent_indent=before,
        break_long_words=False,
        break_on_hyphens=False,
    )


def decisions_of(plan: InitPlan) -> Iterator[tuple[str, str]]:
    """What was decided, as rows of a table for the terminal."""
    yield "label", f"{plan.label.column}: {plan.label.task}: {plan.label.reason}"
    if plan.time is not None:
        yield "time", plan.time
    rows = "" if plan.held_out.held_out is None else f"{plan.held_out.held_out}: "
    yield "held out", f"{rows}{plan.held_out.reason}"
    counts = {group: sum(each.group == group for each in plan.features) for group in GROUPS}
    yield "features", ", ".join(f"{count} {group}" for group, count in counts.items() if count)
    for each in plan.left_out[:8]:
        yield "left out", f"{each.column}: {each.reason}"
    if len(plan.left_out) > 8:
        yield "left out", f"and {len(plan.left_out) - 8} more: see the end of `features` in pipeline.yaml"
    for feature in plan.features:
        if feature.check is not None:
            yield "check", f"{feature.name} {feature.check}"
    if plan.dedup is not None and plan.dedup.groups:
        yield "dedup", plan.dedup.reason
    for note in plan.notes:
        yield "note", note
