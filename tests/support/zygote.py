"""Start `python -m feedline …`, Dask's schedulers and workers, the tests' own training programs and those of
`feedline init` by a fork of a server that has imported what they run: a feeder costs 0.1 s of CPU time instead of 1.3,
a trainer 0.2 instead of 3.

`install` replaces `subprocess.Popen`, and that by which multiprocessing spawns; they start such a program as follows
and every other as ever. A server has imported modules, and used none: no thread of its own runs, no file or query was
opened. It forks a process that forks the program's and ends, so that the kernel gives the program to the nearest
process above that adopts orphans: the one that asked, which adopts for as long as that takes. The program thus is a
child of the process that started it, by pid, for signals, and for wait. It gets arguments, environment, folder,
descriptors, CPUs and limits with the request, and ends as any Python program does. A program that may start feeders or
workers has a server of its own, forked before it runs.

Runs in: the tests, the servers, the programs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import multiprocessing.util
import os
import re
import resource
import runpy
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).resolve().parents[1]
NAME = "zygote.py"  # in a server's command line
_FEEDER = ("feedline.commands.feed",)
_DASK = (
    "feedline.service.scheduler.preload",
    "feedline.service.worker.preload",
    "feedline.service.cluster.local_cluster",
    "feedline.service.cluster.dask_cluster",
    "distributed.http.health",
    "distributed.http.scheduler.info",
    "distributed.http.scheduler.json",
    "distributed.http.scheduler.prometheus",
    "distributed.http.worker.prometheus",
)
_MODULES = {
    "feedline": _FEEDER,
    "feedline dask": (*_FEEDER, *_DASK),  # where a pipeline has a cluster
    "training": (*_FEEDER, "torch", "torch.distributed", "feedline.loader.dataset"),
}
_CLUSTER = re.compile(r"\b(workers?|scheduler)\b")
_SPAWNED = re.compile(r"from multiprocessing\.spawn import spawn_main; spawn_main\(.*\)")
# Variables that are read when a process starts, or by an import: another value needs another server.
_READ_EARLY = ("PYTHON", "LD_", "NPY_", "OMP_", "FEEDLINE_DEBUG_", "GLIBC_")
# Dask's nannies seed the hashes of their workers alike: those of one server are.
_READ_BY_PLAIN_WORKERS = ("PYTHONHASHSEED",)
_QUIET = "ignore"
_MOST_SERVERS = 6
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
# Descriptors below are those of programs; libraries and servers have theirs above.
_FIRST_OWN = 300
_TITLE_BYTES = 4000
_PR_SET_CHILD_SUBREAPER = 36
_HEADER = struct.Struct("<i")

_Popen = subprocess.Popen
_spawnv_passfds = multiprocessing.util.spawnv_passfds
_SIGNATURE = inspect.signature(_Popen._execute_child)
_libc = ctypes.CDLL(None)
_lock = threading.Lock()  # one program at a time is adopted
_servers: dict[str, Server | None] = {}  # by kind and variables; None where the first of a kind has started without
_own_server: Server | None = None  # of a program
_usual: dict[str, str] = {}  # variables that are read early, when this began
_is_on = True
_own: set[int] = set()  # children that this process has started


class Server:
    """The end of a connection to a server; kept by the process whose child the server is."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def start(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Have a program started. Returns its pid."""
        content = json.dumps(request).encode()
        socket.send_fds(self._connection, [_HEADER.pack(len(content))], descriptors)
        self._connection.sendall(content)
        answer = self._connection.recv(_HEADER.size)
        if len(answer) < _HEADER.size:
            raise OSError("the server of forked programs has ended")
        return int(_HEADER.unpack(answer)[0])

    def close(self) -> None:
        self._connection.close()


def install() -> None:
    """Start programs by servers from now on, where that is possible."""
    _usual.update(_early(os.environ))
    subprocess.Popen = Popen
    multiprocessing.util.spawnv_passfds = _spawn


def switch(on: bool) -> None:
    """Start all programs as ever, or no longer."""
    global _is_on
    _is_on = on


def close() -> None:
    """End the servers."""
    for server in _servers.values():
        if server is not None:
            server.close()
    _servers.clear()


