"""Draw the curves of `cores.py`, and write its figures into docs/performance.md and README.md.

    python benchmarks/cores.py --json cores.json && python benchmarks/cores_page.py cores.json

The picture (docs/images/cores.svg) has a panel per shape and follows the reader's light or dark colors. Both
axes are logarithmic, so that twice the rate on twice the cores is a straight line. What was predicted is dashed in it,
and in italics in the tables. On the page everything between the two comments `<!-- cores -->` and `<!-- /cores -->` is
replaced; README's table of shapes has a column for each number of cores in `README_CORES`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PICTURE = "docs/images/cores.svg"
BEGIN, END = "<!-- cores -->", "<!-- /cores -->"
README_CORES = (2, 16)
README_ROWS = {"flat": "flat --group-rows 82000"}  # the row of README's table where it is not the shape's name
SHAPES_TABLE, ON_CORES = "| table (`--shape`)", "rows/s on "  # the table's first cell; the columns' headings
OURS, SHUFFLED = "feedline-off", "feedline"
SOLID = {OURS: "a", SHUFFLED: "b", "best": "c"}
WORDS = {
    OURS: "Feedline, shuffle: off",
    SHUFFLED: "Feedline, default shuffle",
    "best": "the best other loader",
    "predicted": "predicted (Feedline, shuffle: off)",
    "threads": "threads in one process, at most",
}
LIGHT = "--bg:#ffffff;--fg:#1b2230;--quiet:#5c6675;--line:#d9dee6;--a:#2f6fde;--b:#d97706;--c:#5c6675;"
DARK = "--bg:#12161d;--fg:#e6eaf0;--quiet:#9aa5b5;--line:#2d3542;--a:#6ea0ff;--b:#f2a33c;--c:#9aa5b5;"
STYLE = f"""
svg{{{LIGHT}background:var(--bg);font:12px system-ui,-apple-system,"Segoe UI",sans-serif}}
@media (prefers-color-scheme:dark){{svg{{{DARK}}}}}
text{{fill:var(--quiet)}} .t{{fill:var(--fg);font-weight:600;font-size:13px}} .e{{text-anchor:end}}
.m{{text-anchor:middle}} path{{fill:none;stroke-width:2}} path.g{{stroke:var(--line);stroke-width:1}}
.d{{stroke-dasharray:6 4}} .s{{stroke-dasharray:1 4}}
.a{{stroke:var(--a)}} .b{{stroke:var(--b)}} .c{{stroke:var(--c)}}
circle.a{{fill:var(--a)}} circle.b{{fill:var(--b)}} circle.c{{fill:var(--c)}} circle.h{{fill:var(--bg)}}
"""
WIDTH, HEIGHT, COLUMNS = 300, 220, 3  # of a panel; panels in a row
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 34, 34  # of a panel, around its axes
Curve = list[tuple[int, float]]


# -- the curves -------------------------------------------------------------------------------------------------------


def curves(part: Mapping[str, Any]) -> dict[str, Curve]:
    """Rows per second over cores of a shape: those of `WORDS` that were measured or predicted."""
    found: dict[str, Curve] = {}
    for name in (OURS, SHUFFLED):
        found[name] = [
            (each["cores"], each["rows_per_s"])
            for each in part["measured"]
            if each["contender"] == name and each["rows_per_s"]
        ]
    found["best"] = sorted(best_others(part["measured"]).items())
    found["predicted"] = [(each["cores"], each["rows_per_s"]) for each in part["predicted"]]
    found["threads"] = [
        (each["cores"], each["threads_alone_rows_per_s"])
        for each in part["predicted"]
        if each["threads_alone_rows_per_s"]
    ]
    return {name: sorted(curve) for name, curve in found.items() if curve}


def best_others(measured: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The best rate of the other loaders on each number of cores."""
    found: dict[int, float] = {}
    for each in measured:
        if each["contender"] not in (OURS, SHUFFLED) and each["rows_per_s"]:
            found[each["cores"]] = max(found.get(each["cores"], 0.0), each["rows_per_s"])
    return found


# -- the picture ------------------------------------------------------------------------------------------------------


