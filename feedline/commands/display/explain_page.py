"""Show what limits a run, and what its features cost, as one page of HTML: `feedline explain --html`.

Runs in: the process of the command. Pure: from the facts of `feedline explain --json`, with or without costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from feedline.commands.display.explain_table import asked_lines
from feedline.commands.display.html_page import (
    Markup,
    folded,
    html_element,
    html_table,
    number_tiles,
    page_section,
    render_page,
)
from feedline.commands.display.html_pictures import (
    BarRow,
    FlameNode,
    html_bars,
    html_flame,
    html_timeline,
    plain_number,
)

Facts = Mapping[str, Any]

_BARS = 40  # features that are drawn; a table has all
_PER_MILLION = "CPU seconds per million rows"


def explain_page(facts: Facts) -> str:
    """The page of an explanation's facts."""
    costs = facts.get("costs") or {}
    account = costs.get("account")
    sections = [
        _tiles(facts, account),
        _advice(facts.get("advice") or ()),
        _waits(facts.get("samples") or ()),
        _stages(facts.get("stages") or (), facts.get("bounds") or ()),
        *(html_element("p", line) for line in asked_lines(facts)),
    ]
    if account:
        sections += [_flame(account), _features(account), _columns(account)]
    if facts.get("costs_skipped"):
        sections.append(html_element("p", f"Costs of features: {facts['costs_skipped']}", class_="quiet"))
    return render_page(
        f"{facts.get('name', '')}: what limits it",
        sections,
        lead=facts.get("verdict", ""),
        note=f"From a {facts['source']}, {plain_number(facts.get('seconds') or 0)} s" if facts.get("source") else "",
    )


def _tiles(facts: Facts, account: Facts | None) -> Markup:
    tiles: dict[str, object] = {}
    if facts.get("rows_per_s"):
        tiles["rows/s"] = plain_number(facts["rows_per_s"])
    if facts.get("trainer_wait") is not None:
        tiles["of the time the trainer waits"] = f"{facts['trainer_wait']:.0%}"
    if facts.get("bound"):
        tiles["rows/s that the limit allows"] = plain_number(facts["bound"])
    if account:
        tiles["CPU-s per million rows"] = plain_number(account["block_s"]["cpu_s"])
        tiles["CPU-s per epoch"] = plain_number(account["block_s"]["cpu_s"] * account["epoch_rows"] / 1e6)
    return number_tiles(tiles)


def _advice(advice: Sequence[Facts]) -> Markup:
    if not advice:
        return page_section("What would change it", html_element("p", "Nothing that was measured would."))
    rows = [
        (
            each["change"],
            each["reason"],
            _rows_gain(each),
            _with_interval(each.get("cpu_s_saved"), each.get("cpu_interval")),
            each.get("caveat", ""),
        )
        for each in advice
    ]
    return page_section(
        "What would change it",
        html_table(["change", "because", "rows/s", "CPU-s saved", "but"], rows, numbers=(2, 3)),
        note="Each by itself, the largest gain first. CPU seconds are per million rows. In brackets: the interval.",
    )


def _rows_gain(advice: Facts) -> str:
    ratio, interval = advice.get("rows_ratio") or 1.0, advice.get("rows_interval")
    if ratio < 1.005:
        return "as now"
    gain = f"{ratio - 1:+.0%}"
    ends = [f"{interval[end] - 1:+.0%}" for end in ("low", "high")] if interval else []
    return gain if set(ends) <= {gain} else f"{gain} ({' to '.join(ends)})"


def _with_interval(value: float | None, interval: Facts | None) -> str:
    if not value:
        return ""
    ends = "" if not interval else f" ({plain_number(interval['low'])} to {plain_number(interval['high'])})"
    return f"{value:,.3g}{ends}"


def _waits(samples: Sequence[Facts]) -> Markup:
    """Who waited, second by second."""
    busy = [sample for sample in samples if sample.get("wall_s")]
    if not busy:
        return Markup("")
    ends = list(accumulate(sample["wall_s"] for sample in busy))
    times = [each for pair in zip([0.0, *ends], ends, strict=False) for each in pair]  # a sample is a step

    def share(name: str) -> list[float]:
        shares = [min(max((sample.get(name) or 0.0) / sample["wall_s"], 0.0), 1.0) for sample in busy]
        return [each for each in shares for _ in range(2)]

    trainer, feeder = share("trainer_wait_s"), share("wait_slots_s")
    feeder = [min(each, 1 - own) for each, own in zip(feeder, trainer, strict=True)]
    rest = [max(1 - one - other, 0.0) for one, other in zip(trainer, feeder, strict=True)]
    series = {"the trainer waits for a batch": trainer, "batches wait for the trainer": feeder, "neither": rest}
    picture = html_timeline(times, series, name="Who waited", most=1.0, number=lambda value: f"{value:.0%}")
    return page_section("Who waited", picture)


