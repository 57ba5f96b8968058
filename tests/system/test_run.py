"""Does `feedline run` serve, drain, tell, end and clean up as promised? Every command is a real process."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import torch
from pipelines import PATIENCE_S, Place, eventually, furnished, image, oracle
from processes import Program, all_gone, connections, ended, ended_here, feedline, trainer
from rich.console import Console

from feedline import FeedlineDataset, Pipeline
from feedline.commands.run import RunSummary, parse_ranks, print_summary
from feedline.config import load_spec
from feedline.errors import SpecError, StateError
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.ring import rendezvous
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.loader.wire.facts import BlockStats

STEPS = 78
SECONDS = 60  # to end within, on a machine that is busy with other things


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> list[bytes]:
    """The batches of the first epoch, whatever delivers them."""
    with furnished(tmp_path_factory.mktemp("planned"), clicks) as place:
        return oracle(place.write())


# -- the summary --------------------------------------------------------------------------------------------------


def test_the_summary_adds_up_what_the_blocks_of_all_ranks_found_in_the_cache():
    summary = RunSummary(rows=1, seconds=1.0)
    summary.add_blocks(BlockStats(nbytes_read=10))
    assert (summary.bytes_read, summary.cached) == (10, None)
    for found in (1000, 234):
        summary.add_blocks(BlockStats(nbytes_read=5, cached=CacheCounts(found=found, computed=33, nbytes_read=10**9)))
    assert (summary.bytes_read, summary.cached) == (20, CacheCounts(found=1234, computed=66, nbytes_read=2 * 10**9))
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=200, color_system=None))
    assert out.getvalue().splitlines()[1] == summary.cached.describe()
    assert json.loads(json.dumps(dataclasses.asdict(summary)))["cached"]["found"] == 1234
    out = io.StringIO()
    print_summary(RunSummary(rows=1, seconds=1.0), Console(file=out, width=200, color_system=None))
    assert "cache" not in out.getvalue()


# -- sink null ----------------------------------------------------------------------------------------------------


def test_a_drained_pipeline_in_numbers(place: Place):
    """Two of three ranks for two epochs."""
    path = place.write(epochs=2, cluster={"threads": 1, "dashboard": True})
    done = ended("run", path, "--sink", "null", "--world-size", 3, "--ranks", "1-2", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["rows"], summary["batches"], summary["epochs"]) == (2 * 2 * 26 * 256, 2 * 2 * 26, 2)
    assert (summary["steps"], summary["rows_dropped"], summary["ranks"]) == (26, 32, [1, 2])
    assert summary["rows_per_s"] == pytest.approx(summary["rows"] / summary["seconds"])
    assert summary["wait_fraction"] is None, "there is no trainer"
    delivered = [oracle(path, epoch=epoch, rank=rank, world_size=3) for epoch in range(2) for rank in (1, 2)]
    assert summary["bytes_delivered"] == sum(len(each) for batches in delivered for each in batches)
    plan = json.loads(ended_here("plan", path, "--world-size", 3, "--json").stdout)
    assert plan["plan"] == summary["plan"]
    assert plan["snapshot"] == summary["snapshot"]
    assert 0 < plan["bytes"]["read_per_epoch"] <= summary["bytes_read"] <= 4 * plan["bytes"]["read_per_epoch"]
    assert f"live page: {summary['live_page']}" in done.stderr
    assert summary["dashboard"] is None, "there is no Dask"


@pytest.mark.parametrize("runs", [2, pytest.param(30, marks=pytest.mark.nightly)])
def test_runs_two_at_a_time(place: Place, runs: int):
    path = place.write(source={"where": 'ds == "2026-01-01"'}, batch={"size": 512, "tail": "partial"})

    def run(_: int) -> str:
        done = ended("run", path, "--sink", "null", "--set", "epochs=1")
        assert done.returncode == 0, done.stderr
        return re.search(r"[\d,]+ rows in [\d,]+ batches", done.stdout)[0]

    with ThreadPoolExecutor(2) as two:
        results = set(two.map(run, range(runs)))
    batches = list(Pipeline.from_yaml(path).batches())
    assert results == {f"{sum(batch.rows for batch in batches):,} rows in {len(batches)} batches"}


# -- signals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "number", "status"),
    [
        ("trainer", signal.SIGINT, 130),
        ("null", signal.SIGTERM, 143),
        pytest.param("trainer", signal.SIGTERM, 143, marks=pytest.mark.nightly),
        pytest.param("null", signal.SIGINT, 130, marks=pytest.mark.nightly),
    ],
)
def test_a_signal_ends_everything(place: Place, sink: str, number: int, status: int):
    path = place.write(epochs=100_000)
    with feedline("run", path, "--sink", sink) as run:
        run.line("^plan |waiting for a trainer")
        family = run.descendants()
        assert family
        _signal_the_terminal(run, number)
        assert run.wait(SECONDS) == status
        assert all_gone(family)
        assert "Traceback" not in run.text


@pytest.mark.parametrize("sink", ["null", pytest.param("trainer", marks=pytest.mark.nightly)])
def test_a_signal_while_worker_processes_work(place: Place, sink: str):
    path = place.write(epochs=100_000, cluster={"workers": 1, "threads": 1})
    with feedline("run", path, "--sink", sink) as run:
        run.line("^plan |waiting for a trainer")
        family = run.descendants()
        assert len(family) >= 2
        _signal_the_terminal(run, signal.SIGINT)
        assert run.wait(SECONDS) == 130
        assert all_gone(family)


@contextlib.contextmanager
def planning_forever(path: Path) -> Iterator[None]:
    """Ranks of two cannot agree on a snapshot: somebody holds the lock of their meeting place."""
    spec = load_spec(path)
    lock = Path(spec.work_dir) / "runs" / f"{job_fingerprint(spec)[:16]}-2.json.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _plans(run: Program) -> bool:
    """Whether a feeder of the run has come to the lock."""
    for process in run.descendants():
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if link.readlink().suffix == ".lock" and link.readlink().parent.name == "runs":
                    return True
    return False


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.nightly  # by default with a trainer: the next test
def test_a_signal_while_the_plan_is_made(place: Place, number: int, status: int):
    path = place.write()
    with planning_forever(path), feedline("run", path, "--sink", "null", "--world-size", 2, "--ranks", 0) as run:
        assert eventually(lambda: _plans(run))
        family = run.descendants()
        _signal_the_terminal(run, number)
        assert run.wait(SECONDS) == status
        assert all_gone(family)


def test_a_signal_while_a_trainers_plan_is_made(place: Place):
    path = place.write()
    with planning_forever(path), feedline("run", path, "--world-size", 2, "--ranks", 0) as run:
        run.line("waiting for a trainer")
        family = run.descendants()
        dataset = FeedlineDataset(path, rank=0, world_size=2)
        try:
            run.line("attached")
            with ThreadPoolExecutor(1) as other:
                length = other.submit(len, dataset)
                assert eventually(lambda: _plans(run))
                _signal_the_terminal(run, signal.SIGTERM)
                assert run.wait(SECONDS) == 143
                assert all_gone(family)
                dataset.close()
                assert length.exception(SECONDS) is not None
        finally:
            dataset.close()


@pytest.mark.usefixtures("plain_starts")
@pytest.mark.parametrize(
    "moments", [(0.3, 1.2), pytest.param([0.1 * tenth for tenth in range(1, 31)], marks=pytest.mark.nightly)]
)
def test_signals_at_any_moment_of_the_start(place: Place, moments: Sequence[float]):
    path = place.write(epochs=100_000)

    def interrupted(after_s: float) -> None:
        with feedline("run", path, "--sink", "null") as run:
            eventually(lambda: False, within_s=after_s)
            family = run.descendants()
            run.send(signal.SIGTERM)
            assert run.wait(SECONDS) in (143, -signal.SIGTERM), run.text
            assert all_gone(family)

    with ThreadPoolExecutor(2) as two:
        list(two.map(interrupted, moments))


def _signal_the_terminal(run: Program, number: int) -> None:
    """Ctrl-C reaches every process of the terminal's group; SIGTERM the one that was named."""
    if number != signal.SIGINT:
        run.send(number)
        return
    for process in [*run.descendants(), psutil.Process(run.pid)]:
        process.send_signal(number)


