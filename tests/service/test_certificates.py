"""Files of `cluster.tls` that cannot work are named before a connection is made; what a refused one means is told."""

from __future__ import annotations

import contextlib
import datetime
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from feedline.config.cluster_section import TlsSpec
from feedline.errors import ClusterError
from feedline.service.certificate_authority import make_certificates
from feedline.service.certificates import check_certificate_files, security_of
from feedline.service.cluster.scheduler_connection import check_scheduler
from feedline.service.refused_connection import check_scheduler_host, explain_refusal

NOW = datetime.datetime.now(tz=datetime.UTC)
DAY = datetime.timedelta(days=1)
NOW_S = NOW.timestamp()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that are good, of another authority, expired, and not yet valid (all four of one kind)."""
    base = tmp_path_factory.mktemp("tls")
    for name, now in (("good", NOW), ("other", NOW), ("old", NOW - 30 * DAY), ("early", NOW + 30 * DAY)):
        make_certificates(base / name, hosts=["scheduler.example.org"], days=10, renew=False, now=now)
    return base


def files(folder: Path, role: str = "client", **changes: Path) -> TlsSpec:
    own = folder / role
    named = {"ca": own / "ca.pem", "cert": own / f"{role}.pem", "key": own / f"{role}.key", **changes}
    return TlsSpec.model_construct(**{key: str(path) for key, path in named.items()})


def refusal(tls: TlsSpec, *, listens: bool = False, now_s: float = NOW_S) -> str:
    with pytest.raises(ClusterError) as refused:
        check_certificate_files(tls, listens=listens, now_s=now_s)
    return str(refused.value)


def test_good_files_pass(folders: Path):
    check_certificate_files(files(folders / "good"), listens=False, now_s=NOW_S)
    for role in ("scheduler", "worker"):
        check_certificate_files(files(folders / "good", role), listens=True, now_s=NOW_S)


def test_wrong_dates_are_told_with_the_file_and_the_remedy(folders: Path):
    day = f"{NOW - 20 * DAY:%Y-%m-%d %H:%M} UTC"
    assert refusal(files(folders / "old")).startswith(f"{folders / 'old/client/client.pem'} expired on {day}. Renew")
    early = refusal(files(folders / "early"), now_s=(NOW + 30 * DAY).timestamp() - 3600)
    assert re.search(
        r"early/client/client\.pem is not valid before 20.* UTC: got 20.* UTC\. Correct this host's clock", early
    )
    years = refusal(files(folders / "good"), now_s=(NOW + 4000 * DAY).timestamp())
    assert re.search(r"good/client/ca\.pem expired on .*Make a new authority", years)


def test_files_that_do_not_belong_together_are_told(folders: Path):
    good, other = folders / "good", folders / "other"
    assert "client.pem is not of the authority" in refusal(files(good, ca=other / "client" / "ca.pem"))
    assert "other/client/client.key is not the key of" in refusal(files(good, key=other / "client" / "client.key"))
    assert "may not authenticate a scheduler or worker" in refusal(files(good), listens=True)


def test_files_that_cannot_be_read_are_told(folders: Path, tmp_path: Path):
    good = folders / "good"
    assert "cluster.tls.ca /nowhere.pem cannot be read: No such file" in refusal(files(good, ca=Path("/nowhere.pem")))
    assert "cluster.tls.cert" in refusal(files(good, cert=tmp_path))
    (empty := tmp_path / "empty.pem").write_text("")
    for key, what in (("ca", "certificate"), ("cert", "certificate"), ("key", "private key")):
        assert f"cluster.tls.{key} {empty} holds no {what}" in refusal(files(good, **{key: empty}))
    key = serialization.load_pem_private_key((good / "client" / "client.key").read_bytes(), password=None)
    secret = serialization.BestAvailableEncryption(b"secret")
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    (tmp_path / "locked.key").write_bytes(locked)
    assert "is encrypted with a password" in refusal(files(good, key=tmp_path / "locked.key"))


def test_files_of_a_role_serve_every_role_and_are_checked(folders: Path):
    plain = security_of(None, listens=True).get_connection_args("client")
    assert (plain["ssl_context"], plain["require_encryption"]) == (None, False)
    tls = files(folders / "good", "worker")
    security = security_of(tls, listens=True)
    for role in ("client", "worker", "scheduler"):
        arguments = security.get_connection_args(role)
        assert (arguments["require_encryption"], arguments["ssl_context"] is not None) == (True, True)
        assert security.get_tls_config_for_role(role)["cert"] == tls.cert
    with pytest.raises(ClusterError, match="nothing-there"):
        security_of(files(folders / "good", "worker", key=Path("/nothing-there")), listens=True)


# -- connections ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def listening(tls: TlsSpec | None) -> Iterator[str]:
    """A server that greets like a scheduler, with mutual TLS or without any; its address with tls://."""
    context = None
    if tls is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca)
        context.load_cert_chain(tls.cert, tls.key)
        context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection = server.accept()[0]
                except OSError:
                    return
                with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                    stack.enter_context(connection)
                    connection.settimeout(5)
                    if context is not None:
                        connection = stack.enter_context(context.wrap_socket(connection, server_side=True))
                    connection.sendall(b"greeting")
                    connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tls://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("scheduler", "client", "expected"),
    [
        ("good", "good", None),
        ("other", "good", "certificate of the scheduler at .* is not of the authority .*good/client/ca.pem"),
        ("old", "old", r"certificate of the scheduler at .* expired on 20.* UTC\. Renew it"),
        ("early", "early", r"certificate of the scheduler at .* is not valid before 20.* UTC\. Correct"),
    ],
)
def test_a_scheduler_that_is_not_trusted_is_told_apart(
    folders: Path, scheduler: str, client: str, expected: str | None
):
    with listening(files(folders / scheduler, "scheduler")) as address:
        told = explain_refusal(address, files(folders / client))
    assert told is None if expected is None else re.search(expected, told or "")


