"""A trainer and a waiting feeder find each other through a private socket, one trainer at a time."""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pipelines import PATIENCE_S, Place, eventually, furnished
from processes import connections

from feedline.config import load_spec
from feedline.errors import FeederError
from feedline.loader.ring import rendezvous
from feedline.loader.ring.channel import ChannelClosedError
from feedline.loader.ring.rendezvous import (
    Listener,
    await_successor,
    connect,
    job_fingerprint,
    runtime_dir,
    socket_path,
    socket_paths,
)
from feedline.loader.wire.ring_messages import Diagnose


@pytest.fixture
def place(tmp_path: Path, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        yield place


def meet(listener: Listener, path: Path):
    """Both ends of one meeting."""
    met = []
    knocking = threading.Thread(target=lambda: met.append(connect(path)))
    knocking.start()
    theirs = listener.accept()
    knocking.join()
    return met[0], theirs


def test_the_folder_is_private_and_made_where_it_is_missing(place: Place):
    folder = runtime_dir()
    assert folder == place.sockets
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert runtime_dir() == folder


def test_without_a_runtime_directory_the_temporary_one_is_used(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    folder = runtime_dir()
    assert folder == place.temporary / f"feedline-{os.getuid()}"
    folder.rmdir()


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file", "below a file", "too long", "relative"])
def test_an_unusable_runtime_directory_is_skipped_by_both_sides(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Under Slurm it often is: the variable comes from the login host."""
    place.sockets.parent.mkdir()
    if kind == "open to others":
        place.sockets.mkdir(mode=0o755)
    elif kind == "a link":
        (place.folder / "elsewhere").mkdir(mode=0o700)
        place.sockets.symlink_to(place.folder / "elsewhere")
    elif kind == "a file":
        place.sockets.touch(mode=0o600)
    elif kind == "below a file":
        (place.folder / "f").touch()
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.folder / "f" / "r"))
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", "r" if kind == "relative" else str(place.folder / ("x" * 300)))
    path = socket_path("0" * 64, 0, 1)
    fallback = place.temporary / f"feedline-{os.getuid()}"
    assert path.parent == fallback
    paths = socket_paths("0" * 64, 0, 1)
    assert path in paths
    assert kind == "relative" or f"sockets are in {fallback}" in caplog.text
    assert not any(map(connect, paths))
    listener = Listener(path)
    listener.open()
    met: list = []
    knocking = threading.Thread(target=lambda: met.extend(map(connect, paths)))
    knocking.start()
    theirs = listener.accept()
    knocking.join()
    assert [each is not None for each in met] == [False] * (len(met) - 1) + [True]
    for each in (*filter(None, met), theirs, listener):
        each.close()
    fallback.rmdir()


def test_without_any_folder_a_listening_feeder_reports_the_reasons(place: Place):
    (place.folder / "r").touch()
    (place.temporary / f"feedline-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(
        FeederError, match=r"no folder for sockets is usable: got .*r/feedline cannot be created .*; .*not private"
    ):
        runtime_dir()
    (place.temporary / f"feedline-{os.getuid()}").rmdir()


def test_a_path_longer_than_a_socket_address_works(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.folder / ("x" * 120)))
    path = socket_path("0" * 64, 0, 1)
    assert len(str(path)) > 107
    listener = Listener(path)
    listener.open()
    trainer, feeder = meet(listener, path)
    assert trainer is not None
    assert feeder is not None
    for end in (trainer, feeder, listener):
        end.close()
    assert not path.exists()


def test_a_jobs_name_depends_on_what_it_delivers(place: Place):
    job = job_fingerprint(load_spec(place.write()))
    for same in ({"epochs": 7}, {"cluster": {"workers": 2}}, {"memory": "1GiB"}, {"feeder": "rank"}, {"cache": "x"}):
        assert job_fingerprint(load_spec(place.write(**same))) == job
    for other in ({"batch": {"size": 128}}, {"shuffle": "off"}, {"name": "x"}, {"work_dir": "x"}, {"lanes": 2}):
        assert job_fingerprint(load_spec(place.write(**other))) != job
    assert socket_path(job, 0, 2) != socket_path(job, 1, 2) != socket_path(job, 1, 3)


def test_column_groups_of_a_job_have_names_of_their_own_on_a_host(place: Place):
    spec = load_spec(place.write())
    groups = [(), ("dense_0",), ("dense_0", "id_0"), ("dense_0id_0",)]
    assert len({job_fingerprint(spec, group) for group in groups}) == len(groups)
    assert job_fingerprint(spec, ()) == job_fingerprint(spec)


def test_a_trainer_and_a_feeder_meet(place: Place):
    path = socket_path("0" * 64, 0, 1)
    assert connect(path) is None, "nobody is there"
    listener = Listener(path)
    assert connect(path) is None, "it does not listen yet"
    listener.open()
    ours, theirs = meet(listener, path)
    assert not path.exists(), "it serves one trainer, and no second one"
    assert connect(path) is None
    assert theirs.peer_pid() == ours.peer_pid() == os.getpid()
    ours.send_message(Diagnose())
    assert theirs.receive()[1] == Diagnose()
    ours.close()
    with pytest.raises(ChannelClosedError):
        theirs.receive()
    theirs.close()
    listener.open()
    ours, theirs = meet(listener, path)
    for each in (ours, theirs, listener):
        each.close()


def test_a_trainer_with_many_open_files_meets_its_feeder(place: Place):
    """`select` refuses descriptors from 1,024 on."""
    path = socket_path("j" * 64, 0, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with closing(Listener(path)) as listener, ExitStack() as stack:
        listener.open()
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with ThreadPoolExecutor(1) as pool:
            trainer = pool.submit(connect, path)
            theirs = listener.accept()
            ours = trainer.result(PATIENCE_S)
        for channel in (ours, theirs):
            assert channel is not None
            assert channel.fileno() >= 1024
            channel.close()


def test_of_two_trainers_that_connect_at_once_one_is_served(place: Place):
    path = socket_path("0" * 64, 0, 1)
    listener = Listener(path)
    listener.open()
    met: list = []
    knocking = [threading.Thread(target=lambda: met.append(connect(path))) for _ in range(2)]
    for thread in knocking:
        thread.start()
    assert eventually(lambda: connections(path.name) == 3)
    theirs = listener.accept()
    for thread in knocking:
        thread.join()
    assert sorted(each is None for each in met) == [False, True]
    for each in (*filter(None, met), theirs, listener):
        each.close()


def test_a_feeder_that_does_not_greet_is_skipped(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "_GREETING_S", 0.1)
    path = socket_path("0" * 64, 0, 1)
    listener = Listener(path)
    listener.open()
    assert connect(path) is None
    listener.close()


def test_a_full_backlog_is_left_after_the_deadline(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Of a suspended `feedline run`: nobody accepts, and `connect` would wait for ever."""
    monkeypatch.setattr(rendezvous, "_GREETING_S", 0.1)
    monkeypatch.setattr(rendezvous, "_BACKLOG", 0)
    path = socket_path("0" * 64, 0, 1)
    listener = Listener(path)
    listener.open()
    with ThreadPoolExecutor(1) as pool:
        assert [pool.submit(connect, path).result(PATIENCE_S) for _ in range(2)] == [None, None]
    assert f"(process {os.getpid()}) did not greet a trainer within" in caplog.text
    assert f"(process {os.getpid()}) did not accept connections within" in caplog.text
    listener.close()


def test_a_name_has_one_owner(place: Place):
    path = socket_path("0" * 64, 0, 1)
    listener = Listener(path)
    with pytest.raises(FeederError, match=f"already served: .* process {os.getpid()}"):
        Listener(path)
    listener.close()
    Listener(path).close()


def test_files_of_a_dead_owner_are_removed(place: Place):
    path = socket_path("0" * 64, 0, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        folder = os.open(path.parent, os.O_PATH)  # the whole path may be longer than an address
        dead.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)
    path.with_suffix(".lock").write_text("1")
    assert connect(path) is None
    listener = Listener(path)
    listener.open()
    ours, theirs = meet(listener, path)
    for each in (ours, theirs, listener):
        each.close()


def test_a_signal_while_a_socket_is_opened_leaves_no_file(place: Place, monkeypatch: pytest.MonkeyPatch):
    path = socket_path("0" * 64, 0, 1)

    def end(_socket: socket.socket, _backlog: int) -> None:
        assert path.exists()
        raise SystemExit

    monkeypatch.setattr(socket.socket, "listen", end)
    with pytest.raises(SystemExit), closing(Listener(path)) as listener:
        listener.open()
    assert not place.left()


def test_a_lock_file_removed_by_its_owner_is_created_again(place: Place):
    """Opened before, locked after its removal: that lock would protect nothing."""
    path = socket_path("0" * 64, 0, 1)
    for _ in range(20):
        listener = Listener(path)
        claimed: list = []

        def claim(claimed: list = claimed) -> None:
            while not claimed:
                try:
                    claimed.append(Listener(path))
                except FeederError:
                    continue

        thread = threading.Thread(target=claim)
        thread.start()
        listener.close()
        thread.join()
        with pytest.raises(FeederError, match="already served"):
            Listener(path)
        claimed[0].close()


def test_waiting_for_a_successor_ends_with_it_or_at_the_deadline(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rendezvous, "_PAUSE_S", 0.01)
    path = place.folder / "s"
    answers = iter([False, False, True])
    await_successor(path, unless=lambda: next(answers))
    assert next(answers, None) is None
    path.touch()
    await_successor(path, unless=lambda: pytest.fail("it is there"))
    path.unlink()
    monkeypatch.setattr(rendezvous, "_SUCCESSOR_S", 0.05)
    await_successor(path, unless=lambda: False)
