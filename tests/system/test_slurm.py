"""deploy/slurm/train.sbatch in a real Slurm of one host: it ends in order, and continues after a requeue."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipelines import eventually
from slurm import missing_slurm, output, slurm

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300
WORDS = (
    "--epochs=1000",
    "--checkpoint-every=5",
    "--set=source.where=arr_delay is not None and month == 1",
    "--held-out=arr_delay is not None and month == 2 and day <= 7",
)
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(bool(missing_slurm()), reason=missing_slurm())]


class Job:
    """A job of the script; `text` is what it has printed."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self._environment, self._out = environment, folder / "out.txt"
        words = ("--parsable", "--nodes=1", "--cpus-per-task=2", f"--output={self._out}", "--open-mode=append")
        self.number = output(environment, "sbatch", *words, str(ROOT / "deploy" / "slurm" / "train.sbatch"), *WORDS)
        assert self.number.isdigit(), self.number

    @property
    def text(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    def line(self, pattern: str) -> re.Match[str]:
        found = eventually(lambda: re.search(pattern, self.text), within_s=WITHIN_S)
        assert found, self.text
        return found

    def run(self, *words: str) -> str:
        return output(self._environment, *words)

    def has_ended(self) -> bool:
        return not self.run("squeue", "--noheader", f"--jobs={self.number}", "--states=pending,running,completing")


@pytest.fixture
def job() -> Iterator[Job]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # munged refuses folders that others may change
        folder = Path(name)
        with slurm(folder) as environment:
            own = {"FEEDLINE_SHARED": str(folder / "shared"), "FEEDLINE_CHECKOUT": str(ROOT)}
            path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
            started = Job({**environment, **own, "PATH": path}, folder)
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
