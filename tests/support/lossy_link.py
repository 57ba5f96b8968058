"""A link between two hosts whose packets are delayed, lost, queued and dropped as its settings say.

Hosts are network namespaces with a TUN device each; a process (this file as a program) passes packets from one to the
other, so that TCP on both ends is the kernel's. The kernel's own `netem` is not built everywhere.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fcntl import ioctl
from math import inf
from struct import pack
from typing import TextIO

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_DEVICE = "/dev/net/tun"
_ADDRESSES = ("10.213.48.1", "10.213.48.2")
_MTU = 1500
_DEVICE_PACKETS = 10_000  # which a device keeps for the program: the losses are those of the settings
_QUEUE_S = 0.1  # what waits longer for a limited rate is dropped, as routers do


@dataclass(frozen=True, kw_only=True)
class Direction:
    """What happens to packets of one direction. loss: the share that is lost. passes: False drops all."""

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float = inf
    passes: bool = True


@dataclass(frozen=True)
class Host:
    """A host: the beginning of a command that runs there, and its address."""

    within: tuple[str, ...]
    address: str


def missing_link() -> str:
    """Why there can be no link here; empty if there can."""
    if shutil.which("ip") is None or not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"needs iproute2 and {_DEVICE}"
    words = ["unshare", "--net", "--mount", "true"]
    try:
        return "" if subprocess.run(words, capture_output=True, check=False).returncode == 0 else "needs namespaces"
    except OSError:
        return "needs unshare"


class Link:
    """Two hosts, of which the first one's packets take `there`, and the second one's `back`."""

    def __init__(self, hosts: tuple[Host, Host], settings: TextIO) -> None:
        self.hosts = hosts
        self._settings = settings

    def set(self, there: Direction | None = None, back: Direction | None = None) -> None:
        """Change the settings from the next packet on (default: it all passes at once; `back` is as `there`)."""
        there = there or Direction()
        self._settings.write(json.dumps([asdict(there), asdict(back or there)]) + "\n")
        self._settings.flush()


@contextmanager
def lossy_link() -> Iterator[Link]:
    """A link during a block. Processes on its hosts must have ended before."""
    names = [f"feedline-link-{os.getpid()}-{number}" for number in range(2)]
    files = []
    try:
        for number, name in enumerate(names):
            device = f"fl{os.getpid() % 1_000_000}{'ab'[number]}"
            _run("ip", "netns", "add", name)
            files.append(os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK))
            ioctl(files[-1], _TUNSETIFF, pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
            _run("ip", "link", "set", device, "netns", name)
            for words in (
                f"addr add {_ADDRESSES[number]} peer {_ADDRESSES[1 - number]} dev {device}",
                f"link set {device} mtu {_MTU} txqueuelen {_DEVICE_PACKETS} up",
                "link set lo up",
            ):
                _run("ip", "-n", name, *words.split())
        words = [sys.executable, __file__, *map(str, files)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, text=True, pass_fds=files) as program:
            hosts = [
                Host(("nsenter", f"--net=/run/netns/{name}"), at) for name, at in zip(names, _ADDRESSES, strict=True)
            ]
            yield Link((hosts[0], hosts[1]), program.stdin)
        assert program.returncode == 0
    finally:
        for file in files:
            os.close(file)
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"


class _Queue:
    """Packets of one direction on their way to a device."""

    def __init__(self, target: int, seed: int) -> None:
        self.settings = Direction()
        self._target = target
        self._random = random.Random(seed)
        self._waiting: deque[tuple[float, bytes]] = deque()  # with the time of arrival, in its order
        self._sent_s = 0.0  # when the last packet will have been sent at the limited rate

    def put(self, packet: bytes, now_s: float) -> None:
        settings = self.settings
        if not settings.passes or self._random.random() < settings.loss or self._sent_s - now_s > _QUEUE_S:
            return
        self._sent_s = max(now_s, self._sent_s) + len(packet) / settings.bytes_per_s
        arrives_s = self._sent_s + settings.delay_s
        if self._waiting:  # none overtakes another when the delay becomes shorter
            arrives_s = max(arrives_s, self._waiting[-1][0])
        self._waiting.append((arrives_s, packet))

    def deliver(self, now_s: float) -> None:
        """Pass on what has arrived; what was on its way when the link was cut is lost."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, packet = self._waiting.popleft()
            if self.settings.passes:
                try:
                    os.write(self._target, packet)
                except OSError:  # a device that is full, or not up yet
                    continue

    def next_s(self) -> float:
        return self._waiting[0][0] if self._waiting else inf


def _forward(one: int, other: int) -> None:
    """Pass packets on between two devices until standard input ends; its lines are settings."""
    queues = {one: _Queue(other, seed=1), other: _Queue(one, seed=2)}
    while True:
        left_s = min(queue.next_s() for queue in queues.values()) - time.monotonic()
        ready, _, _ = select.select([one, other, 0], [], [], None if left_s == inf else max(0.0, left_s))
        if 0 in ready:
            lines = os.read(0, 65536).splitlines()  # whole ones: a short write to a pipe is read at once
            if not lines:
                return
            for queue, settings in zip(queues.values(), json.loads(lines[-1]), strict=True):
                queue.settings = Direction(**settings)
        now_s = time.monotonic()
        for device, queue in queues.items():
            if device in ready:
                for _ in range(64):  # then it is the other direction's turn
                    try:
                        queue.put(os.read(device, 65536), now_s)
                    except OSError:  # it is empty
                        break
            queue.deliver(now_s)


if __name__ == "__main__":
    _forward(*map(int, sys.argv[1:]))