def is_server(process: psutil.Process) -> bool:
    """Whether a process is a server of these."""
    try:
        return __file__ in process.cmdline()
    except psutil.Error:
        return False


def bury_strangers() -> None:
    """Wait for what has ended and was never started here: orphans that came to this process while it adopted a program,
    such as those of a feeder that was killed in that moment. Nobody else waits for them."""
    known = set(_own)  # before: what another thread starts meanwhile stays known
    children = psutil.Process().children()
    _own.difference_update(known - {child.pid for child in children})
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid not in _own and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


class Popen(_Popen):
    """A process, of a server where there is one for its program."""

    def _execute_child(self, *arguments: Any) -> None:
        call = _SIGNATURE.bind(self, *arguments).arguments
        pid = _start(call) if _is_on else None
        if pid is None:
            super()._execute_child(*arguments)
            _own.add(self.pid)
            return
        self.pid = pid
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(call[name] for name in pipes))


def _start(call: Mapping[str, Any]) -> int | None:
    """Start a program by a server. Returns None if it is not one of those."""
    environment = {os.fsdecode(key): os.fsdecode(value) for key, value in (call["env"] or os.environ).items()}
    program = _program(call)
    if program is None:
        return None
    descriptors = {0: call["p2cread"], 1: call["c2pwrite"], 2: call["errwrite"]}
    descriptors = {number: number if other == -1 else other for number, other in descriptors.items()}
    descriptors |= {number: number for number in call["pass_fds"]}
    folder = Path(os.fsdecode(call["cwd"] or ".")).absolute()
    return _request(program, environment, descriptors, folder=folder, session=call["start_new_session"])


def _spawn(path: bytes, args: Sequence[str | bytes], passfds: Sequence[int]) -> int:
    """In place of `multiprocessing.util.spawnv_passfds`: start a worker of Dask's, and others as ever."""
    pid = None
    *_, option, code, last = map(os.fsdecode, args)
    is_worker = (option, last) == ("-c", "--multiprocessing-fork") and _SPAWNED.fullmatch(code)
    if _is_on and is_worker and all(map(_is_open, range(3))):
        environment = {name: value for name, value in os.environ.items() if name not in _READ_BY_PLAIN_WORKERS}
        descriptors = {number: number for number in (0, 1, 2, *passfds)}
        program = "feedline dask", ["", option, code, last]
        pid = _request(program, environment, descriptors, folder=Path.cwd(), session=False, inherits=True)
    pid = _spawnv_passfds(path, args, passfds) if pid is None else pid
    _own.add(pid)
    return pid


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _request(
    program: tuple[str, list[str]],
    environment: dict[str, str],
    descriptors: Mapping[int, int],
    *,
    folder: Path,
    session: bool,
    inherits: bool = False,
) -> int | None:
    """Have a server start a program. Returns None if there is none for it.

    program: kind and words. descriptors: this process's, by the numbers that they get. inherits: signals that are
    ignored here are ignored by the program.
    """
    if max(descriptors) >= _FIRST_OWN or "LD_PRELOAD" in environment:
        return None  # what is preloaded checks a kernel that the program loads instead of the server's
    kind, words = program
    request = {
        "words": words,
        "environment": environment,
        "folder": str(folder),
        "descriptors": list(descriptors),
        "session": session,
        "ignored": [each for each in _ENDING if inherits and signal.getsignal(each) is signal.SIG_IGN],
        "cpus": list(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(limit) for limit in _LIMITS],
    }
    with _lock:
        server = _own_server or _server(kind, environment)
        if server is None or _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            return None
        try:
            pid = server.start(request, list(descriptors.values()))
            _own.add(pid)
            return pid
        except OSError:  # the server has ended: this program, and those after it, start as ever
            _forget(server)
            return None
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _forget(server: Server) -> None:
    global _own_server
    server.close()
    if server is _own_server:
        _own_server = None
    for key, other in _servers.items():
        if other is server:
            _servers[key] = None