# -- sink trainer -------------------------------------------------------------------------------------------------


def test_messages_of_feeders_stand_above_the_display_of_a_terminal(place: Place):
    """The table is erased before each, and drawn again below."""
    path = place.write(epochs=1, cluster={"threads": 1})
    outer, inner = pty.openpty()
    termios.tcsetwinsize(inner, (45, 130))
    command = [sys.executable, "-m", "feedline", "run", path]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=environment) as run:
        os.close(inner)
        shown = b""

        def show(pattern: str) -> str:
            """What the terminal got up to a text."""
            nonlocal shown
            while pattern.encode() not in shown:
                shown += os.read(outer, 65536)
            return shown.partition(pattern.encode())[0].decode(errors="replace")

        show("waiting for a trainer")
        show("\u2518")  # the lower right corner
        with FeedlineDataset(path) as dataset:
            iterator = iter(dataset)
            next(iterator)
            before = show("blocks in flight, ")
            assert sum(1 for _ in iterator) == STEPS - 1
        with contextlib.suppress(OSError):  # the end of a terminal
            while os.read(outer, 65536):
                pass
        assert run.wait(SECONDS) == 0
    os.close(outer)
    assert "\x1b[2K" in before.rpartition("\u2518")[2]


def test_trainers_come_and_go(place: Place, planned: list[bytes], tmp_path: Path):
    """One at a time; one that dies is followed by the next; the run ends once the epochs were served.

    Another run of the same job is refused.
    """
    path = place.write(epochs=2, cluster={"threads": 1, "dashboard": True})
    with feedline("run", path) as run:
        page = run.line(r"waiting for a trainer. live page: (http://\S+/feedline)$")[1]
        with urllib.request.urlopen(page, timeout=30) as answer:
            assert answer.status == 200
            assert b"bokeh" in answer.read().lower()
        feeder = run.descendants()[0].pid
        another = ended("run", path)
        assert (another.returncode, str(feeder) in another.stderr) == (1, True), another.stderr
        assert another.stderr.count("this job's rank is already served") == 1, "its feeder is started once"
        with FeedlineDataset(path) as dataset:
            iterator = iter(dataset)
            seen = [image(next(iterator)) for _ in range(10)]
            assert (dataset._feed.attached, dataset.facts["feeder"]) == (True, feeder)
            run.line("attached")
            with FeedlineDataset(path) as second:
                assert [image(batch) for batch in second] == planned
                assert (second._feed.attached, second.facts["feeder"] == feeder) == (False, False)
            seen += [image(next(iterator)) for _ in range(10)]
            assert seen == planned[:20]
        run.line("trainer left")
        state = tmp_path / "state.pt"
        with trainer(path, state, "--epochs", 2, "--stop-after", 2 * STEPS - 2) as first:
            assert first.line("feeder (.*)")[1] == f"{feeder} attached"
            first.line(f"^1 {STEPS - 3} ")
            first.kill()
        run.line("trainer left")
        with FeedlineDataset(path) as dataset:  # the ring held the rest already, but nobody has had it
            dataset.load_state_dict(torch.load(state, weights_only=True))
            assert [image(batch) for batch in dataset] == oracle(path, epoch=1)[-2:]
            assert dataset.facts["feeder"] == feeder
            assert dataset.stats().feeders == 1
        assert run.wait(SECONDS) == 0
    assert re.search(r"in \d+ batches", run.text)


