"""Measure time, CPU and memory of a command and all processes that it starts.

Runs in the benchmark's own process, which is the subreaper of its descendants meanwhile: a process that outlives its
parent is still found, and its CPU time counted when it ends. CPU is exact (the kernel's sums over all reaped children);
memory is the peak of samples of the proportional set size, in which shared pages count once.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

SAMPLE_S = 0.5  # a sample walks the page tables: about 1 ms per 100 MB
GRACE_S = 15.0  # grace for processes that outlive the command; then they are killed and reported
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A finished command: exit code (negative: a signal), outputs, cost of its tree, processes killed after it.

    A command that exceeds the time limit is killed: its code is -9.
    """

    code: int
    stdout: str
    stderr: str
    cpu_s: float
    peak_pss_bytes: int
    left_behind: tuple[str, ...]


def measure(command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 1800) -> Measured:
    """Run a command until it and all that it started have ended. The caller must have no other children."""
    peak = 0
    with _reaper(), tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        before = _children_cpu_s()
        deadline = time.monotonic() + timeout_s
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env)
        while process.poll() is None:
            peak = max(peak, _tree_pss_bytes())
            if time.monotonic() > deadline:
                process.kill()
            try:
                process.wait(SAMPLE_S)
            except subprocess.TimeoutExpired:
                continue
        left_behind = _reap_orphans()
        out.seek(0)
        err.seek(0)
        return Measured(
            code=process.returncode,
            stdout=out.read().decode(errors="replace"),
            stderr=err.read().decode(errors="replace"),
            cpu_s=_children_cpu_s() - before,
            peak_pss_bytes=peak,
            left_behind=left_behind,
        )


@contextmanager
def _reaper() -> Iterator[None]:
    """This process adopts its orphaned descendants, and must reap them. Afterwards others do, as before: in a process
    that reaps none they would stay as zombies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _tree_pss_bytes() -> int:
    return sum(_pss_bytes(child.pid) for child in psutil.Process().children(recursive=True))


def _pss_bytes(pid: int) -> int:
    """Return the proportional set size; 0 for a process that has just ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass
    return 0


def _reap_orphans() -> tuple[str, ...]:
    """Wait for every descendant; kill those that remain, and return their command lines."""
    killed: list[str] = []
    deadline = time.monotonic() + GRACE_S
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return tuple(killed)
        if pid:
            continue
        if time.monotonic() > deadline:
            killed += [_kill(child) for child in psutil.Process().children(recursive=True)]
            deadline = time.monotonic() + GRACE_S
        time.sleep(0.02)


def _kill(process: psutil.Process) -> str:
    """Kill a process and return its command line."""
    try:
        words = " ".join(process.cmdline()) or process.name()
        process.send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return f"process {process.pid}"
    return words