def _program(call: Mapping[str, Any]) -> tuple[str, list[str]] | None:
    """The modules that a program needs, and its words after Python's own options; None for others."""
    args = call["args"]
    plain = (call["preexec_fn"], call["executable"] or args[0]) == (None, args[0]) and call["close_fds"]
    others = (call["shell"], call["gid"], call["gids"], call["uid"], call["umask"], call["process_group"])
    if (
        isinstance(args, (str, bytes, os.PathLike))
        or not plain
        or others
        not in (
            (False, None, None, None, -1, -1),
            (False, None, None, None, -1, None),
        )
    ):
        return None
    executable, *words = map(os.fsdecode, args)
    is_safe = words[:1] == ["-P"]
    words = words[is_safe:]
    if executable != sys.executable or not words:
        return None
    if words[:1] == ["-m"] and words[1].startswith("distributed.cli."):
        return "feedline dask", ["-P" if is_safe else "", *words]
    if words[:2] == ["-m", "feedline"]:
        return "feedline dask" if _has_cluster(words) else "feedline", ["-P" if is_safe else "", *words]
    script = Path(words[0]).resolve()
    is_begun = script.name == "train.py" and not script.is_relative_to(TESTS.parent)  # `feedline init` wrote it
    if script.suffix == ".py" and (script.is_relative_to(TESTS) or is_begun):
        return "training", ["", *words]
    return None


def _has_cluster(words: Sequence[str]) -> bool:
    """Whether a pipeline or an option of a command line names one."""
    pipelines = [Path(word) for word in words if word.endswith(".yaml")]
    texts = [*words, *(path.read_text(errors="replace") for path in pipelines if path.is_file())]
    return any(map(_CLUSTER.search, texts))


def _server(kind: str, environment: Mapping[str, str]) -> Server | None:
    """The server of a kind of programs; with variables that these tests do not start with, it is started for the second
    one: there may be no other.
    """
    early = _early(environment)
    key = json.dumps([kind, sorted(early.items())])
    if key not in _servers and early != _usual:
        _servers[key] = None
    elif _servers.get(key) is None and sum(each is not None for each in _servers.values()) < _MOST_SERVERS:
        ours, theirs = socket.socketpair()
        command = [sys.executable, __file__, kind, str(theirs.fileno()), "_" * _TITLE_BYTES]
        others = {name: value for name, value in environment.items() if not name.startswith(_READ_EARLY)}
        switched = {**others, **early, "OPENBLAS_NUM_THREADS": "1"}
        process = _Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=switched)
        _own.add(process.pid)
        process.returncode = 0  # it ends with this process, and nobody waits for it
        theirs.close()
        _servers[key] = Server(ours)
    return _servers.get(key)