def test_every_rank_of_a_host_has_its_feeder(place: Place):
    path = place.write()
    with feedline("run", path, "--world-size", 2, "--json") as run:
        for _ in range(2):
            run.line("rank [01]: waiting for a trainer")
        with (
            FeedlineDataset(path, rank=0, world_size=2) as zero,
            FeedlineDataset(path, rank=1, world_size=2) as one,
        ):
            for rank, dataset in enumerate((zero, one)):
                assert [image(batch) for batch in dataset] == oracle(path, rank=rank, world_size=2)
                assert dataset._feed.attached
        assert run.wait(SECONDS) == 0
    summary = json.loads(run.lines[-1])
    assert (summary["rows"], summary["batches"], summary["steps"], summary["ranks"]) == (19_968, 78, 39, [0, 1])
    assert 0 <= summary["wait_fraction"] <= 1
    plan = Pipeline.from_yaml(path).plan(world_size=2).facts()
    for name in ("snapshot", "plan", "rows_dropped"):
        assert summary[name] == getattr(plan, name), name
    assert summary["rows_dropped"] > 0


def test_two_trainers_knock_at_once(place: Place, planned: list[bytes]):
    """Exactly one gets in; the other starts its own feeder, at once."""
    path = place.write()
    with feedline("run", path) as run:
        run.line("waiting for a trainer")
        feeder = run.descendants()[0]
        feeder.suspend()  # both connections lie in the backlog when it looks
        with ThreadPoolExecutor(2) as two:
            made = [two.submit(FeedlineDataset, path) for _ in range(2)]
            (path_of_socket,) = place.sockets.glob("*.sock")
            assert eventually(lambda: connections(path_of_socket.name) == 3)
            feeder.resume()
            datasets = [each.result() for each in made]
        try:
            assert sorted(dataset._feed.attached for dataset in datasets) == [False, True]
            for dataset in datasets:
                assert [image(batch) for batch in dataset] == planned
                assert dataset.stats().feeders == 1
        finally:
            for dataset in datasets:
                dataset.close()
        assert run.wait(SECONDS) == 0


