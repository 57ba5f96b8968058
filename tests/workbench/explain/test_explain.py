"""The command explains a short run, refuses what does not fit together, and says when there is no run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines import Place, eventually, furnished
from processes import ended, ended_here, feedline

from feedline.loader.wire.codec import unpack
from feedline.loader.wire.run_status import FeederStatus

PLAIN = ("--cost-seconds", 0)


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def test_a_short_run_with_its_costs_and_then_the_last_one(place: Place):
    path = place.write(epochs=2)
    done = ended("explain", path, "--seconds", 1, "--step-s", 0.05, "--cost-seconds", 0.5, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["source"], facts["name"], facts["limit"]) == ("short run", "clicks", "trainer")
    features = {feature["name"] for feature in facts["costs"]["account"]["features"]}
    assert {"dense_0", "hist_1", "clicked"} <= features
    last = ended("explain", path, "--last", *PLAIN)
    assert last.returncode == 0, last.stderr
    assert "of the last run" in last.stdout
    assert "decoding" in last.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attach", "--last"], "exclude each other"),
        (["--last", "--step-s", "1"], "belong to a short run"),
        (["--source", "clicks"], "source: has no name: got source 'clicks', expected none"),
        (["--headspace"], "--headspace needs a trainer"),
        (["--attach"], "there is no run of this pipeline to attach to: got no feeder"),
        (["--last"], "there is no last run to explain"),
    ],
)
def test_wrong_input_is_refused_with_its_remedy(place: Place, options: list[str], words: str):
    done = ended_here("explain", place.write(), *options)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_a_run_is_attached_to_and_ctrl_c_explains_what_was_measured(place: Place):
    path = place.write()
    with feedline("explain", path, "--seconds", 600, "--step-s", 0.05, *PLAIN) as program:
        assert eventually(lambda: _fed(place))
        done = ended("explain", path, "--attach", "--seconds", 2, "--json", *PLAIN)
        assert done.returncode == 0, done.stderr
        facts = json.loads(done.stdout)
        assert (facts["source"], facts["limit"]) == ("running", "trainer")
        assert sum(sample["rows"] for sample in facts["samples"]) > 0
        program.send(signal.SIGINT)
        assert program.wait() == 130
    assert "of a short run, stopped early" in program.text
    assert "your trainer is the limit" in program.text


def _fed(place: Place) -> bool:
    """Whether the live status of the place's feeder has the batches of half a second."""
    statuses = [unpack(FeederStatus, path.read_bytes()) for path in place.sockets.glob("status-*.json")]
    return any(rank.stats.batches > 25 for status in statuses for rank in status.ranks)
