"""What `feedline diff` compares, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines import Place, furnished
from processes import ended_here


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def test_a_pipeline_beside_itself_with_overrides(place: Place):
    path = place.write()
    ended = ended_here("diff", str(path), "--set", "batch.size=512")
    assert ended.returncode == 0, ended.stderr
    assert "--set batch.size=512" in ended.stdout
    assert "which rows come when" in ended.stdout
    alone = ended_here("diff", str(path))
    assert (alone.returncode, "got one, without --set" in alone.stderr) == (2, True)


def test_several_sources_are_compared_one_by_one(place: Place):
    sources = [{"name": name, "table": str(place.table), "weight": 1} for name in ("old", "new")]
    mixed = str(place.write("mixed.yaml", source=None, sources=sources))
    refused = ended_here("diff", mixed, "--set", "shuffle.seed=9")
    assert refused.returncode in (1, 2)
    assert "diff reads one table: got the sources old, new" in refused.stderr
    ended = ended_here("diff", mixed, "--set", "shuffle.seed=9", "--source", "old")
    assert ended.returncode == 0, ended.stderr
    assert "shuffle.seed" in ended.stdout
