"""`feedline build`: what it prints, and its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import ended_here
from sample_logs import drawn_logs, spec_of, write_logs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("build")
    write_logs(drawn_logs(41, rows=90), place / "logs", files=1)
    spec_of(place)
    return place


def test_partitions_are_built_and_shown(folder: Path) -> None:
    samples = str(folder / "samples.yaml")
    planned = ended_here("build", samples, "--dry-run", "--until", "2026-01-02T02:00:00")
    assert "1 partition to build: ds=2026-01-01" in planned.stdout
    assert (
        "1 partition open, until the watermark (2026-01-02T02:00:00+00:00) has passed: ds=2026-01-02" in planned.stdout
    )
    assert not (folder / "out").exists()
    run = ended_here("build", samples, "--until", "2026-01-02T03:00:00+01:00", "--threads", "1", "--memory", "1GiB")
    assert "1 partition built, of " in run.stdout
    assert "ds=2026-01-01" in run.stdout
    assert (folder / "out" / "ds=2026-01-01" / "_SUCCESS").exists()
    again = ended_here("build", samples, "--until", "2026-01-02T02:00:00", "--json")
    report = json.loads(again.stdout)
    assert report["built"] == []
    assert [(each["partition"], each["state"]) for each in report["partitions"]] == [
        ("ds=2026-01-01", "closed"),
        ("ds=2026-01-02", "open"),
    ]
    counts = report["partitions"][0]["counts"]
    assert set(counts["outcomes"]) == {"click", "order"}
    shown = ended_here("build", samples, "--status").stdout
    for text in (
        "impressions",
        "click",
        "order",
        "unmatched",
        "joined",
        "late",
        f"{counts['outcomes']['click']['joined']}",
    ):
        assert text in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--until", "soon"), "--until is no ISO date or time: got 'soon'"),
        (("--memory", "much"), "--memory is not a size: got 'much'"),
    ],
)
def test_options_that_make_no_sense_are_refused(folder: Path, words: tuple[str, ...], message: str) -> None:
    run = ended_here("build", str(folder / "samples.yaml"), *words)
    assert run.returncode == 2
    assert message in run.stderr
