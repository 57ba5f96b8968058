"""The ranks of a host share a feeder, which ends with the last of them; each is served as if it were alone."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil
import pytest
from pipelines import Place, eventually, furnished, image, oracle
from processes import all_gone, trainer

from feedline import FeedlineDataset
from feedline.config import load_spec
from feedline.errors import FeederError
from feedline.loader.launcher import meeting_name
from feedline.loader.ring import feeder_source
from feedline.loader.ring.launch import FeederTask, HostLaunch, feeder_command
from feedline.loader.wire.codec import pack
from feedline.loader.wire.ring_messages import EpochDone

RANKS = 2
STEPS = 13  # 6,666 rows in batches of 256 on two ranks, the rest dropped


@pytest.fixture
def place(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place on a host on which torchrun says that it starts two ranks."""
    for name, value in {"LOCAL_WORLD_SIZE": RANKS, "TORCHELASTIC_RUN_ID": tmp_path.name}.items():
        monkeypatch.setenv(name, str(value))
    with furnished(tmp_path, clicks / "ds=2026-01-01") as place:
        yield place


def of_rank(path: Path, rank: int, **options: Any) -> FeedlineDataset:
    return FeedlineDataset(path, rank=rank, world_size=RANKS, **options)


def both(path: Path) -> ExitStack:
    """A stack of the datasets of both ranks, as its attribute `datasets`."""
    stack = ExitStack()
    stack.datasets = [stack.enter_context(of_rank(path, rank)) for rank in range(RANKS)]
    return stack


def feeder_of(dataset: FeedlineDataset) -> psutil.Process:
    return psutil.Process(dataset._feed._connection._feeder.pid)


def expected(path: Path, epoch: int = 0) -> list[list[bytes]]:
    return [oracle(path, epoch=epoch, rank=rank, world_size=RANKS) for rank in range(RANKS)]


def test_a_feeder_dies_under_two_ranks(place: Place):
    """Before the first batch, and in mid-epoch while one of them holds batches; then it ends with the last rank."""
    path = place.write()
    with both(path) as stack:
        zero, one = stack.datasets
        assert zero.facts["feeder"] == one.facts["feeder"] == feeder_of(zero).pid
        assert zero.facts["plan"] == one.facts["plan"]
        feeder_of(zero).kill()
        seen: list[list[bytes]] = [[], []]
        held = []
        for first, second in zip(zero, one, strict=True):
            seen[0].append(image(first))
            seen[1].append(image(second))
            held = [*held[-2:], first]
            if first.step == 6:
                feeder_of(one).kill()
            assert [image(each) for each in held] == seen[0][-len(held) :]
        assert seen == expected(path)
        assert feeder_of(zero) == feeder_of(one)
        assert [dataset.stats().feeders for dataset in (zero, one)] == [3, 3]
        one.close()
        assert [image(batch) for batch in zero] == expected(path, epoch=1)[0]
        feeder = feeder_of(zero)
    assert all_gone([feeder])
    assert eventually(lambda: not place.left(), within_s=15), place.left()


def test_three_deaths_on_a_host_raise_on_every_rank(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    starts = tmp_path / "starts"
    broken = tmp_path / "python"
    broken.write_text(f"#!/bin/sh\necho >> {starts}\necho the disk is on fire >&2\nexit 7\n")
    broken.chmod(0o700)
    path = place.write()
    with both(path) as stack:
        iterators = [iter(dataset) for dataset in stack.datasets]
        seen = [[image(next(iterator)) for _ in range(5)] for iterator in iterators]
        monkeypatch.setenv("FEEDLINE_COMMAND", str(broken))
        feeder_of(stack.datasets[0]).kill()
        for rank, iterator in enumerate(iterators):
            with pytest.raises(FeederError, match=r"died 3 times(?s:.*)the disk is on fire"):
                seen[rank].extend(map(image, iterator))
        assert len(starts.read_text()) == 2, "two after the first death, however many ranks there are"
        monkeypatch.undo()
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(RANKS))
        for rank, iterator in enumerate(iterators):
            seen[rank] += [image(batch) for batch in iterator]
        assert [len(each) for each in seen] == [STEPS, STEPS]
        assert seen == expected(path)


