"""source.follow: what of a growing table has landed, until when, and what an epoch reads."""

from __future__ import annotations

import json

import pytest

from feedline.config import parse_spec
from feedline.config.pipeline_spec import PipelineSpec
from feedline.errors import SpecError
from feedline.loader.ring.rendezvous import job_fingerprint

TEXT = """\
version: 1
name: small
work_dir: work
source: {source}
features: {dense: {price: []}}
batch: {size: 8}
"""


def parse(**source) -> PipelineSpec:
    return parse_spec(TEXT.replace("{source}", json.dumps({"table": "data", **source})))


@pytest.mark.parametrize(
    ("landed", "quiet_s"),
    [("log", None), ("_SUCCESS", None), ("quiet 90s", 90), ("quiet 10m", 600), ("quiet 2h", 7200), ("quiet 1d", 86400)],
)
def test_each_rule_of_landing_is_read(landed: str, quiet_s: int | None):
    follow = parse(follow={"landed": landed}).source.follow
    assert follow is not None
    assert (follow.landed, follow.quiet_s, follow.until, follow.epoch) == (landed, quiet_s, None, "all")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"follow": {}}, "source.follow.landed: missing key"),
        ({"follow": {"landed": "quiet"}}, "must be log, _SUCCESS, or quiet and a time such as quiet 10m"),
        ({"follow": {"landed": "quiet 0m"}}, "source.follow.landed: must be log"),
        ({"follow": {"landed": "success"}}, "source.follow.landed: must be log"),
        ({"follow": {"landed": "log", "until": "tomorrow"}}, "source.follow.until: must be an ISO date or time"),
        ({"follow": {"landed": "log", "epoch": "old"}}, "source.follow.epoch: must be one of all, new"),
        ({"follow": {"landed": "log"}, "format": "hive"}, "cannot see by 'log' what has landed with format hive"),
        ({"follow": {"landed": "_SUCCESS"}, "format": "delta"}, "'_SUCCESS' what has landed with format delta"),
        ({"follow": {"landed": "quiet 1m"}, "format": "manifest"}, "what has landed with format manifest"),
        ({"follow": {"landed": "log"}, "version": 3}, "names one state of the table, and `follow` its newest"),
        ({"follow": {"landed": "log"}, "as_of": "2026-01-01"}, "source.as_of: names one state of the table"),
        ({"follow": {"landed": "_SUCCESS"}, "snapshot": "s.arrow"}, "source.snapshot: names one state of the table"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(source, words):
    with pytest.raises(SpecError) as error:
        parse(**source)
    assert words in str(error.value)


def test_a_pipeline_that_follows_nothing_keeps_its_canonical_text():
    assert "follow" not in json.loads(parse().canonical())["source"]
    followed = parse(follow={"landed": "log", "epoch": "new"})
    assert job_fingerprint(followed) != job_fingerprint(parse())
    assert PipelineSpec.from_canonical(followed.canonical()) == followed
