"""The HTML of the live page: names are escaped, every state can be shown, and what limits a job is said first."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from page_statuses import START_S, status_at, troubled

from feedline.loader.wire.facts import FeederStats
from feedline.loader.wire.run_status import FeederDecision, FeederStatus, RankStatus, ReadPart
from feedline.service.page.job_view import JobView, SourcedText, view_job
from feedline.service.page.page_parts import (
    _STATES,
    RANKS,
    ago_text,
    choose_job,
    count_text,
    details_html,
    duration_text,
    headline_html,
    headline_of,
    jobs_html,
    now_html,
    percent_text,
    ranks_html,
    size_text,
)
from feedline.service.page.status_history import StatusHistory

EVIL = "<script>alert(1)</script>\"'{{ 7*7 }}&amp;"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BIDI_CONTROLS = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")


class Tags(HTMLParser):
    """The tags of a piece of HTML that are open, and all that were."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.words: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def views(*statuses: FeederStatus) -> list[JobView]:
    history = StatusHistory()
    history.add(statuses, now_s=START_S)
    return [view for job in history.jobs() if (view := view_job(history, job)) is not None]


def whole(status: FeederStatus) -> str:
    """All parts of a job's page."""
    (view,) = views(status)
    listed = jobs_html([view, view], choose_job("none", [], "tcp://host:8786"))
    return listed + headline_html(view, headline_of(view)) + now_html(view) + ranks_html(view) + details_html(view)


def test_names_cannot_be_code():
    status = troubled(status_at(10))
    rank = replace(status.ranks[0], findings=(EVIL,), error=EVIL)
    assert rank.plan is not None
    rank = replace(rank, plan=replace(rank.plan, pruning=(ReadPart(what=EVIL, total=2, kept=1),)))
    evil = replace(
        status,
        job=EVIL,
        name=EVIL,
        pipeline=EVIL,
        host=EVIL,
        version=EVIL,
        form=EVIL,
        ranks=(rank,),
        decisions=(FeederDecision(at_s=START_S, topic="cache", text=EVIL),),
    )
    html = whole(evil)
    tags = Tags(html)
    assert "script" not in tags.seen
    assert not tags.open
    assert sum(EVIL in words for words in tags.words) >= 8  # each is shown as it is
    assert "alert(1)</script>" not in html


def test_the_kernels_are_named():
    status = status_at(10)
    assert "Feedline 0.1.0, kernels: none" in whole(replace(status, kernels=()))
    assert "Feedline 0.1.0, kernels: ring, rows" in whole(replace(status, kernels=("ring", "rows")))


def test_a_name_cannot_turn_the_direction_of_the_page():
    """Of all characters that Unicode's algorithm obeys, none reaches the page."""
    turns = [each for each in map(chr, range(0x3000)) if unicodedata.bidirectional(each) in BIDI_CONTROLS]
    marks = ["\u061c", "\u200e", "\u200f"]
    name = f"a{''.join([*turns, *marks])}z"
    html = whole(replace(troubled(status_at(10)), job=name, name=name, pipeline=name, host=name))
    assert len(turns) == 9
    assert not set(html) & {*turns, *marks}
    assert html.count(f"a{12 * REPLACEMENT}z") >= 4


def test_the_straggler_is_named_above_the_table():
    (view,) = views(status_at(10, ranks=3))
    assert "straggler" not in ranks_html(view)
    rows = (*view.ranks[:2], replace(view.ranks[2], straggler=True))
    assert "straggler: rank 2</span></h2>" in ranks_html(replace(view, ranks=rows))


@pytest.mark.parametrize(
    "status",
    [
        status_at(0),
        status_at(10),
        troubled(status_at(10, ranks=1)),
        replace(status_at(3), ranks=()),
        replace(status_at(3), ranks=(RankStatus(rank=-1, state="waiting", stats=FeederStats()),)),
        replace(status_at(3), ranks=(RankStatus(rank=0, state="planning", stats=FeederStats()),), form="processes"),
    ],
)
def test_every_state_of_a_job_has_a_page(status: FeederStatus):
    tags = Tags(whole(status))
    assert not tags.open
    assert "None" not in "".join(tags.words)


