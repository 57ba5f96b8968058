"""Render an explanation for people: the verdict, a table of stages, and the advice.

Runs in: the process of `feedline explain`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from feedline.loader.limits.verdict import short

# --------------------------------------------------------------------------------------------------------------------
# Show what features cost, as a table on the terminal: those that cost most first. Pure, from the facts of a
# `CostAccount`.

_SHOWN = 12


def costs_table(account: Mapping[str, Any], shown: int = _SHOWN) -> Table:
    """A row per feature, up to `shown`, and what all share; times are CPU seconds per million rows."""
    block_s = account["block_s"]["cpu_s"]
    table = Table(title=f"CPU s per M rows: {block_s:.2f}", title_justify="left", caption_justify="left", expand=False)
    table.add_column("feature", overflow="fold")
    for name in ("decoding", "ops", "encoding", "share", "MB/M rows", "CPU s/epoch"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("steps that cost most", overflow="fold")
    features = sorted(account["features"], key=lambda feature: -feature["cpu_s"]["cpu_s"])
    for feature in features[:shown]:
        table.add_row(
            escape(feature["name"]),
            *(f"{max(feature[part]['cpu_s'], 0.0):.3f}" for part in ("decode_s", "ops_s", "encode_s")),
            f"{feature['share']:.1%}",
            f"{feature['nbytes'] / 1e6:,.1f}",
            f"{max(feature['epoch_cpu_s'], 0.0):,.1f}",
            escape(_steps(feature)),
        )
    hidden = len(features) - shown
    difference = account["difference_s"] / max(block_s - account["difference_s"], 1e-12)  # of the sum of the parts
    beyond = f"{abs(difference):.0%} {'more' if difference > 0 else 'less'}"
    more = f"{hidden} more features cost less: --json has all. " if hidden > 0 else ""
    table.caption = (
        f"{more}{account['shared_s']:.3f} are shared by all: files, filter, calls, the order of rows. Measured on "
        f"{account['rows']:,} rows, each column and chain alone; whole blocks take {beyond} than their sum."
    )
    return table


def _steps(feature: Mapping[str, Any]) -> str:
    """`hash_bucket 0.31 (of 3 features)`: the dearest step, and by how many features it is shared."""
    if not feature["steps"]:
        return ""
    step = max(feature["steps"], key=lambda each: each["cpu_s"])
    shared = f" (of {step['sharers']} features)" if step["sharers"] > 1 else ""
    return f"{step['op']} {step['cpu_s']:.3f}{shared}"


# --------------------------------------------------------------------------------------------------------------------

_WORTH = 1.05  # a gain from which on a headspace is one
_MOST_RANKS = 7  # with a line of their own, beside the one that is explained


def explain_view(facts: Mapping[str, Any]) -> Group:
    """The view of `explanation_facts`."""
    parts: list[RenderableType] = [escape(facts["verdict"]), _measured(facts)]
    parts += _other_ranks([each for each in facts["ranks"] if each["rank"] != facts["rank"]])
    if facts["stages"]:
        parts.append(stage_table(facts))
    parts += map(escape, headspace_lines(facts))
    if facts.get("costs"):
        if name := facts["costs"]["source"]:
            share = facts["costs"]["step_share"]
            parts.append(escape(f"Costs of the source {name}, {share:.0%} of the rows of a step:"))
        parts.append(costs_table(facts["costs"]["account"]))
    elif facts.get("costs_skipped"):
        parts.append(escape(f"Costs of features: {facts['costs_skipped']}"))
    gain = 1.0 if facts["headspace"] is None else facts["headspace"]["gain"]
    return Group(*parts, *advice_lines(facts["advice"], facts["limit"], gain))


def _measured(facts: Mapping[str, Any]) -> str:
    interval = facts["interval"]
    between = "" if interval is None else f" ({short(interval['low'])} to {short(interval['high'])})"
    early = ", stopped early" if facts["stopped"] else ""
    rank = f", rank {facts['rank']}" if len(facts["ranks"]) > 1 else ""
    source = {"short run": "of a short run", "running": "of its run", "last run": "of the last run"}[facts["source"]]
    rate = short(facts["rows_per_s"])
    return f"Measured: {rate}{between} over {facts['seconds']:.1f} s {source}{rank}{early}."


def headspace_lines(facts: Mapping[str, Any]) -> list[str]:
    """A line about the headspace, if it was asked for."""
    if (headspace := facts["headspace"]) is None:
        return []
    rate = short(headspace["rows_per_s"])
    return [f"Headspace: the trainer takes {rate} of batches that it has: {headspace['gain']:.2f}x at most."]


def _other_ranks(ranks: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each of the ranks that wait most, and one for the others."""
    ordered = sorted(ranks, key=lambda each: each["trainer_wait"] or 0.0, reverse=True)
    lines = [escape(f"rank {each['rank']}: {each['sentence']}") for each in ordered[:_MOST_RANKS]]
    if rest := ordered[_MOST_RANKS:]:
        most, least = (each["trainer_wait"] or 0.0 for each in (rest[0], rest[-1]))
        lines.append(f"{len(rest)} other ranks wait {least:.0%} to {most:.0%} of the time.")
    return lines


def stage_table(facts: Mapping[str, Any]) -> Table:
    """A row per stage: its seconds, CPU seconds, and the rate that it would allow by itself."""
    table = Table(title=None)
    for name in ("stage", "seconds", "CPU s", "alone", "95 % interval"):
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for stage in facts["stages"]:
        rate, interval, cpu = stage["rows_per_s"], stage["interval"], stage["cpu_s"]
        table.add_row(
            stage["name"],
            f"{stage['seconds']:.2f}",
            "" if cpu is None else f"{cpu:.2f}",
            "" if rate is None else short(rate),
            ""
            if interval is None or None in interval.values()
            else f"{short(interval['low'])} - {short(interval['high'])}",
        )
    return table


def advice_lines(advice: Sequence[Mapping[str, Any]], limit: str, gain: float = 1.0) -> list[str]:
    """The advice, the largest gain first. gain: the most that any loader could, by the headspace.

    A trainer that hardly waits, but takes more of batches that it has, shares the machine's cores with the loader.
    """
    no_help = "A faster loader would not help"
    if gain >= _WORTH:
        no_help = f"The trainer hardly waits: of up to {gain:.2f}x, a loader gains what it leaves of the shared cores"
    less = ", but it can take less CPU time:" if gain < _WORTH else ":"
    lines = [f"{no_help}{less}"] if advice and limit == "trainer" else []
    for number, each in enumerate(advice, 1):
        lines.append(escape(f"{number}. {each['change']}: {_gain(each)} {each['reason']}."))
        if each["caveat"]:
            lines.append(escape(f"   But: {each['caveat']}."))
    if not lines and limit:
        return ["Nothing to change is predicted to help." if limit != "trainer" else f"{no_help}."]
    return lines


def _gain(advice: Mapping[str, Any]) -> str:
    words = []
    for value, interval, form in (
        (advice["rows_ratio"], advice["rows_interval"], "{:.2f}x rows/s"),
        (advice["cpu_s_saved"], advice["cpu_interval"], "{:.2g} CPU-s per M rows saved"),
    ):
        if value > 0 and not (form.endswith("rows/s") and value < 1.005):
            between = "" if interval is None else f" ({interval['low']:.2f} to {interval['high']:.2f})"
            words.append(form.format(value) + between)
    return ", ".join(words) + "."
