"""Programs that tests start, read from, signal and wait for: each has a deadline, and none outlives its test."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import zygote
from distributed import Client
from pipelines import PATIENCE_S, eventually

from feedline.cli import app
from feedline.commands.exit_status import status_of

SUPPORT = Path(__file__).parent


class Program:
    """A running process whose lines (of standard output and error) can be waited for."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self.lines: list[str] = []
        self._unread: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def line(self, pattern: str) -> re.Match[str]:
        """Return the next line that matches, skipping others."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self._unread.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            assert line is not None, f"no line matches {pattern!r} in:\n{self.text}"
            if match := re.search(pattern, line):
                return match

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """Wait for the end and return the exit status; `text` then has all output."""
        status = self.process.wait(within_s)
        self._reader.join(within_s)
        return status

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self.send(signal.SIGKILL)
        self.wait()

    def descendants(self) -> list[psutil.Process]:
        """Its processes, without the server by which it starts feeders."""
        children = psutil.Process(self.pid).children(recursive=True)
        return [child for child in children if not zygote.is_server(child)]

    def close(self) -> None:
        """End the program and its descendants, in any state."""
        if self.process.poll() is None:
            for child in self.descendants():
                child.kill()
            self.kill()
        self._reader.join(PATIENCE_S)
        self.process.stdout.close()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.append(line)
            self._unread.put(line)
        self._unread.put(None)


@contextmanager
def running(*command: object, **options: Any) -> Iterator[Program]:
    """Run a program during a block; at its end the program is terminated if it still runs."""
    program = Program([str(word) for word in command], **options)
    try:
        yield program
    finally:
        program.close()


def feedline(*arguments: object, **options: Any) -> Any:
    """Run the command line during a block, as `running`."""
    return running(sys.executable, "-m", "feedline", *arguments, **options)


def trainer(*arguments: object, **options: Any) -> Any:
    """Run a training loop during a block, as `running`."""
    return running(sys.executable, SUPPORT / "training_loop.py", *arguments, **options)


def finished(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S, **options)


def ended(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return finished(sys.executable, "-m", "feedline", *arguments, **options)


def ended_here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end in this process: where a process of its own is not what is tested."""
    words = [str(word) for word in arguments]
    threshold = gc.get_threshold()
    # A command tunes garbage collection for its own process: here it must not freeze the tests' objects.
    freeze, gc.freeze = gc.freeze, lambda: None
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
            status = status_of(lambda: app(words))
    finally:
        gc.freeze = freeze
        gc.set_threshold(*threshold)
    return subprocess.CompletedProcess(words, status, out.getvalue(), errors.getvalue())


def all_gone(processes: Sequence[psutil.Process]) -> bool:
    """Whether the processes end within the time that the family of a killed process needs."""
    return bool(eventually(lambda: not [each for each in processes if _lives(each)], within_s=15))


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def connections(name: str) -> int:
    """Count the kernel's entries for a UNIX socket's path: the listening one and its backlog."""
    return sum(line.endswith(name) for line in Path("/proc/net/unix").read_text().splitlines())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def role_files(folder: Path, role: str) -> dict[str, str]:
    """`cluster.tls` with the files that `feedline certs` made for a role."""
    own = folder / role
    return {"ca": str(own / "ca.pem"), "cert": str(own / f"{role}.pem"), "key": str(own / f"{role}.key")}


class DaskCluster:
    """A scheduler and workers of Dask's, as in a deployment, at a fixed address.

    By their modules: the command `dask` first imports the commands of all packages that have some, 0.5 s.

    certs: a folder of `feedline certs`, for a cluster with mutual TLS.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 1,
        environment: dict[str, str] | None = None,
        certs: Path | None = None,
    ) -> None:
        self.port = free_port()
        self.address = f"{'tls' if certs else 'tcp'}://127.0.0.1:{self.port}"
        self._certs = certs
        self._workers = workers
        folder.mkdir()
        own = {"PYTHONWARNINGS": "ignore", "TMPDIR": str(folder)}  # what killed processes leave behind is not checked
        self._environment = {**os.environ, **own, **(environment or {})}
        self._programs: list[Program] = []

    def start(self) -> None:
        try:
            self.start_scheduler()
            for _ in range(self._workers):
                self.start_worker()
        except BaseException:
            self.kill()
            raise

    def start_scheduler(self) -> None:
        options = ("--host", "127.0.0.1", "--port", self.port, "--no-dashboard")
        self._start("scheduler", *options).line("Scheduler at")

    def start_worker(self, environment: dict[str, str] | None = None, *, within: Sequence[object] = ()) -> None:
        """within: the words of a command that runs the worker's."""
        options = (self.address, "--host", "127.0.0.1", "--nthreads", 1, "--no-nanny", "--no-dashboard")
        self._start("worker", *options, environment=environment, within=within).line("Registered to")

    def kill_worker(self) -> None:
        """Send SIGKILL to the worker that was started last."""
        self._programs.pop().close()

    def suspend_worker(self) -> None:
        """Suspend the worker that was started last: it accepts tasks, but does nothing."""
        self._programs[-1].send(signal.SIGSTOP)

    def tasks(self) -> int:
        """Return the number of tasks of the scheduler."""
        with Client(self.address, set_as_default=False) as client:
            return int(client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks)))

    def pids(self) -> list[int]:
        """The scheduler's and the workers' processes."""
        return [program.pid for program in self._programs]

    def kill(self) -> None:
        """Send SIGKILL to all."""
        for program in self._programs:
            program.close()
        self._programs.clear()

    def _start(
        self,
        role: str,
        *options: object,
        environment: dict[str, str] | None = None,
        within: Sequence[object] = (),
    ) -> Program:
        words = [str(option) for option in options]
        if self._certs is not None:
            flags = {"ca": "--tls-ca-file", "cert": "--tls-cert", "key": "--tls-key"}
            words += [word for key, file in role_files(self._certs, role).items() for word in (flags[key], file)]
        command = [*map(str, within), sys.executable, "-m", f"distributed.cli.dask_{role}", *words]
        program = Program(command, env={**self._environment, **(environment or {})})
        self._programs.append(program)
        return program

    def __enter__(self) -> DaskCluster:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