def picture(parts: Sequence[Mapping[str, Any]]) -> str:
    """The SVG of all shapes."""
    lines = (len(parts) + COLUMNS) // COLUMNS  # one more panel: the legend
    width, height = COLUMNS * WIDTH, lines * HEIGHT
    drawn = [curves(part) for part in parts]
    names = [name for name in WORDS if any(name in each for each in drawn)]
    body = [_panel(part, own, *_place(number)) for number, (part, own) in enumerate(zip(parts, drawn, strict=True))]
    body.append(_legend(names, *_place(len(parts))))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
            "<title>Rows per second over cores, measured and predicted</title>",
            f"<style>{STYLE}</style>",
            *body,
            "</svg>\n",
        ]
    )


def _place(number: int) -> tuple[int, int]:
    return number % COLUMNS * WIDTH, number // COLUMNS * HEIGHT


def _panel(part: Mapping[str, Any], drawn: Mapping[str, Curve], x: int, y: int) -> str:
    cores = sorted({count for curve in drawn.values() for count, _ in curve})
    rates = [rate for curve in drawn.values() for _, rate in curve]
    ticks = _ticks(min(rates), max(rates))

    def at(count: int, rate: float) -> tuple[float, float]:
        across = cores.index(count) / max(1, len(cores) - 1)
        up = math.log(rate / ticks[0]) / math.log(ticks[-1] / ticks[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (1 - up) * (HEIGHT - TOP - BOTTOM)

    out = [f'<g transform="translate({x} {y})"><text class="t" x="{LEFT}" y="20">{escape(part["shape"])}</text>']
    for tick in ticks:
        left, height = at(cores[0], tick)
        out.append(f'<path class="g" d="M{left:.1f} {height:.1f}H{WIDTH - RIGHT}"/>')
        out.append(f'<text class="e" x="{LEFT - 6}" y="{height + 4:.1f}">{_short(tick)}</text>')
    out += [f'<text class="m" x="{at(count, ticks[0])[0]:.1f}" y="{HEIGHT - 16}">{count}</text>' for count in cores]
    out += [_line(name, [at(*point) for point in drawn[name]]) for name in reversed(WORDS) if name in drawn]
    return "\n".join([*out, "</g>"])


def _line(name: str, points: Sequence[tuple[float, float]]) -> str:
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    if name == "threads":
        return f'<path class="c s" d="{path}"/>'
    kind = SOLID.get(name, "a")
    line, dot = (f"{kind} d", f"{kind} h") if name == "predicted" else (kind, kind)
    dots = "".join(f'<circle class="{dot}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points)
    return f'<path class="{line}" d="{path}"/>{dots}'


def _legend(names: Sequence[str], x: int, y: int) -> str:
    out = [f'<g transform="translate({x} {y})">']
    for number, name in enumerate(names):
        height = TOP + 24 * number
        out.append(_line(name, [(LEFT - 30, height), (LEFT + 6, height)]))
        out.append(f'<text x="{LEFT + 16}" y="{height + 4}">{escape(WORDS[name])}</text>')
    out.append(f'<text x="{LEFT - 30}" y="{TOP + 24 * len(names) + 12}">rows per second over cores</text></g>')
    return "\n".join(out)


def _ticks(least: float, most: float) -> list[float]:
    """1, 2 and 5 times powers of ten, from the last one below the rates to the first one above them."""
    # rates from 640 k to 10.3 M: 500 k, 1 M, 2 M, 5 M, 10 M, 20 M
    all_ticks = [step * 10.0**power for power in range(12) for step in (1, 2, 5)]
    first = max(index for index, tick in enumerate(all_ticks) if tick <= max(1.0, least))
    last = min(index for index, tick in enumerate(all_ticks) if tick >= most)
    return all_ticks[first : max(last, first + 1) + 1]


def _short(rate: float) -> str:
    return f"{rate / 1e6:,.3g} M" if rate >= 1e6 else f"{rate / 1e3:,.3g} k"


# -- the tables -------------------------------------------------------------------------------------------------------


def table(parts: Sequence[Mapping[str, Any]]) -> str:
    """The figures as Markdown: a row per shape, what was predicted in italics."""
    counts = sorted({each["cores"] for part in parts for each in (*part["measured"], *part["predicted"])})
    headings = ["rows/s after the first batch, `shuffle: off`"]
    headings += [f"{count} core{'s' if count > 1 else ''}" for count in counts]
    headings += ["bound by, at the end", "predicted, of measured", "of the best other loader", "threads, at most"]
    lines = [f"| {' | '.join(headings)} |", "|" + "---|" * len(headings)]
    lines += [f"| {' | '.join(_cells(part, counts))} |" for part in parts]
    return "\n".join(lines)


def _cells(part: Mapping[str, Any], counts: Sequence[int]) -> Iterator[str]:
    drawn = curves(part)
    measured, best = dict(drawn.get(OURS, [])), dict(drawn.get("best", []))
    yield f"{part['shape']}, {part['rows']:,} rows" + (f", {part['ranks']} ranks" if part["ranks"] > 1 else "")
    for count in counts:
        yield rate_cell(part, count)
    yield part["predicted"][-1]["bound"] if part["predicted"] else "-"
    found = [f"{1 + each['apart']:.2f}" for each in part["predicted"] if each["apart"] is not None]
    yield "; ".join(found) or "-"
    yield "; ".join(f"{measured[count] / best[count]:.2f}" for count in measured if count in best) or "-"
    share = (part["counted"] or {}).get("lock_share")
    yield f"{1 / share:.1f} cores" if share else "-"


def rate_cell(part: Mapping[str, Any], cores: int) -> str:
    """Feedline's rate in the table's order on so many cores: measured, else predicted in italics."""
    drawn = curves(part)
    measured, predicted = dict(drawn.get(OURS, [])), dict(drawn.get("predicted", []))
    if cores in measured:
        return _short(measured[cores])
    return f"*{_short(predicted[cores])}*" if cores in predicted else "-"


# -- the pages --------------------------------------------------------------------------------------------------------


def with_figures(text: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """A page with picture and table between the two comments. Raises ValueError if it has not both."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the figures: expected {BEGIN} and {END}")
    image = f"![Rows per second over cores, by shape](images/{Path(PICTURE).name})"
    return f"{before}{BEGIN}\n{image}\n\n{table(parts)}\n{END}{after}"


def with_columns(text: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """README with the columns of `README_CORES` in its table of shapes; those that it had are replaced. Raises
    ValueError if it has no such table."""
    if SHAPES_TABLE not in text:
        raise ValueError(f"README has no table of shapes: expected a line that begins with {SHAPES_TABLE!r}")
    names = {README_ROWS.get(part["shape"], part["shape"]): part for part in parts if part["ranks"] == 1}
    measured = {each["cores"] for part in names.values() for each in part["measured"]}
    headings = [f"{ON_CORES}{count} cores{'' if count in measured else ' (*predicted*)'}" for count in README_CORES]
    lines, inside = text.split("\n"), False
    for number, line in enumerate(lines):
        inside = line.startswith(SHAPES_TABLE) or (inside and line.startswith("|"))
        if not inside:
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("table ("):
            kept = [index for index, cell in enumerate(cells) if not cell.startswith(ON_CORES)]
            added = headings
        elif set(line) <= set("|-"):
            added = ["---"] * len(headings)
        else:
            name = re.match(r"`([^`]+)`", cells[0])
            part = names.get(name[1]) if name else None
            added = ["-" if part is None else rate_cell(part, count) for count in README_CORES]
        shown = [*(cells[index] for index in kept), *added]
        lines[number] = f"|{'|'.join(shown)}|" if set(line) <= set("|-") else f"| {' | '.join(shown)} |"
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Write picture and pages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", metavar="FILE", help="written by `cores.py --json`")
    parser.add_argument("--root", type=Path, default=ROOT, help="of docs/ and README.md (default: this repository)")
    parser.add_argument("--print", action="store_true", help="only print the table")
    options = parser.parse_args(arguments)
    parts = json.loads(Path(options.figures).read_text())["parts"]
    if options.print:
        print(table(parts))
        return 0
    alone = [part for part in parts if part["ranks"] == 1]
    (options.root / PICTURE).write_text(picture(alone))
    for name, write in (("docs/performance.md", with_figures), ("README.md", with_columns)):
        path = options.root / name
        path.write_text(write(path.read_text(), parts))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
