"""Draw docs/images/picture-light.svg and picture-dark.svg: Feedline in one picture.

    python tools/pictures.py [FOLDER]

Both are drawn from one list of boxes and arrows. Words stay legible where the picture is shrunk to a telephone's width.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 600, 716
TITLE = "From a Parquet warehouse through workers, feeder and ring to the trainers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colors of one scheme. fill: of boxes by kind; the page shows between them."""

    text: str
    faint: str
    line: str
    data: str
    work: str
    memory: str


PALETTES = {
    "light": Palette(text="#1b1f24", faint="#57606a", line="#6e7781", data="#dff3ee", work="#e7eefb", memory="#fdf1d6"),
    "dark": Palette(text="#e6edf3", faint="#a5b0bb", line="#8b949e", data="#12443a", work="#1d3557", memory="#4d3c12"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with a name and lines below it. kind: data, work or memory."""

    x: int
    y: int
    width: int
    height: int
    kind: str
    name: str
    lines: tuple[str, ...] = ()

    def svg(self, palette: Palette) -> str:
        """The rectangle and its words, in the middle."""
        fill, middle = getattr(palette, self.kind), self.x + self.width / 2
        top = self.y + self.height / 2 - 10 * len(self.lines) + 5
        words = [_word(middle, top, self.name, palette.text, 'font-weight="600"')]
        words += [_word(middle, top + 20 * (row + 1), line, palette.faint) for row, line in enumerate(self.lines)]
        shape = f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="8"'
        return f'{shape} fill="{fill}" stroke="{palette.line}"/>' + "".join(words)


BOXES = (
    Box(
        x=10,
        y=10,
        width=280,
        height=76,
        kind="data",
        name="1  Parquet warehouse",
        lines=("days of files on a disk", "or in an object store"),
    ),
    Box(
        x=310,
        y=10,
        width=280,
        height=76,
        kind="data",
        name="2  pipeline.yaml",
        lines=("which rows, and what", "features they become"),
    ),
    Box(
        x=10,
        y=126,
        width=580,
        height=58,
        kind="work",
        name="3  Plan",
        lines=("every rank's rows of every step, before the first batch",),
    ),
    Box(x=10, y=224, width=150, height=78, kind="memory", name="5  Cache", lines=("finished", "features")),
    Box(
        x=190,
        y=224,
        width=220,
        height=78,
        kind="work",
        name="4  Workers",
        lines=("processes of the host", "or a Dask cluster"),
    ),
    Box(
        x=440, y=224, width=150, height=78, kind="data", name="6  Artifacts", lines=("what fit learnt", "from the rows")
    ),
    Box(
        x=190,
        y=356,
        width=220,
        height=60,
        kind="work",
        name="7  Feeder, one per host",
        lines=("cuts steps from blocks",),
    ),
    Box(x=440, y=356, width=150, height=78, kind="work", name="10  Serving", lines=("the same ops", "for requests")),
    Box(x=10, y=466, width=280, height=96, kind="memory", name="8  Ring of rank 0", lines=("", "")),
    Box(x=310, y=466, width=280, height=96, kind="memory", name="8  Ring of rank 1", lines=("", "")),
    Box(
        x=10,
        y=622,
        width=280,
        height=84,
        kind="work",
        name="9  Trainer, rank 0",
        lines=("tensors are views of a slot,", "one copy brings it to a GPU"),
    ),
    Box(
        x=310,
        y=622,
        width=280,
        height=84,
        kind="work",
        name="9  Trainer, rank 1",
        lines=("its state is a few numbers:", "a run resumes at any step"),
    ),
)
# The points of each arrow, and the words beside its end.
ARROWS = (
    (((150, 86), (150, 124)), ""),
    (((450, 86), (450, 124)), ""),
    (((300, 184), (300, 222)), ""),
    (((162, 263), (188, 263)), ""),
    (((438, 263), (412, 263)), ""),
    (((515, 302), (515, 354)), ""),
    (((300, 302), (300, 354)), "blocks"),
    (((250, 416), (150, 464)), ""),
    (((350, 416), (450, 464)), ""),
    (((150, 562), (150, 620)), "batches"),
    (((450, 562), (450, 620)), "batches"),
)
SLOTS = tuple((left + 14 + 64 * slot, 512) for left in (10, 310) for slot in range(4))


def _word(x: float, y: float, text: str, color: str, more: str = "", anchor: str = "middle") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}" {more}>{escape(text)}</text>' if text else ""
    )


def _arrow(points: tuple[tuple[int, int], ...], label: str, palette: Palette) -> str:
    path = " ".join(f"{x},{y}" for x, y in points)
    (x, y), (end_x, end_y) = points
    words = _word((x + end_x) / 2 + 10, (y + end_y) / 2 + 5, label, palette.faint, anchor="start")
    return (
        f'<polyline points="{path}" fill="none" stroke="{palette.line}" stroke-width="2" marker-end="url(#end)"/>'
        + words
    )


def picture(palette: Palette) -> str:
    """The whole picture as SVG."""
    marker = f'<path d="M0 0 8 4 0 8z" fill="{palette.line}"/>'
    slots = "".join(
        f'<rect x="{x}" y="{y}" width="60" height="36" rx="4" fill="none" stroke="{palette.line}"/>'
        + _word(x + 30, y + 23, "slot", palette.faint)
        for x, y in SLOTS
    )
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    end = 'markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto" markerUnits="userSpaceOnUse"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" font-size="15">',
        f"<title>{TITLE}</title>",
        f'<defs><marker id="end" {end}>{marker}</marker></defs>',
        *(_arrow(points, label, palette) for points, label in ARROWS),
        *(box.svg(palette) for box in BOXES),
        slots,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw(folder: Path) -> None:
    """Write the pictures of both schemes."""
    for scheme, palette in PALETTES.items():
        (folder / f"picture-{scheme}.svg").write_text(picture(palette), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