def test_trainers_of_a_suspended_run_start_feeders_of_their_own(
    place: Place, planned: list[bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """After Ctrl-Z nobody accepts connections; the third trainer waited for ever in its constructor."""
    monkeypatch.setattr(rendezvous, "_GREETING_S", 0.5)
    path = place.write()
    with feedline("run", path) as run, ExitStack() as stack:
        run.line("waiting for a trainer")
        family = [psutil.Process(run.pid), *run.descendants()]
        for process in family:
            process.suspend()
        try:
            with ThreadPoolExecutor(1) as pool:
                for _ in range(3):
                    dataset = stack.enter_context(pool.submit(FeedlineDataset, path).result(PATIENCE_S))
                    assert [image(batch) for batch in dataset] == planned
                    assert not dataset._feed._connection.attached
        finally:
            for process in family:
                process.resume()
        assert caplog.text.count("did not greet a trainer within 0.5 s: it is suspended") == 3
        run.line("trainer .* attached")  # one of those that had connected and left
        run.line("trainer left")
        run.send(signal.SIGTERM)
        assert run.wait(SECONDS) == 143


def test_a_run_after_a_dead_one_and_beyond_a_trainers_error(place: Place, planned: list[bytes]):
    """What the dead run left is swept; a plan that fails is reported to its trainer, and the run continues."""
    path = place.write()
    place.sockets.mkdir(parents=True, mode=0o700)
    name = f"{job_fingerprint(load_spec(path))[:16]}-0of1"
    (place.sockets / f"{name}.sock").touch()
    (place.sockets / f"{name}.lock").write_text("999999")
    with FeedlineDataset(path) as dataset:  # nobody waits there
        assert not dataset._feed.attached
        assert len(dataset) == STEPS
    with feedline("run", path) as run:
        run.line("waiting for a trainer")
        with FeedlineDataset(path) as dataset:
            state = dataset.state_dict()
            with pytest.raises(StateError, match="belongs to another plan: got 0"):
                dataset.load_state_dict({**state, "plan": "0"})
        assert "StateError" in run.line("trainer left after .*")[0]
        with FeedlineDataset(path) as dataset:
            assert [image(batch) for batch in dataset] == planned
            assert dataset._feed.attached
        assert run.wait(SECONDS) == 0


@pytest.mark.parametrize(
    "environment",
    [{"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {"OMPI_COMM_WORLD_SIZE": "2"}],
)
def test_a_run_that_a_launcher_multiplies_names_its_ranks(environment: dict, monkeypatch: pytest.MonkeyPatch):
    """Each would serve rank 0 of 1 and drain everything, or wait for a trainer that never comes."""
    assert parse_ranks(None, None) == [0]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SpecError, match="--ranks and --world-size are missing under a launcher"):
        parse_ranks(None, None)
    assert parse_ranks(None, 1) == [0]
    assert parse_ranks("0-1", 4) == [0, 1]


def test_wrong_options(place: Place):
    path = place.write()
    for options, text in (
        (("--sink", "file"), "--sink is unknown: got 'file', expected trainer or null"),
        (("--ranks", "0-x"), "--ranks is not a list of ranks: got '0-x'"),
        (("--ranks", "2", "--world-size", "2"), "--ranks does not fit --world-size"),
        (("--set", "batch.sizes=3"), "did you mean"),
    ):
        done = ended_here("run", path, *options)
        assert done.returncode == 2, done.stderr
        assert text.lower() in done.stderr.lower()
    assert ended_here("run", path.with_name("none.yaml")).returncode == 2