def test_a_rank_stops_dies_and_returns_while_the_other_goes_on(place: Place, tmp_path: Path):
    path = place.write()
    environment = {**os.environ, "RANK": "1", "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "1"}
    with of_rank(path, 0) as zero:
        with trainer(path, tmp_path / "state.pt", "--epochs", 2, env=environment) as one:
            assert int(one.line("feeder (.*) own")[1]) == zero.facts["feeder"]
            one.line("^0 3 ")
            one.send(signal.SIGSTOP)
            assert [image(batch) for batch in zero] == expected(path)[0]
            one.send(signal.SIGCONT)
            one.line("^1 3 ")
            one.send(signal.SIGSTOP)
            one.kill()
            lines = [line for line in one.lines if re.match(r"\d", line)]
        digests = [sha256(each).hexdigest() for epoch in range(2) for each in expected(path, epoch)[1]]
        assert [line.split()[2] for line in lines] == digests[: len(lines)]
        iterator = iter(zero)
        seen = [image(next(iterator)) for _ in range(5)]
        with of_rank(path, 1) as returned:
            assert [image(batch) for batch in returned] == expected(path)[1]
            assert returned.facts["feeder"] == zero.facts["feeder"]
        seen += [image(batch) for batch in iterator]
        assert seen == expected(path, epoch=1)[0]
        assert zero.stats().feeders == 1


def test_ranks_that_read_the_same_rows(place: Place):
    """Two trainers of one data rank, each with its ring; one of them goes back."""
    path = place.write(shuffle="off")
    with ExitStack() as stack:
        datasets = [stack.enter_context(of_rank(path, rank, data_rank=0, data_world_size=1)) for rank in range(RANKS)]
        seen: list[list[bytes]] = [[], []]
        for batches in zip(*datasets, strict=True):
            for rank, batch in enumerate(batches):
                seen[rank].append(image(batch))
        assert seen == [oracle(path)] * RANKS
        state = datasets[1].state_dict()
        datasets[1].load_state_dict({**state, "epoch": 0, "step": 20})
        assert [image(batch) for batch in datasets[1]] == oracle(path)[20:]
        assert datasets[0].facts["feeder"] == datasets[1].facts["feeder"]
        assert feeder_of(datasets[0]) == feeder_of(datasets[1])


def test_a_trainers_error_ends_its_own_session_only(place: Place):
    path = place.write()
    with both(path) as stack:
        zero, one = stack.datasets
        iterator = iter(zero)
        seen = [image(next(iterator)) for _ in range(5)]
        feeder = feeder_of(zero)
        one._feed._connection._channel.send(b"J" + pack(EpochDone(epoch=0), "begin"))
        with pytest.raises(FeederError, match=r"a message is malformed: got .* as BeginStream\.stream"):
            list(one)
        seen += [image(batch) for batch in iterator]
        assert seen == expected(path)[0]
        assert [image(batch) for batch in one] == expected(path)[1]
        assert feeder_of(one) == feeder_of(zero) == feeder


def test_a_second_dataset_of_a_rank_has_its_own_feeder(place: Place):
    path = place.write()
    with both(path) as stack, of_rank(path, 0) as second:
        zero, one = stack.datasets
        iterator = iter(zero)
        seen = [image(next(iterator))]
        assert [image(batch) for batch in second] == expected(path)[0]
        seen += [image(batch) for batch in iterator]
        assert seen == expected(path)[0]
        assert zero.facts["feeder"] == one.facts["feeder"] != second.facts["feeder"]


def test_each_rank_may_have_its_own_feeder(place: Place, caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    """By pipeline.yaml; and with one line each where there is no folder in which ranks can meet."""
    with both(place.write(feeder="rank")) as stack:
        assert len({dataset.facts["feeder"] for dataset in stack.datasets}) == RANKS
    monkeypatch.setattr(feeder_source, "runtime_dir", _no_folder)
    path = place.write()
    with both(path) as stack:
        assert [[image(batch) for batch in dataset] for dataset in stack.datasets] == expected(path)
        assert len({dataset.facts["feeder"] for dataset in stack.datasets}) == RANKS
    lines = [record.message for record in caplog.records]
    assert len(lines) == RANKS
    assert all("cannot share a feeder (no folder for sockets is usable" in line for line in lines)


def _no_folder() -> Path:
    raise FeederError("no folder for sockets is usable")


def test_a_new_round_waits_for_the_feeder_of_the_old_one(place: Place, monkeypatch: pytest.MonkeyPatch):
    path = place.write()
    with ThreadPoolExecutor(1) as other:
        with of_rank(path, 0) as old:
            feeder = old.facts["feeder"]
            monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
            made = other.submit(of_rank, path, 0)
            assert not eventually(made.done, within_s=0.5)
        with made.result(30) as new:
            assert [image(batch) for batch in new] == expected(path)[0]
            assert new.facts["feeder"] != feeder


def test_a_feeder_without_trainers_ends_and_removes_its_files(place: Place, tmp_path: Path):
    """One that none has come to, and what a killed one has left, which the next feeder of any launch removes."""
    path = place.write()
    impatient = tmp_path / "impatient.py"
    impatient.write_text(
        "import sys\nfrom feedline.commands import feed\nfeed._FIRST_RANK_S = 0.1\nfeed.main(sys.argv[2:])\n"
    )

    def start(launch: str, command: str) -> psutil.Process:
        earlier = list(feeder_source._started.values())
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEEDLINE_COMMAND", command)
            counts = {"world_size": RANKS, "local_ranks": RANKS, "cores": 1}
            command = feeder_command(load_spec(path), FeederTask(ranks=(), **counts))
            name, round = meeting_name(launch, RANKS, {})
            feeder = feeder_source.attach(
                HostLaunch(name=name, round=round, command=command), reported=set(), unless=lambda: False
            )
            feeder.channel.close()
            feeder.end()
            (process,) = [each for each in feeder_source._started.values() if each not in earlier]
            return psutil.Process(process.pid)

    killed = start("one", f"{sys.executable} -c 'import time; time.sleep(60)'")
    assert place.left()
    killed.kill()
    assert all_gone([killed])
    assert all_gone([start("two", f"{sys.executable} {impatient}")])
    assert eventually(lambda: not place.left(), within_s=15), place.left()


def test_the_name_of_a_launch():
    def name(**environment: str) -> tuple[str, int]:
        return meeting_name("j" * 64, 8, environment)

    torchrun = {"TORCHELASTIC_RUN_ID": "a", "GROUP_RANK": "0", "MASTER_PORT": "1", "MASTER_ADDR": "h"}
    assert name(**torchrun) == name(**{**torchrun, "MASTER_PORT": "2", "SLURM_JOB_ID": "3"})
    assert name(**{**torchrun, "TORCHELASTIC_RESTART_COUNT": "2"}) == (name(**torchrun)[0], 2)
    plain = {**torchrun, "TORCHELASTIC_RUN_ID": "none"}
    others = [torchrun, {**torchrun, "GROUP_RANK": "1"}, plain, {**plain, "MASTER_PORT": "2"}, {}]
    others += [{"SLURM_JOB_ID": "3", "SLURM_STEP_ID": step} for step in "01"]
    names = [name(**environment)[0] for environment in others]
    names += [meeting_name("k" * 64, 8, {})[0], meeting_name("j" * 64, 4, {})[0]]
    assert len(set(names)) == len(names)


def test_the_feeder_of_a_host_is_not_bound_to_one_ranks_cpus(place: Place):
    """Launchers bind each rank to its own CPUs; the rank that starts the feeder must not bind it to those."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [min(allowed)])  # of this thread, which starts the feeder
    try:
        with of_rank(place.write(), 0) as dataset:
            assert os.sched_getaffinity(dataset.facts["feeder"]) == allowed
    finally:
        os.sched_setaffinity(0, allowed)
