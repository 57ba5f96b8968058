"""A program in the place of a feeder: it starts worker processes, drives them, and prints what it found as JSON.

Its arguments: `fork` or `import`, a case, and what that needs. Tests cannot fork workers themselves: they have used
Polars.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
from typing import Any

import numpy as np
import polars as pl
import pyarrow.fs
import worker_tasks

from feedline.errors import ClusterError
from feedline.resources.allocators import use_huge_pages
from feedline.service.pool.spawner import ImportingSpawner
from feedline.service.pool.zygote import Zygote, fork_refusal

_WAVE = 16


class Workers:
    """Workers with a connection each."""

    def __init__(self, kind: str) -> None:
        self.spawner = Zygote.start(worker_tasks.work) if kind == "fork" else ImportingSpawner(worker_tasks.work)
        self.seats: dict[int, socket.socket] = {}  # by pid

    def start(self, threads: int = 1) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            pid = self.spawner.spawn([theirs.fileno()], threads=threads)
        self.seats[pid] = ours
        return pid

    def request(self, pid: int, *words: Any) -> None:
        self.seats[pid].send(json.dumps(words).encode())

    def answer(self, pid: int) -> Any:
        return json.loads(self.seats[pid].recv(2**16))

    def ask(self, pid: int, *words: Any) -> Any:
        self.request(pid, *words)
        return self.answer(pid)

    def hang_up(self, pid: int) -> None:
        self.seats.pop(pid).close()

    def ends(self, count: int) -> dict[int, int]:
        """Wait for the ends of so many workers: exit statuses by pid."""
        found: dict[int, int] = {}
        poll = select.poll()
        poll.register(self.spawner.fileno(), select.POLLIN)
        while len(found) < count:
            poll.poll()
            found |= dict(self.spawner.ended())
        return found


def facts(kind: str) -> Any:
    """What two workers of 1 and 3 threads found, of a feeder that is set up in another way."""
    gc.disable()
    use_huge_pages(False)
    np.random.seed(1)
    for end in os.pipe():
        os.set_inheritable(end, True)
    workers = Workers(kind)
    found = [workers.ask(workers.start(threads), "facts") for threads in (1, 3)]
    spawner = workers.spawner
    descriptors = worker_tasks.descriptors()
    parent = spawner.pid if isinstance(spawner, Zygote) else os.getpid()
    for pid in list(workers.seats):
        workers.hang_up(pid)
    spawner.close()
    return {"workers": found, "parent": parent, "descriptors": descriptors}


def refusals(_: str) -> Any:
    """What is said of forking: at first, beside a thread, after S3, after a query; and the error."""
    said = [fork_refusal()]
    wait = threading.Event()
    thread = threading.Thread(target=wait.wait, name="beside")
    thread.start()
    said.append(fork_refusal())
    wait.set()
    thread.join()
    said.append(fork_refusal())
    pyarrow.fs.S3FileSystem(region="us-east-1", anonymous=True)
    said.append(fork_refusal())
    pl.LazyFrame({"a": [1]}).select(pl.col("a").sum()).collect()
    said.append(fork_refusal())
    try:
        Zygote.start(worker_tasks.work)
    except ClusterError as error:
        said.append(str(error))
    return said


def statuses(kind: str) -> Any:
    """How the end of workers is reported, by how they end."""
    workers = Workers(kind)
    names = {}
    for words in (["die"], ["fail"], ["exit", 7], ["stay"], ["hang up"]):
        names[pid := workers.start()] = words[0]
        if words[0] != "hang up":
            workers.request(pid, *words)
    pids = {name: pid for pid, name in names.items()}
    workers.hang_up(pids["hang up"])
    found = workers.ends(4)
    workers.spawner.kill(pids["stay"])
    found |= workers.ends(1)
    workers.spawner.kill(pids["stay"])  # it has ended
    pid = workers.start()
    workers.request(pid, "stay")  # until it is killed by `close`
    workers.spawner.close()
    return {"reported": {names[pid]: status for pid, status in found.items()}, "stayed": _lives(pid)}


def _last_bytes(seat: socket.socket) -> bytes:
    """What a connection still gives; nothing for one that has ended, also where its process left a request unread."""
    try:
        return seat.recv(1)
    except ConnectionResetError:
        return b""


def dead_zygote(kind: str) -> Any:
    """What is reported once the zygote was killed."""
    workers = Workers(kind)
    assert isinstance(workers.spawner, Zygote)
    pids = [workers.start() for _ in range(2)]
    workers.request(pids[0], "stay")
    os.kill(workers.spawner.pid, signal.SIGKILL)
    found = workers.ends(2)
    connections = [_last_bytes(workers.seats[pid]) for pid in pids]  # end, since nobody else has them
    error = ""
    try:
        workers.start()
    except ClusterError as caught:
        error = str(caught)
    is_alive = workers.spawner.is_alive
    workers.spawner.close()
    return {
        "statuses": [found[pid] for pid in pids],
        "received": [len(each) for each in connections],
        "error": error,
        "alive": is_alive,
    }


def few_descriptors(kind: str) -> Any:
    """The error for a worker whose descriptors find no room in the zygote; the next worker works."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    workers = Workers(kind)
    error = ""
    try:
        workers.spawner.spawn([0] * 30, threads=1)
    except ClusterError as caught:
        error = str(caught)
    rows = workers.ask(pid := workers.start(), "facts")["rows"]
    workers.hang_up(pid)
    workers.spawner.close()
    return {"error": error, "rows": rows}


def signals(kind: str) -> Any:
    """Send the signals of a terminal and of launchers to all processes; then ask a worker."""
    os.setsid()
    sent = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    for number in sent:
        signal.signal(number, signal.SIG_IGN)
    workers = Workers(kind)
    workers.ask(pid := workers.start(), "facts")
    for number in sent:
        os.killpg(0, number)
    rows = workers.ask(pid, "facts")["rows"]
    workers.start()
    workers.seats.clear()
    workers.spawner.close()
    return rows


def hold(kind: str) -> Any:
    """Print the pids of workers, one of which is stopped, and of the zygote, and stay."""
    workers = Workers(kind)
    pids = [workers.start() for _ in range(3)]
    for pid in pids:
        workers.ask(pid, "facts")
    workers.request(pids[0], "stay")
    os.kill(pids[1], signal.SIGSTOP)
    if isinstance(workers.spawner, Zygote):
        pids.append(workers.spawner.pid)
    print(json.dumps(pids), flush=True)
    worker_tasks.stay()


def crowd(kind: str, count: str, path: str, endpoint: str, key: str) -> Any:
    """Start so many workers in waves; each reads a file, and its copy in S3. Returns different answers and statuses."""
    print("printed once")  # not flushed yet
    workers = Workers(kind)
    answers, exits = set(), set()
    left = int(count)
    while left:
        wave = [workers.start() for _ in range(min(left, _WAVE))]
        for pid in wave:
            workers.request(pid, "read", path, endpoint, key)
        for pid in wave:
            answers.add(tuple(workers.answer(pid)))
            workers.hang_up(pid)
        exits |= set(workers.ends(len(wave)).values())
        left -= len(wave)
    workers.spawner.close()
    return {"answers": sorted(answers), "statuses": sorted(exits)}


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


CASES = {
    each.__name__: each for each in (facts, refusals, statuses, dead_zygote, few_descriptors, signals, hold, crowd)
}

if __name__ == "__main__":
    kind, case, *arguments = sys.argv[1:]
    print(json.dumps(CASES[case](kind, *arguments)))
