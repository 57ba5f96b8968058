"""The first sentence of the live page: what limits a job.

Runs in: the process that serves the page. Pure.
"""

from __future__ import annotations

from feedline.service.page.job_view import JobView
from feedline.service.page.page_parts import Headline, percent_text

_WAITS = 0.05  # a trainer that waits for less of its time is the limit itself


def headline_of(view: JobView) -> Headline:
    """What limits a job, from what its trainers and rings say."""
    if view.state != "feeding" or view.trainer is None:
        texts = {
            "waiting": "The feeder waits for its trainers.",
            "planning": "The plan is made: files are listed, rows counted.",
            "ended": "The trainers have ended.",
        }
        return Headline(side="", badge=view.state, sentence=texts.get(view.state, "Measuring: the first batches come."))
    if view.trainer < _WAITS:
        ring = f"; the emptiest ring is {percent_text(view.buffers.fill)} full" if view.buffers.fill is not None else ""
        return Headline(
            side="trainer",
            badge="● trainer is the limit",
            sentence=f"The trainer is the limit: it waits for data {percent_text(view.trainer)} of its time{ring}.",
        )
    slowest = max(view.work.stages, key=lambda stage: stage.share, default=None)
    why = "" if slowest is None else f": {slowest.name} takes {percent_text(slowest.share)} of computing blocks"
    return Headline(
        side="data",
        badge="▲ data is the limit",
        sentence=f"The trainer waits {percent_text(view.trainer)} of its time{why}.",
    )
