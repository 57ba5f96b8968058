"""Runs that follow a growing table: what has landed joins at the border of every epoch, through kills and resumes."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from growing_table import GrowingTable, ids_of
from pipelines import descendants, eventually, furnished
from processes import SUPPORT, ended_here, running
from receipts import audit_receipts, receipt_of

from feedline import FeedlineDataset, Pipeline
from feedline.errors import BatchTimeoutError, PlanError, TableChangedError

TRAINING = SUPPORT / "following_training.py"
FOREVER = 10**6


@pytest.fixture
def table(tmp_path: Path) -> Iterator[GrowingTable]:
    table = GrowingTable(tmp_path)
    for day in (1, 2):
        table.land(day)
    with furnished(tmp_path, table.path):
        yield table


def entries(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().split("\n")[:-1]] if log.exists() else []


def test_every_epoch_reads_what_had_landed_at_its_border(table: GrowingTable):
    path = table.pipeline()
    pipeline = Pipeline.from_yaml(path)
    epochs: list[list[int]] = []
    with FeedlineDataset(path) as dataset:
        for epoch in range(4):
            steps, iterator = len(dataset), iter(dataset)
            first = ids_of([next(iterator)])
            state = dataset.state_dict()
            plan = pipeline.plan_for(state)
            epochs.append(sorted(first + ids_of(iterator)))
            assert epochs[-1] == ids_of(pipeline.batches(epoch, plan=plan))
            assert steps == plan.facts().steps
            last = dataset.state_dict()
            assert (last["epoch"], last["step"], last["snapshot"]) == (epoch, steps, state["snapshot"])
            table.land(3 + epoch)
        assert len(epochs[0]) < len(epochs[-1])
        dataset.set_epoch(0)
        iterator = iter(dataset)
        batch = next(iterator)
        dataset.set_epoch(1)
        assert len(dataset) == -(-len(epochs[1]) // 8), "of another epoch than the running iterator's"
        assert receipt_of(dataset, batch)["state"]["epoch"] == 0
        first = ids_of([batch])
        del batch
        assert sorted(first + ids_of(iterator)) == epochs[0]
        dataset.set_epoch(9)
        with pytest.raises(PlanError, match="epochs of a followed table come one after the other"):
            iter(dataset)
    with FeedlineDataset(path) as resumed:
        resumed.load_state_dict(last)
        later = [ids_of(resumed) for _ in range(2)]
    assert set(epochs[-1]) <= set(later[0]) <= set(later[1])
    assert later[1] == table.kept(), "one border may have been decided before the last day landed"


def test_new_rows_come_once_however_long_they_take(table: GrowingTable):
    path = table.pipeline(follow={"epoch": "new"})
    found: list[list[int]] = []
    receipts = []
    with FeedlineDataset(path) as dataset:
        for day in (3, 4, 5):
            found.append([])
            for batch in dataset:
                receipts.append(receipt_of(dataset, batch))
                found[-1] += ids_of([batch])
            if day < 5:
                table.land(day)
        assert sorted(id for part in found for id in part) == table.kept()
        assert [len(part) for part in found] == [64, 32, 32]
        dataset._feed.timeout_s = 0.1
        with pytest.raises(BatchTimeoutError, match=r"for files to land at the epoch's border: no new file has landed"):
            len(dataset)
        dataset._feed.timeout_s = None
        audit = audit_receipts(Pipeline.from_yaml(path), receipts)
        assert audit.equal
        assert [steps.epoch for steps in audit.received] == [0, 1, 2]
        table.land(1, 50, name=next(table.day(1).glob("*.parquet")).name)
        with pytest.raises(TableChangedError, match="was rewritten after epoch 0 had read it"):
            iter(dataset)


def test_a_run_ends_after_until(table: GrowingTable):
    table.age(100)
    path = table.pipeline(follow={"epoch": "new", "until": _iso(time.time() - 50)}, epochs=5)
    table.land(3)
    with FeedlineDataset(path) as dataset:
        epochs = 0
        while len(dataset):
            assert ids_of(dataset) == table.kept(1, 2)
            epochs += 1
        assert (epochs, ids_of(dataset), len(dataset)) == (1, [], 0)
        assert dataset.state_dict()["epoch"] == 0
    summary = json.loads(ended_here("run", path, "--sink", "null", "--json").stdout)
    assert (summary["rows"], summary["batches"]) == (64, 8), "of five epochs the first, after which the run ends"


@pytest.mark.nightly
def test_connected_ranks_read_the_same_epochs(table: GrowingTable):
    path, logs = table.pipeline(), [table.folder / f"{rank}.log" for rank in range(2)]
    pipeline = Pipeline.from_yaml(path)
    with ExitStack() as stack:
        programs = [
            stack.enter_context(_program(path, log, 3, rank, 2, table.folder / "store"))
            for rank, log in enumerate(logs)
        ]
        assert eventually(lambda: all(map(entries, logs)))
        table.land(3)
        assert [program.wait() for program in programs] == [0, 0], [program.text for program in programs]
    found = [entries(log) for log in logs]
    for epoch in range(3):
        mine = [[each for each in log if each["epoch"] == epoch] for log in found]
        assert len({each["state"]["snapshot"] for log in mine for each in log}) == 1
        assert len({len(log) for log in mine}) == 1
        plan = pipeline.plan_for(mine[0][0]["state"])
        expected = sorted(id for rank in range(2) for id in ids_of(pipeline.batches(epoch, rank, 2, plan=plan)))
        assert sorted(id for log in mine for each in log for id in each["ids"]) == expected


@pytest.mark.parametrize(("landings", "kills", "seed"), [(4, 2, 0), pytest.param(50, 20, 1, marks=pytest.mark.nightly)])
def test_no_row_is_lost_and_none_repeated(table: GrowingTable, landings: int, kills: int, seed: int):
    """Two ranks, each killed with its feeder or the feeder alone while partitions land, and resumed from its log."""
    choose = random.Random(seed)
    path = table.pipeline(follow={"epoch": "new"})
    logs = [table.folder / f"{rank}.log" for rank in range(2)]
    events = ["land"] * landings + ["kill"] * kills
    choose.shuffle(events)
    with ExitStack() as stack:
        programs = [stack.enter_context(_program(path, log, FOREVER, rank, 2)) for rank, log in enumerate(logs)]
        assert eventually(lambda: all(map(entries, logs)))
        for number, event in enumerate(events):
            if event == "land":
                if choose.random() < 0.3:
                    table.land(choose.choice((1, 2)), 13)  # late
                else:
                    table.land(3 + number % 25, choose.randrange(8, 60))
            else:
                rank = choose.randrange(2)
                if choose.random() < 0.5 and (feeders := descendants(programs[rank].pid)):
                    os.kill(choose.choice(feeders), signal.SIGKILL)
                else:
                    programs[rank].kill()
                    programs[rank] = stack.enter_context(_program(path, logs[rank], FOREVER, rank, 2))
            before = sum(len(entries(log)) for log in logs)
            eventually(lambda before=before: sum(len(entries(log)) for log in logs) > before, within_s=0.5)
        everything = table.kept()
        assert eventually(lambda: len(_delivered(logs)) == len(everything)), [each.text for each in programs]
    found = _delivered(logs)
    assert sorted(found) == everything
    receipts = [each["receipt"] for log in logs for each in entries(log)]
    audit = audit_receipts(Pipeline.from_yaml(path), receipts)
    assert audit.equal
    assert audit.again == []


def _delivered(logs: list[Path]) -> list[int]:
    return [id for log in logs for each in entries(log) for id in each["ids"]]


def _program(path: Path, log: Path, epochs: int, rank: int, world_size: int, *store: Path) -> Any:
    own = {name: str(log.with_suffix("")) for name in ("TMPDIR", "XDG_RUNTIME_DIR")}  # killed processes leave files
    log.with_suffix("").mkdir(mode=0o700, exist_ok=True)
    environment = {**os.environ, **own}
    return running(sys.executable, TRAINING, path, log, epochs, rank, world_size, *store, env=environment)


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