def _early(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are read early, but for silenced warnings: a program silences its own."""
    found = {name: value for name, value in environment.items() if name.startswith(_READ_EARLY)}
    return {name: value for name, value in found.items() if (name, value) != ("PYTHONWARNINGS", _QUIET)}


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a program for each request. Returns None at the end of the connection, and in each program what it runs."""
    while header := _received(connection, _HEADER.size):
        content, descriptors = header
        [size] = _HEADER.unpack(content)
        content = b""
        while len(content) < size:
            content += connection.recv(size - len(content))
        gc.freeze()
        pid = _forked()
        if not pid:
            connection.close()
            request: dict[str, Any] = json.loads(content)
            return {**request, "received": descriptors}
        connection.sendall(_HEADER.pack(pid))
        for descriptor in descriptors:
            os.close(descriptor)
    return None


def _received(connection: socket.socket, size: int) -> tuple[bytes, list[int]] | None:
    content, descriptors, _, _ = socket.recv_fds(connection, size, 250)
    return (content, descriptors) if len(content) == size else None


def _forked() -> int:
    """Fork a process that is nobody's child here. Returns its pid, and 0 in it, once it has its parent."""
    waits, goes = os.pipe()
    reads, writes = os.pipe()
    between = _fork()
    if not between:
        pid = _fork()
        if pid:
            os.write(writes, _HEADER.pack(pid))
            os._exit(0)
        for descriptor in (goes, reads, writes):
            os.close(descriptor)
        os.read(waits, 1)  # the end of the pipe: of the process between, and of the server after it
        os.close(waits)
        return 0
    os.close(waits)
    os.close(writes)
    os.waitpid(between, 0)
    [pid] = _HEADER.unpack(os.read(reads, _HEADER.size))
    os.close(reads)
    os.close(goes)
    return int(pid)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those of libraries, which wait
        return os.fork()


def run(request: Mapping[str, Any]) -> None:
    """Become the program of a request, and run it to its end."""
    if request["session"]:
        os.setsid()
    _take(dict(zip(request["descriptors"], request["received"], strict=True)))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.sched_setaffinity(0, request["cpus"])
    for limit, values in zip(_LIMITS, request["limits"], strict=True):
        resource.setrlimit(limit, tuple(values))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    if os.environ.get("PYTHONWARNINGS") == _QUIET:
        warnings.simplefilter("ignore")
    tempfile.tempdir = None
    option, *words = request["words"]
    is_lone_feeder = words[:3] == ["-m", "feedline", "feed"] and "distributed" not in sys.modules
    if not is_lone_feeder and words[0] != "-c":
        _serve_feeders()
    _rename([sys.executable, *filter(None, [option]), *words])
    _open_streams()
    gc.enable()
    if threads := os.environ.get("POLARS_MAX_THREADS"):  # read again: Polars knows the server's
        sys.modules["polars"].Config.load(json.dumps({"environment": {"POLARS_MAX_THREADS": threads}, "direct": {}}))
    if "dask" in sys.modules:
        sys.modules["dask"].config.refresh()  # from its variables
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if words[0] == "-m":
        sys.path[:1] = [] if option else [str(Path.cwd())]
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.path[:1] = [""]
        sys.argv = ["-c", *words[2:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(words[1], vars(main))
    else:
        sys.path[:1] = [str(Path(words[0]).resolve().parent)]
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _take(descriptors: Mapping[int, int]) -> None:
    """Give received descriptors the numbers that they shall have, and close all others below those of libraries."""
    moved = {number: fcntl(other, F_DUPFD_CLOEXEC, _FIRST_OWN) for number, other in descriptors.items()}
    os.closerange(0, _FIRST_OWN)
    for number, other in moved.items():
        os.dup2(other, number, inheritable=True)
        os.close(other)


def _open_streams() -> None:
    """The standard streams as Python opens them at its start."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115 -- open until the end
    for name, number in (("stdout", 1), ("stderr", 2)):
        buffered = open(number, "wb", closefd=False)  # noqa: SIM115 -- open until the end
        lines = number == 2 or buffered.isatty() or bool(os.environ.get("PYTHONUNBUFFERED"))
        stream = io.TextIOWrapper(
            buffered, encoding="utf-8", errors="backslashreplace" if number == 2 else None, line_buffering=lines
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _serve_feeders() -> None:
    """Fork a server of this program's own, and start feeders by it."""
    global _own_server
    ours, theirs = socket.socketpair()
    if not _fork():
        ours.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _rename([sys.executable, __file__])
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        request = serve(theirs)
        if request is None:
            os._exit(0)
        run(request)
        raise SystemExit
    theirs.close()
    with ours:
        _own_server = Server(socket.socket(fileno=fcntl(ours, F_DUPFD_CLOEXEC, _FIRST_OWN)))
    install()


def _rename(words: Sequence[str]) -> None:
    """Show words as the command line in lists of processes.

    They are written over those that the server was started with. Where the last byte of these is not zero, the kernel
    shows one string.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    title = " ".join(words).encode()[: end - start - 2].ljust(end - start - 1, b"\0") + b"_"
    ctypes.memmove(start, title, len(title))


def _main() -> None:
    kind, descriptor = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(descriptor, _FIRST_OWN, inheritable=False)
    os.close(descriptor)
    low = []
    while (number := os.open(os.devnull, os.O_RDONLY)) < _FIRST_OWN:
        low.append(number)
    os.close(number)
    gc.disable()
    for module in _MODULES[kind]:
        importlib.import_module(module)
    for number in low:
        os.close(number)
    request = serve(socket.socket(fileno=_FIRST_OWN))
    if request is not None:
        run(request)


if __name__ == "__main__":
    sys.modules["zygote"] = sys.modules["__main__"]  # a program replaces `__main__`
    _main()