def _stages(stages: Sequence[Facts], bounds: Sequence[Facts]) -> Markup:
    if not stages:
        return Markup("")
    rows = [
        (stage["name"], _number(stage.get("seconds")), _number(stage.get("cpu_s")), _number(stage.get("rows_per_s")))
        for stage in stages
    ]
    table = html_table(["stage", "seconds", "CPU-s", "rows/s by itself"], rows, numbers=(1, 2, 3))
    limits = [(each["resource"], _number(each.get("rows_per_s"))) for each in bounds]
    bound = html_table(["resource", "rows/s that it allows"], limits, numbers=(1,)) if limits else ""
    return page_section("Stages and limits", table, bound)


def _number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else plain_number(value)


def _flame(account: Facts) -> Markup:
    features = account["features"]
    decode = _node("decoding", [_leaf(each["name"], each["cpu_s"]["cpu_s"]) for each in account["columns"]], 0)
    ops = _node("ops", [_chain(feature) for feature in features], 1)
    encode = _node("encoding", [_leaf(each["name"], each["encode_s"]["cpu_s"]) for each in features], 2)
    shared = _leaf("shared", account["shared_s"], 3)
    parts = [decode, ops, encode, shared]
    total = max(account["block_s"]["cpu_s"], sum(part.value for part in parts))
    rest = total - sum(part.value for part in parts)
    root = FlameNode(
        name=f"a block: {plain_number(account['block_s']['cpu_s'])} {_PER_MILLION}",
        value=total,
        children=tuple(sorted((*parts, _leaf("not accounted for", rest, 5)), key=lambda node: -node.value)),
        color=4,
    )
    difference = account["difference_s"] / max(account["block_s"]["cpu_s"], 1e-12)
    note = (
        f"{_PER_MILLION}, measured on {account['rows']:,} rows ({account['blocks']} blocks). Columns and ops were "
        "measured alone; what all share (files, filter, calls, order) is apart. Whole blocks take "
        f"{abs(difference):.0%} {'more' if difference > 0 else 'less'} than the sum of these parts."
    )
    return page_section("Where CPU time goes", html_flame(root), note=note)


def _node(name: str, children: Sequence[FlameNode], color: int) -> FlameNode:
    value = sum(child.value for child in children)
    ordered = tuple(sorted(children, key=lambda node: -node.value))
    words = f"{name}: {plain_number(value)} {_PER_MILLION}"
    return FlameNode(name=name, value=value, children=ordered, detail=words, color=color)


def _leaf(name: str, value: float, color: int | None = None) -> FlameNode:
    words = f"{name}: {plain_number(max(value, 0.0))} {_PER_MILLION}"
    return FlameNode(name=name, value=max(value, 0.0), detail=words, color=color)


def _chain(feature: Facts) -> FlameNode:
    steps = tuple(_leaf(step["op"], step["cpu_s"] / step["sharers"]) for step in feature["steps"])
    own = _leaf(feature["name"], feature["ops_s"]["cpu_s"])
    return FlameNode(name=own.name, value=own.value, children=steps, detail=own.detail)


def _features(account: Facts) -> Markup:
    features = sorted(account["features"], key=lambda feature: -feature["cpu_s"]["cpu_s"])
    bars = [
        BarRow(
            name=feature["name"],
            parts=tuple(max(feature[part]["cpu_s"], 0.0) for part in ("decode_s", "ops_s", "encode_s")),
            text=f"{feature['share']:.1%}",
        )
        for feature in features[:_BARS]
    ]
    has_problems = any(feature["problems"] for feature in features)
    rows = [
        (
            feature["name"],
            feature["group"],
            ", ".join(feature["columns"]),
            _with_interval(feature["cpu_s"]["cpu_s"], feature["cpu_s"]),
            _number(feature["epoch_cpu_s"]),
            _megabytes(feature["nbytes"]),
            _megabytes(feature["epoch_bytes"]),
            *([f"{feature['problems']:.0%}"] if has_problems else []),
        )
        for feature in features
    ]
    head = ["feature", "group", "columns", "CPU-s / M rows", "CPU-s / epoch", "MB / M rows", "MB / epoch"]
    head += ["problems of quality"] if has_problems else []
    table = html_table(head, rows, numbers=range(3, len(head)))
    return page_section(
        "What a feature costs",
        html_bars(bars, ("decoding", "ops", "encoding")),
        folded("All features as a table", table),
        note="Shares of a block's CPU time. Columns and steps that several features share are paid in equal parts.",
    )


def _columns(account: Facts) -> Markup:
    columns = sorted(account["columns"], key=lambda column: -column["cpu_s"]["cpu_s"])
    rows = [
        (
            column["name"],
            _with_interval(column["cpu_s"]["cpu_s"], column["cpu_s"]),
            _megabytes(column["bytes"]),
            ", ".join(column["encodings"]).lower(),
            ", ".join(column["codecs"]),
            column["decoder"] if column["is_measured"] else f"{column['decoder']} (cost by bytes)",
        )
        for column in columns
    ]
    head = ["column", "CPU-s / M rows", "MB / M rows", "encoding", "codec", "decoder"]
    return page_section("What a column costs to decode", html_table(head, rows, numbers=(1, 2)))


def _megabytes(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.3g}" if nbytes < 1e8 else f"{nbytes / 1e6:,.0f}"
