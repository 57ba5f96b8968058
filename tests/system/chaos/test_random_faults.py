"""Whatever happens to processes, connections, clocks and disks of a run of two ranks, the stream is as planned."""

from __future__ import annotations

import faulthandler
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos import SmallDisk, chaos, mixed_options, recovery_table
from pipelines import Place, furnished

THREE = ["kill worker", "reset feeder-scheduler", "kill feeder"]
NIGHTLY = [pytest.param(50, seed, marks=pytest.mark.nightly) for seed in range(4)]  # 200


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


@pytest.mark.parametrize(("faults", "seed"), [(THREE, 1), *NIGHTLY])
def test_the_stream_is_as_planned(place: Place, faults: list[str] | int, seed: int, capsys: pytest.CaptureFixture[str]):
    """Three faults from which a run recovers quickly; in the nightly tests all kinds, fifty for each of four seeds,
    with `feedline run` beside the trainers and, where mounting is allowed, a small disk for `work_dir`."""
    recorded: list[dict[str, Any]] = []
    if isinstance(faults, int):
        faulthandler.cancel_dump_traceback_later()  # the limit of other tests
        with SmallDisk(place.work) as disk:
            findings = chaos(place, faults, seed=seed, disk=disk, record=recorded.append)
        with capsys.disabled():
            print(json.dumps({"seed": seed, "recovery": recovery_table(recorded)}))
    else:
        findings = chaos(place, faults, seed=seed, batches=20, with_run=False, with_clocks=False)
        assert findings["faults"] == dict.fromkeys(faults, 1), "each had a victim"
    assert not findings["problems"], findings


@pytest.mark.nightly  # 100 kills
@pytest.mark.parametrize("seed", range(2))
def test_a_mixed_followed_balanced_stream_is_as_planned(place: Place, seed: int):
    faulthandler.cancel_dump_traceback_later()
    findings = chaos(place, 50, seed=seed, only="kill", **mixed_options(place.table, place.folder, seed))
    assert not findings["problems"], findings
    assert findings["last_epoch"] > 2
