"""Fork worker processes from one that has imported everything and used nothing: milliseconds each, not a second.

Runs in: the feeder (`Zygote`), the zygote (`_serve`) and, up to `run_worker`, each worker. The feeder forks the zygote
in its main thread before it starts another. A process that has more threads must not fork, since locks that these hold
would stay locked in the child; what native libraries start when they are imported is no obstacle, what Polars starts
with its first query is: a query in the child then waits forever.

    feeder -> zygote   FORK threads, with the worker's descriptors; KILL pid
    zygote -> feeder   the pid, or minus the error number; in a pipe of its own pid and exit status of ended workers

A zygote dies with its feeder, a worker with the zygote. At the end of the connection the zygote waits for the ends of
its workers, and kills those that stay.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import struct
import threading
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from feedline.errors import ClusterError
from feedline.service.pool.spawner import (
    EXIT_S,
    Run,
    die_with,
    end_process,
    flush_streams,
    ignore_signals,
    name_process,
    run_worker,
)

_REQUEST = struct.Struct("<ci")  # kind; threads or pid
_FORK, _KILL = b"F", b"K"
_ANSWER = struct.Struct("<i")
_END = struct.Struct("<ii")  # pid, exit status
_MOST_DESCRIPTORS = 250  # in one message; Linux allows 253
# A fork takes milliseconds; a zygote that does not answer for so long is stopped.
_ANSWER_S = 20.0
# Threads of runtimes that are in use, by the start of their names; `polars-ooc-cleaner` exists from the import on.
_RUNTIMES = {"polars-": "Polars", "tokio-": "a tokio runtime", "async-executor": "Polars", "AwsEventLoop": "S3"}
_HARMLESS = "polars-ooc"


def fork_refusal() -> str | None:
    """Why this process must not fork workers, as a sentence for the log; None if it may."""
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others or threading.current_thread() is not threading.main_thread():
        return f"Python threads besides the main one run: {', '.join(others)}"
    for comm in sorted(Path("/proc/self/task").glob("*/comm")):
        with contextlib.suppress(OSError):  # the thread has ended
            name = comm.read_text().strip()
            for start, runtime in _RUNTIMES.items():
                if name.startswith(start) and not name.startswith(_HARMLESS):
                    return f"{runtime} was used already: its thread {name} runs"
    return None


class Zygote:
    """The feeder's end of a zygote: a `Spawner`."""

    def __init__(self, pid: int, control: socket.socket, ends: int) -> None:
        self.pid = pid
        self._control = control
        self._ends = ends
        self._workers: set[int] = set()
        self._is_alive = True

    @classmethod
    def start(cls, run: Run) -> Zygote:
        """Fork the zygote. run: what each worker calls in its main thread, with its descriptors. Raises ClusterError if
        this process must not fork (`fork_refusal`), or cannot."""
        if (refusal := fork_refusal()) is not None:
            raise ClusterError(f"workers cannot be forked: {refusal}")
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends, reports = os.pipe()
        parent = os.getpid()
        try:
            pid = _fork()
        except OSError as error:
            control.close()
            os.close(ends)
            raise ClusterError(f"the process that forks workers cannot be started: {error}") from error
        else:
            if not pid:
                _run_zygote(run, theirs, reports, parent)
        finally:
            theirs.close()
            os.close(reports)
        control.settimeout(_ANSWER_S)
        os.set_blocking(ends, False)
        return cls(pid, control, ends)

    def spawn(self, descriptors: Sequence[int], *, threads: int) -> int:
        try:
            socket.send_fds(self._control, [_REQUEST.pack(_FORK, threads)], descriptors)
            answer = self._control.recv(_ANSWER.size)
        except OSError as error:
            raise self._lost(str(error)) from error
        if not answer:
            raise self._lost("end of the connection")
        [pid] = _ANSWER.unpack(answer)
        if pid < 0:
            raise ClusterError(f"a worker process cannot be forked: {os.strerror(-pid)}")
        self._workers.add(pid)
        return int(pid)

    def fileno(self) -> int:
        return self._ends

    def ended(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        with contextlib.suppress(BlockingIOError):
            while reports := os.read(self._ends, 512 * _END.size):
                found += _END.iter_unpack(reports)
            self._is_alive = False  # and with it all workers
            found += [(pid, -signal.SIGKILL) for pid in sorted(self._workers - {pid for pid, _ in found})]
        self._workers.difference_update(pid for pid, _ in found)
        return found

    def kill(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # it has ended, and all workers with it
            self._control.send(_REQUEST.pack(_KILL, pid))

    def close(self) -> None:
        self._control.close()
        poll = select.poll()
        poll.register(self._ends, 0)  # the end of the pipe alone
        if not poll.poll(1000 * (EXIT_S + 1)):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        os.close(self._ends)

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    def _lost(self, reason: str) -> ClusterError:
        """The error for a zygote that has ended, or is stopped."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._is_alive = False
        return ClusterError(f"the process that forks workers has ended: {reason}")


def _fork() -> int:
    flush_streams()
    with warnings.catch_warnings():
        # From 3.12 on, of threads that native libraries start when they are imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


# --------------------------------------------------------------------------------------------------------------------
# The zygote's side.


def _run_zygote(run: Run, control: socket.socket, reports: int, parent: int) -> NoReturn:
    try:
        die_with(parent)
        ignore_signals()
        name_process("feedline-zygote")
        _keep_descriptors({1, 2, control.fileno(), reports})
        os.open(os.devnull, os.O_RDWR)  # the lowest free number: standard input
        gc.freeze()  # a worker's collections would copy all pages
        _serve(run, control, reports)
    except BaseException:  # the process ends here
        traceback.print_exc()
    finally:
        end_process(1)


def _serve(run: Run, control: socket.socket, reports: int) -> NoReturn:
    """Fork workers and report their ends, until the connection ends; then wait for them."""
    workers: set[int] = set()
    wakes = _wake_at_ends()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wakes, select.POLLIN)
    deadline_s = None  # once the connection has ended
    while deadline_s is None or (workers and time.monotonic() < deadline_s):
        left_ms = None if deadline_s is None else max(0.0, 1000 * (deadline_s - time.monotonic()))
        for descriptor, _ in poll.poll(left_ms):
            if descriptor == wakes:
                os.read(wakes, 4096)
                _reap(workers, reports)
            elif not _answer(run, control, workers):
                poll.unregister(control)
                deadline_s = time.monotonic() + EXIT_S
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    end_process(0)


def _wake_at_ends() -> int:
    """A descriptor that is readable when children have ended."""
    wakes, woken = os.pipe()
    for end in (wakes, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    return wakes


def _reap(workers: set[int], reports: int) -> None:
    """Remove and report the workers that have ended."""
    for pid in list(workers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            workers.remove(pid)
            with contextlib.suppress(OSError):  # the feeder is gone
                os.write(reports, _END.pack(pid, os.waitstatus_to_exitcode(status)))


def _answer(run: Run, control: socket.socket, workers: set[int]) -> bool:
    """Do what the next request asks for. Returns False at the end of the connection."""
    request, received, flags, _ = socket.recv_fds(control, _REQUEST.size, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if not request:
        return False
    kind, number = _REQUEST.unpack(request)
    if kind == _KILL:
        if number in workers:  # else its number may be another process's by now
            os.kill(number, signal.SIGKILL)
        return True
    pid = -errno.EMFILE if flags & socket.MSG_CTRUNC else _fork_worker(run, received, threads=number)
    for descriptor in received:
        os.close(descriptor)
    if pid > 0:
        workers.add(pid)
    with contextlib.suppress(OSError):  # the feeder is gone, which the next call finds
        control.send(_ANSWER.pack(pid))
    return True


def _fork_worker(run: Run, descriptors: Sequence[int], *, threads: int) -> int:
    """Fork a worker. Returns its pid, or minus the error number."""
    parent = os.getpid()
    try:
        pid = _fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    if not pid:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep_descriptors({0, 1, 2, *descriptors})
            run_worker(run, descriptors, threads=threads, parent=parent)
        finally:
            os._exit(1)
    return pid


def _keep_descriptors(kept: set[int]) -> None:
    """Close all other descriptors: a copy of a socket would hide its owner's death from the other side."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 -- before any is closed
        if int(name) not in kept:
            with contextlib.suppress(OSError):  # of the listing itself
                os.close(int(name))
