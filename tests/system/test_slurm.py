"""deploy/slurm/train.sbatch in a real Slurm, of one host and of two: it ends in order, and continues where it was
requeued or preempted; and a feeder whose workers are jobs.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
from lossy_link import Host, lossy_link, missing_link
from pipelines import eventually, furnished, oracle
from processes import SUPPORT, running
from receipts import audit_receipts, read_receipts
from slurm import missing_slurm, named_hosts, output, slurm

from feedline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ROOT / "examples" / "flights"
WITHIN_S = 300
WORDS = (
    "--epochs=1000",
    "--checkpoint-every=5",
    "--set=source.where=arr_delay is not None and month == 1",
    "--held-out=arr_delay is not None and month == 2 and day <= 7",
)
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_slurm()), reason=missing_slurm())]


class Job:
    """A job of the script; `text` is what it has printed. within: a command's beginning that runs on the first node."""

    def __init__(
        self, environment: dict[str, str], folder: Path, *words: str, nodes: int = 1, within: Sequence[str] = ()
    ) -> None:
        self._environment, self._out, self._within = environment, folder / "out.txt", within
        options = (f"--nodes={nodes}", "--cpus-per-task=2", f"--output={self._out}", "--open-mode=append")
        self.number = self.submit(*options, str(ROOT / "deploy" / "slurm" / "train.sbatch"), *words)

    def submit(self, *words: str) -> str:
        """Submit a job; its number."""
        number = self.run("sbatch", "--parsable", *words)
        assert number.isdigit(), number
        return number

    @property
    def text(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    def line(self, pattern: str) -> re.Match[str]:
        found = eventually(lambda: re.search(pattern, self.text), within_s=WITHIN_S)
        assert found, self.text
        return found

    def run(self, *words: str) -> str:
        return output(self._environment, *self._within, *words)

    def has_ended(self) -> bool:
        return not self.run("squeue", "--noheader", f"--jobs={self.number}", "--states=pending,running,completing")


def own_environment(environment: dict[str, str], folder: Path, checkout: Path) -> dict[str, str]:
    own = {"FEEDLINE_SHARED": str(folder / "shared"), "FEEDLINE_CHECKOUT": str(checkout)}
    return {**environment, **own, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}


@pytest.fixture
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # munged refuses folders that others may change
        folder = Path(name)
        with slurm(folder) as environment:
            started = Job(own_environment(environment, folder, ROOT), folder, *WORDS)
            try:
                yield started
            finally:
                started.run("scancel", started.number)
                assert eventually(started.has_ended, within_s=60)


def test_a_signal_to_the_script_ends_its_steps_in_order_and_a_requeued_job_continues(job: Job):
    job.line("checkpoint at step 20")
    job.run("scontrol", "requeue", job.number)
    step = int(job.line(r"resumed at step (\d+)")[1])
    assert step >= 20
    job.line(f"checkpoint at step {step + 5}")
    ended = len(job.text)
    job.run("scancel", "--batch", "--signal=TERM", job.number)
    assert eventually(job.has_ended, within_s=60), job.text
    assert "ExitCode=143:0" in job.run("scontrol", "show", "job", job.number)
    text = job.text[ended:]
    order = [text.index(each) for each in ("got signal: 15", " leaves: it takes no new tasks", " has left")]
    assert order == sorted(order), text
    assert not list((Path(job._out).parent / "shared").glob("certs-*"))


needs_hosts = pytest.mark.skipif(bool(missing_link()), reason=missing_link())

# The example's training, which also writes receipts.
RECORDING = f"""
import json, os, runpy, sys
sys.path.insert(0, {str(SUPPORT)!r})
import feedline
from receipts import receipt_of

class Recorded(feedline.FeedlineDataset):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.evaluates = "rank" in options

    def __iter__(self):
        for batch in super().__iter__():
            if not self.evaluates:
                path = os.path.join(os.environ["FEEDLINE_SHARED"], os.environ["RANK"] + ".jsonl")
                with open(path, "ab", buffering=0) as log:
                    log.write(json.dumps(receipt_of(self, batch)).encode() + b"\\n")
            yield batch

feedline.FeedlineDataset = Recorded
runpy.run_path({str(FLIGHTS / "train.py")!r}, run_name="__main__")
"""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Host], dict[str, str]]]:
    """A folder for jobs, two hosts with a network, and the environment of their Slurm."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name, lossy_link() as link:
        folder = Path(name)
        hosts = named_hosts(folder, dict(zip(("node1", "node2"), link.hosts, strict=True)))
        with slurm(folder, hosts) as environment:
            yield folder, hosts, environment
            within = hosts["node1"].within
            output(environment, *within, "scancel", "--user=root")
            assert eventually(lambda: not output(environment, *within, "squeue", "--noheader"), within_s=60)


@needs_hosts
def test_a_job_of_two_hosts_that_is_preempted_continues_and_gets_the_planned_rows(
    nodes: tuple[Path, dict[str, Host], dict[str, str]],
):
    """Slurm sends SIGTERM to its steps; it is requeued, and ends by itself."""
    folder, hosts, environment = nodes
    checkout = folder / "checkout" / "examples" / "flights"
    checkout.mkdir(parents=True)
    (checkout / "train.py").write_text(RECORDING)
    (checkout / "prepare.py").symlink_to(FLIGHTS / "prepare.py")
    own = own_environment(environment, folder, folder / "checkout")
    job = Job(own, folder, "--epochs=12", *WORDS[1:], nodes=2, within=hosts["node1"].within)
    job.line("checkpoint at step 20")
    job.submit("--partition=urgent", "--nodes=2", "--cpus-per-task=4", "--output=/dev/null", "--wrap=true")
    assert int(job.line(r"resumed at step (\d+)")[1]) >= 20
    assert eventually(job.has_ended, within_s=WITHIN_S), job.text
    state = job.run("scontrol", "show", "job", job.number)
    assert "JobState=COMPLETED" in state, (state, job.text)
    assert "Restarts=1" in state
    shared = folder / "shared"
    where = {"source.where": WORDS[2].partition("where=")[2], "source.table": str(shared / "flights")}
    pipeline = Pipeline.from_yaml(FLIGHTS / "pipeline.yaml", {**where, "work_dir": str(shared / "work")})
    audit = audit_receipts(pipeline, read_receipts(shared / "0.jsonl", shared / "1.jsonl"))
    assert audit.equal, (audit.differences, audit.missing)
    assert audit.batches >= 2 * 12 * pipeline.plan(world_size=2).facts().steps
    assert not list(shared.glob("certs-*"))


@needs_hosts
def test_workers_that_are_jobs_compute_the_blocks(
    nodes: tuple[Path, dict[str, Host], dict[str, str]], tmp_path: Path, clicks: Path
):
    """dask-jobqueue's class, with a key of the run's own; its jobs end with the feeder."""
    pytest.importorskip("dask_jobqueue")
    folder, hosts, environment = nodes
    within = hosts["node1"].within
    options = {"cores": 2, "processes": 1, "memory": "2 GiB", "walltime": "00:10:00", "job_cpu": 4}
    options |= {"shared_temp_directory": str(folder), "log_directory": str(folder / "logs")}
    jobs = {"class": "dask_jobqueue.SLURMCluster", "options": options, "workers": 2}
    with furnished(tmp_path, clicks) as place:
        path = place.write("jobs.yaml", allow_code=True, cluster={**jobs, "tls": "temporary", "wait_s": 120})
        own = {**environment, "TMPDIR": str(place.temporary), "XDG_RUNTIME_DIR": str(place.folder / "r")}
        words = (sys.executable, SUPPORT / "training_loop.py", path, tmp_path / "state.pt", "--stop-after", 20)
        with running(*within, *words, env=own) as trainer:
            assert eventually(lambda: "\n0 19 " in trainer.text, within_s=WITHIN_S), trainer.text
            squeue = (*within, "squeue", "--noheader", "--format=%N %T")
            both = ["node1 RUNNING", "node2 RUNNING"]
            assert eventually(lambda: sorted(output(environment, *squeue).splitlines()) == both)
            trainer.send(signal.SIGTERM)
            trainer.wait()
        digests = re.findall(r"^0 \d+ ([0-9a-f]{64})$", trainer.text, re.MULTILINE)
        assert digests == [sha256(each).hexdigest() for each in oracle(path)[: len(digests)]]
        assert len(digests) == 20
        assert eventually(lambda: not output(environment, *squeue), within_s=60), "jobs outlive their feeder"
