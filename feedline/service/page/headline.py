"""The first sentence of the live page: what limits a job, and what would change it.

Runs in: the process that serves the page. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from feedline.loader.limits.capacities import capacity_in_form
from feedline.loader.limits.run_facts import Capacity
from feedline.loader.limits.verdict import Verdict, judge
from feedline.service.page.job_view import JobView, LimitedRank
from feedline.service.page.page_parts import Headline, duration_text

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
    return capacity_in_form(
        feeder.form,
        replace(stats, threads=stats.threads or feeder.threads // max(1, len(feeder.ranks))),
        cores=feeder.cores,
        workers=feeder.workers,
        epochs=max(feeder.epochs, stats.epoch + 1),
        cached=stats.delivery.cached is not None,
    )


def _advice(verdict: Verdict) -> str:
    """The change that promises most; where to find the others."""
    if not verdict.advice:
        return ""
    best = verdict.advice[0]
    gain = f", predicted {best.rows_ratio:.2g} x the rows/s" if best.rows_ratio > 1 else ""
    return f"Would help: {best.change}{gain} ({best.reason}). All advice: feedline explain --attach."