def test_several_jobs_are_a_list_of_links():
    both = views(status_at(5), status_at(5, job="b&c"))
    html = jobs_html(both, choose_job("", ["job-a", "b&c"], ""))
    assert 'href="feedline?job=job-a"' in html
    assert 'href="feedline?job=b%26c"' in html
    assert "Choose a job" in html
    chosen = jobs_html(both, choose_job("b&c", ["job-a", "b&c"], ""))
    assert 'href="feedline?job=b%26c"' not in chosen
    assert "Choose a job" not in chosen


def test_of_many_ranks_those_with_trouble_are_shown():
    status = status_at(10, ranks=RANKS + 40)
    starved = replace(status.ranks[-1], starved=True)
    (view,) = views(replace(status, ranks=(*status.ranks[:-1], starved)))
    html = ranks_html(view)
    assert html.count("<tr>") == 1 + RANKS + 1
    assert "waits for a block" in html
    assert "39 more ranks" in html


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count_text(None), "–"),  # noqa: RUF001 -- the sign of what is unknown
        (count_text(1234), "1,234"),
        (count_text(23_456_789), "23.5 M"),
        (count_text(12_345_678_901), "12.3 G"),
        (percent_text(0.413), "41 %"),
        (duration_text(42), "42 s"),
        (duration_text(187), "3 min 7 s"),
        (duration_text(3725), "1 h 2 min"),
        (duration_text(3 * 86_400 + 4 * 3600), "3 d 4 h"),
        (ago_text(100, 130), "just now"),
        (ago_text(100, 100 + 150), "2 min ago"),
        (ago_text(100, 100 + 7300), "2 h ago"),
        (size_text(999), "1.0 kB"),
        (size_text(12), "12 B"),
        (size_text(2_340_000_000), "2.3 GB"),
    ],
)
def test_numbers_are_short(text: str, expected: str):
    assert text == expected


def view(wait: float) -> JobView:
    history = StatusHistory()
    for at in (10, 20):
        history.add([status_at(at, wait=wait)], now_s=START_S + at)
    made = view_job(history, "job-a")
    assert made is not None
    return made


def test_a_trainer_that_waits_is_limited_by_data():
    headline = headline_of(view(0.41))
    assert headline.side == "data"
    assert headline.sentence.startswith("Trainer waits 41%: decoding takes ")
    assert headline.detail.startswith("Rank 0, whose trainer waits most. Would help: ")
    assert headline.detail.endswith("feedline explain --attach.")


def test_a_trainer_that_does_not_wait_is_the_limit():
    headline = headline_of(view(0.01))
    assert (headline.side, headline.badge) == ("trainer", "● the trainer is the limit")
    assert headline.sentence.startswith("Nothing: your trainer is the limit. It waits 1.0% of the time")
    assert "Rank" not in headline.detail


@pytest.mark.parametrize("state", ["waiting", "planning", "waiting for files", "ended"])
def test_a_job_that_is_not_fed_has_no_limit(state: str):
    headline = headline_of(replace(view(0.4), state=state, slowest=None))
    assert (headline.side, headline.badge) == ("", state)
    assert headline.sentence == _STATES[state]


def test_an_error_comes_first_whether_or_not_other_ranks_are_fed():
    feeding = replace(
        view(0.4), errors=(SourcedText("rank 1", "DataError: no"), SourcedText("rank 2", "DataError: no"))
    )
    headline = headline_of(feeding)
    assert (headline.side, headline.sentence) == ("error", "Rank 1 ended with an error: DataError: no")
    assert headline.detail.startswith("1 more below. Ranks that train together wait for it. ")
    ended = headline_of(replace(feeding, state="ended", slowest=None, errors=feeding.errors[:1]))
    assert ended.side == "error"
    assert ended.detail.startswith("Its trainer raised the same error")


def test_silent_feeders_are_named_instead_of_a_limit_of_the_past():
    history = StatusHistory()
    for at in (10, 20):
        history.add([status_at(at)], now_s=START_S + at)
    history.add([status_at(20)], now_s=START_S + 33)
    made = view_job(history, "job-a")
    assert made is not None
    headline = headline_of(made)
    assert (headline.side, headline.badge) == ("error", "△ silent")
    assert headline.sentence == "Nothing was heard for 13 s from 2 of 2 ranks."
    assert "node-1" in headline.detail
