"""Certificates that openssl accepts for the role they are made for, and no other; keys that only their owner reads."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from pathlib import Path

import pytest
from processes import ended_here, finished

from feedline.errors import SpecError
from feedline.service.certificate_authority import ROLES, make_certificates

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)


def make(folder: Path, *hosts: str, days: int = 30, renew: bool = False, now: datetime.datetime = NOW):
    return make_certificates(folder, hosts=hosts, days=days, renew=renew, now=now)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def openssl(*words: object) -> str:
    done = finished("openssl", *words)
    return done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl to read certificates")
def test_openssl_verifies_each_role_for_its_purpose(tmp_path: Path):
    folder = tmp_path / "certs"
    report = make(folder, "scheduler.example.org", "10.0.0.7", "*.dask.svc")
    assert report.hosts == ("scheduler.example.org", "10.0.0.7", "*.dask.svc", "localhost", "127.0.0.1")
    assert (report.expires, report.authority_expires) == ("2026-12-22", "2036-11-19")
    at = ("-attime", int(NOW.timestamp()) + 86_400)
    for role in ROLES:
        for purpose, suits in (("sslclient", True), ("sslserver", role != "client")):
            answer = openssl("verify", *at, "-purpose", purpose, "-CAfile", folder / role / "ca.pem",
                             folder / role / f"{role}.pem")  # fmt: skip
            assert answer.endswith(": OK\n") == suits, (role, purpose, answer)
    late = openssl("verify", "-attime", int(NOW.timestamp()) + 31 * 86_400, "-CAfile", folder / "client" / "ca.pem",
                   folder / "client" / "client.pem")  # fmt: skip
    assert "certificate has expired" in late
    names = openssl("x509", "-in", folder / "scheduler" / "scheduler.pem", "-noout", "-ext", "subjectAltName")
    assert "DNS:scheduler.example.org, IP Address:10.0.0.7, DNS:*.dask.svc" in names


def test_keys_are_their_owners_and_nothing_is_overwritten(tmp_path: Path):
    folder = tmp_path / "certs"
    make(folder, "one")
    modes = {str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in files_in(folder)}
    keys = {f"{role}/{role}.key" for role in ROLES} | {"authority/ca.key"}
    assert modes == {name: 0o600 if name in keys else 0o644 for name in modes}
    assert set(modes) == keys | {key.replace(".key", ".pem") for key in keys} | {f"{role}/ca.pem" for role in ROLES}
    assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == {0o700}
    before = {path: path.read_bytes() for path in files_in(folder)}
    with pytest.raises(SpecError, match=r"ca\.key exists: .*--renew"):
        make(folder, "one")
    assert {path: path.read_bytes() for path in files_in(folder)} == before

    report = make(folder, renew=True)
    assert report.hosts == ("one", "localhost", "127.0.0.1"), "those of before"
    after = {path: path.read_bytes() for path in files_in(folder)}
    assert {path.name for path in after if after[path] == before[path]} == {"ca.key", "ca.pem"}
    shutil.rmtree(folder / "authority")  # kept elsewhere
    with pytest.raises(
        SpecError, match=r"the authority in .*authority cannot be used: .*Put its ca.pem and ca.key back"
    ):
        make(folder, renew=True)


def test_an_authority_that_cannot_sign_is_refused(tmp_path: Path):
    folder, other = tmp_path / "certs", tmp_path / "other"
    make(folder)
    make(other)
    with pytest.raises(SpecError, match=r"ca\.pem expires on 2036-11-19, before"):
        make(folder, days=3650, renew=True, now=NOW + datetime.timedelta(days=30))
    shutil.copy(other / "authority" / "ca.key", folder / "authority" / "ca.key")
    with pytest.raises(SpecError, match=r"ca\.key is not the key of .*ca\.pem"):
        make(folder, renew=True)
    (folder / "authority" / "ca.pem").unlink()
    with pytest.raises(SpecError, match=r"cannot be used: .*No such file"):
        make(folder, renew=True)


@pytest.mark.parametrize("host", ["tls://scheduler:8786", "scheduler:8786", "a b", "", "a..b"])
def test_what_is_no_host_is_refused(tmp_path: Path, host: str):
    with pytest.raises(SpecError, match="--host is neither a name nor an address"):
        make(tmp_path / "certs", host)
    assert not (tmp_path / "certs").exists()


def test_the_command_says_what_it_made(tmp_path: Path):
    done = ended_here("certs", tmp_path / "certs", "--host", "scheduler", "--json")
    facts = json.loads(done.stdout)
    assert facts["files"] == [str(path.relative_to(tmp_path / "certs")) for path in files_in(tmp_path / "certs")]
    again = ended_here("certs", tmp_path / "certs")
    assert (again.returncode, again.stdout) == (2, "")
    assert "tls://scheduler:8786" in ended_here("certs", tmp_path / "certs", "--renew").stdout


def test_without_cryptography_the_command_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "feedline.service.certificate_authority")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = ended_here("certs", tmp_path / "certs")
    assert done.returncode == 2
    assert "pip install 'feedline[tls]'" in done.stderr
    assert not (tmp_path / "certs").exists()
