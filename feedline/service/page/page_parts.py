"""Write the parts of the live page as HTML. Jinja escapes every value.

Runs in: the process that serves the page, once a second while somebody looks. Pure, but for the templates beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from feedline.dataclass import dataclass
from feedline.loader.limits.run_facts import Capacity, capacity_in_form
from feedline.loader.limits.verdict import Verdict, judge
from feedline.service.page.job_view import JobView, LimitedRank, RankRow

FOLDER = Path(__file__).resolve().parent
RANKS = 64  # in the table: the first ones, and any that has trouble
UNKNOWN = "\N{EN DASH}"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
# Characters that turn the direction of the text after them: a name with one would change what the page says.
_TURNS = dict.fromkeys(
    (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\N{REPLACEMENT CHARACTER}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenJob:
    """The job of a page's address. job: as asked for ("": none); shown: the one that is shown (None: there are
    several, or none); scheduler: the address that a pipeline.yaml names ("": the page is of one feeder)."""

    job: str
    shown: str | None
    scheduler: str

    @property
    def missing(self) -> bool:
        return bool(self.job) and self.shown is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """What limits a job, in a sentence. side: "data", "trainer", "error" or "" (unknown, or none of them)."""

    side: str
    badge: str
    sentence: str
    detail: str = ""


def choose_job(asked: str, jobs: Sequence[str], scheduler: str) -> ChosenJob:
    """The job to show: the one asked for, or the only one."""
    shown = asked if asked in jobs else None
    if not asked and len(jobs) == 1:
        shown = jobs[0]
    return ChosenJob(job=asked, shown=shown, scheduler=scheduler)


def jobs_html(views: Sequence[JobView], chosen: ChosenJob) -> str:
    """The list of jobs; empty if there is one, and it is shown."""
    return _render("jobs", views, chosen)


def headline_html(view: JobView, headline: Headline) -> str:
    return _render("verdict", view, headline)


def now_html(view: JobView) -> str:
    return _render("now", view)


def ranks_html(view: JobView) -> str:
    rows, hidden = visible_ranks(view.ranks)
    return _render("ranks", view, rows, hidden)


def details_html(view: JobView) -> str:
    return _render("details", view)


def visible_ranks(rows: Sequence[RankRow]) -> tuple[list[RankRow], int]:
    """The rows that the table has room for, and how many are left out: of many, the first ones, and as many of those
    with trouble."""
    if len(rows) <= RANKS:
        return list(rows), 0
    trouble = [row for row in rows[RANKS:] if row.straggler or row.status.starved or row.status.error or row.silent_s]
    shown = [*rows[:RANKS], *trouble[:RANKS]]
    return shown, len(rows) - len(shown)


def page_template() -> Template:
    """The template of the whole page."""
    # Without escaping, as Bokeh's own: its variables are finished HTML, and none comes from a job.
    return Environment(loader=FileSystemLoader(str(FOLDER)), autoescape=False).get_template("page.html")


def count_text(value: float | None) -> str:
    """An integer with commas; in millions or billions from ten million on."""
    if value is None:
        return UNKNOWN
    for factor, unit in ((10**10, "G"), (10**7, "M")):
        if value >= factor:
            return f"{value / (factor / 10):,.1f} {unit}"
    return f"{value:,.0f}"


def percent_text(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def duration_text(seconds: float | None) -> str:
    """Seconds as `42 s`, `3 min 7 s`, `1 h 2 min`, `3 d 4 h`."""
    if seconds is None:
        return UNKNOWN
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY:,} d {whole % _DAY // _HOUR} h"


def ago_text(at_s: float, now_s: float) -> str:
    """How long ago, in whole minutes, hours or days."""
    seconds = max(0.0, now_s - at_s)
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def size_text(nbytes: float | None) -> str:
    """Bytes in the unit of which there are at least a tenth."""
    if nbytes is None:
        return UNKNOWN
    for unit, factor in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= factor / 10:
            return f"{nbytes / factor:,.1f} {unit}"
    return f"{nbytes:,.0f} B"


def _render(part: str, *values: object) -> str:
    macro: Any = getattr(_parts(), part)
    return str(macro(*values)).strip()


def _in_one_direction(value: object) -> object:
    return value.translate(_TURNS) if type(value) is str else value


@cache
def _parts() -> Any:
    environment = Environment(
        loader=FileSystemLoader(str(FOLDER)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_in_one_direction,
    )
    environment.filters.update(
        count=count_text, percent=percent_text, duration=duration_text, ago=ago_text, size=size_text
    )
    return environment.get_template("parts.html").module


# --------------------------------------------------------------------------------------------------------------------
# The first sentence of the live page: what limits a job, and what would change it.

_STATES = {
    "waiting": "The feeder waits for its trainers.",
    "planning": "The plan is being made: files are listed, rows counted.",
    "waiting for files": "The next epoch begins when files of the followed table have landed.",
    "ended": "The trainers have ended.",
}


def headline_of(view: JobView) -> Headline:
    """What limits the rank whose trainer waits most, by the last seconds; before that, what has ended or is silent."""
    if view.errors:
        (source, text), *others = view.errors
        more = f"{len(others)} more below. " if others else ""
        goes_on = "" if view.state == "ended" else "Ranks that train together wait for it. "
        detail = f"{more}{goes_on}Its trainer raised the same error; the log of its feeder has all of it."
        return Headline(
            side="error", badge="✕ error", sentence=f"{source.capitalize()} ended with an error: {text}", detail=detail
        )
    if view.silent:
        longest = duration_text(max(row.silent_s for row in view.silent))
        hosts = ", ".join(dict.fromkeys(row.host for row in view.silent))
        return Headline(
            side="error",
            badge="△ silent",
            sentence=f"Nothing was heard for {longest} from {len(view.silent)} of {len(view.ranks)} ranks.",
            detail=f"Their feeder has stopped, or is cut off: see its log on {hosts}. Numbers are of its last status.",
        )
    if view.slowest is None:
        words = _STATES.get(view.state, "Measuring: the first batches are on their way.")
        return Headline(side="", badge=view.state, sentence=words)
    # One sample: the intervals of several would cost more time than the page may take of a scheduler.
    verdict = judge([view.slowest.facts], _capacity(view.slowest))
    badge = {"trainer": "● the trainer is the limit", "": "measuring"}.get(verdict.limit, "▲ data is the limit")
    side = {"trainer": "trainer", "": ""}.get(verdict.limit, "data")
    who = f"Rank {view.slowest.rank.rank}, whose trainer waits most. " if len(view.ranks) > 1 and side == "data" else ""
    return Headline(side=side, badge=badge, sentence=verdict.sentence, detail=who + _advice(verdict))


def _capacity(slowest: LimitedRank) -> Capacity:
    feeder, stats = slowest.feeder, slowest.rank.stats
    stats = replace(stats, threads=stats.threads or feeder.threads // max(1, len(feeder.ranks)))
    capacity = capacity_in_form(feeder.form, stats, cores=feeder.cores, workers=feeder.workers)
    return replace(capacity, epochs=max(feeder.epochs, stats.epoch + 1), cached=stats.delivery.cached is not None)


def _advice(verdict: Verdict) -> str:
    """The change that promises most; where to find the others."""
    if not verdict.advice:
        return ""
    best = verdict.advice[0]
    gain = f", predicted {best.rows_ratio:.2g} x the rows/s" if best.rows_ratio > 1 else ""
    return f"Would help: {best.change}{gain} ({best.reason}). All advice: feedline explain --attach."