def test_a_certificate_that_the_scheduler_refuses_is_told(folders: Path, tmp_path: Path):
    both = tmp_path / "both.pem"
    both.write_bytes(b"".join((folders / name / "client" / "ca.pem").read_bytes() for name in ("good", "other")))
    with listening(files(folders / "good", "scheduler")) as address:
        told = explain_refusal(address, files(folders / "other", ca=both)) or ""
    assert re.search(r"refuses the certificate .*other/client/client\.pem: it is of another authority", told)
    with listening(files(folders / "good", "client")) as address:
        told = explain_refusal(address, files(folders / "good")) or ""
    assert "is made for a client" in told


def test_encryption_on_one_side_only_is_told(folders: Path):
    with listening(None) as address:
        assert "speaks no TLS" in (explain_refusal(address, files(folders / "good")) or "")
    with listening(files(folders / "good", "scheduler")) as address:
        told = explain_refusal(address.replace("tls:", "tcp:"), None) or ""
    assert re.search(r"at tcp://127.0.0.1:\d+ speaks TLS: .*Write tls://127", told)
    assert explain_refusal(address, files(folders / "good")) is None, "nothing listens there any more"


def test_an_unencrypted_scheduler_is_not_asked_for_tls():
    """It would read that as a message of petabytes."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as other:
        told = other.submit(explain_refusal, f"tcp://127.0.0.1:{server.getsockname()[1]}", None)
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"greeting")
            assert not connection.recv(100)
        assert told.result() is None


@pytest.mark.parametrize(
    ("host", "names", "fits"),
    [
        ("scheduler.example.org", [("DNS", "scheduler.example.org")], True),
        ("SCHEDULER.example.org", [("DNS", "*.example.org")], True),
        ("a.b.example.org", [("DNS", "*.example.org")], False),
        ("10.0.0.7", [("DNS", "scheduler"), ("IP Address", "10.0.0.7")], True),
        ("[::1]", [("IP Address", "0:0:0:0:0:0:0:1")], True),
        ("10.0.0.8", [("IP Address", "10.0.0.7")], False),
        ("anything", [], True),
    ],
)
def test_a_scheduler_of_another_host_is_refused(host: str, names: list[tuple[str, str]], fits: bool):
    address = f"tls://{host}:8786"
    expected = contextlib.nullcontext() if fits else pytest.raises(ClusterError, match=f"--host {re.escape(host)}")
    with expected:
        check_scheduler_host(address, {"subjectAltName": names})


def test_a_scheduler_with_another_version_of_dask_is_refused():
    comm = SimpleNamespace(comm=SimpleNamespace(extra_info={}))
    client: Any = SimpleNamespace(scheduler_comm=comm, scheduler=SimpleNamespace(versions=None))
    client.sync = lambda *_, **__: {"packages": {"distributed": "2020.1.0"}}
    with pytest.raises(ClusterError, match=r"tcp://x:1 has another distributed: got 2020\.1\.0, expected 20"):
        check_scheduler(client, "tcp://x:1")
