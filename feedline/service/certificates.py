"""The certificates of a process that speaks TLS: checked before they are used, and given to Dask.

Runs in: the feeder before it connects, and `feedline scheduler` and `feedline worker` before they listen. Python's
`ssl` says whether files are readable, of one authority, valid, and key and certificate a pair. Signature and purpose of
a certificate are verified by a handshake in memory between the two sides that it could be; dates are compared here, so
that a message can name them.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed import Security

from feedline.config.cluster_section import TlsSpec
from feedline.errors import ClusterError

# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name.
_NO_CHECK_TIME = 0x200000
# OpenSSL's verdicts on a chain.
NOT_YET_VALID, EXPIRED, UNSUITABLE_PURPOSE = 9, 10, 26
_ROUNDS = 10
_REMEDY = "Renew the certificates (feedline certs DIR --renew)"


def check_certificate_files(tls: TlsSpec, *, listens: bool, now_s: float | None = None) -> None:
    """Raise ClusterError, naming the file, where the files cannot authenticate this side.

    listens: whether this side is also connected to, as schedulers and workers are. now_s: seconds since 1970 (default:
    the present).
    """
    now_s = time.time() if now_s is None else now_s
    authority = _load_authority(tls.ca, now_s)
    _load_pair(tls)
    certificate = _verified(tls, authority)
    _check_dates(tls.cert, certificate, now_s)
    if listens:
        _verified(tls, authority, as_server=True)


def authority_context(ca: str, *, ignore_dates: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cafile=ca)
    if ignore_dates:
        context.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
    return context


def trusting_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def load_pair(context: ssl.SSLContext, tls: TlsSpec) -> None:
    """Load certificate and key; an encrypted key is refused, not asked for."""
    context.load_cert_chain(tls.cert, tls.key, password=lambda: "")


def certificate_date(text: str) -> str:
    """A date as certificates state it, as day and time: 2026-11-22 10:00 UTC."""
    return _date(ssl.cert_time_to_seconds(text))


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _load_authority(ca: str, now_s: float) -> ssl.SSLContext:
    _read("cluster.tls.ca", ca)
    try:
        context = authority_context(ca, ignore_dates=True)
    except ssl.SSLError as error:
        raise ClusterError(
            f"cluster.tls.ca {ca} holds no certificate: {_reason(error)}. Name the authority's PEM file (ca.pem)"
        ) from error
    authorities = context.get_ca_certs()
    if authorities and all(ssl.cert_time_to_seconds(str(each["notAfter"])) < now_s for each in authorities):
        _check_dates(ca, authorities[0], now_s, remedy="Make a new authority (feedline certs NEW_DIR)")
    return context


def _load_pair(tls: TlsSpec) -> None:
    _read("cluster.tls.cert", tls.cert)
    _read("cluster.tls.key", tls.key)
    try:
        load_pair(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), tls)
    except ssl.SSLError as error:
        text = Path(tls.key).read_text(encoding="utf-8", errors="replace")
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ClusterError(
                f"cluster.tls.key {tls.key} is not the key of {tls.cert}. Name the two files of one pair, such as "
                f"client.pem and client.key"
            ) from error
        if "ENCRYPTED" in text:
            raise ClusterError(
                f"cluster.tls.key {tls.key} is encrypted with a password: expected a plain key. Decrypt it, and let "
                f"only its owner read it"
            ) from error
        holds = "BEGIN CERTIFICATE" in Path(tls.cert).read_text(encoding="utf-8", errors="replace")
        key, file, what = ("key", tls.key, "private key") if holds else ("cert", tls.cert, "certificate")
        raise ClusterError(f"cluster.tls.{key} {file} holds no {what}: {_reason(error)}. Name a PEM file") from error


def _verified(tls: TlsSpec, authority: ssl.SSLContext, *, as_server: bool = False) -> Mapping[str, Any]:
    """The certificate, verified against the authority by the other side of a handshake. Dates are not checked."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), authority
    load_pair(server, tls)
    if not as_server:
        server.load_verify_locations(cafile=tls.ca)
        server.verify_mode = ssl.CERT_REQUIRED
        server.verify_flags |= ssl.VerifyFlags(_NO_CHECK_TIME)
        client = trusting_context()
        load_pair(client, tls)
    try:
        return _handshake(server, client, peer_of_server=not as_server)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == UNSUITABLE_PURPOSE:
            role = "a scheduler or worker" if as_server else "a client"
            raise ClusterError(
                f"{tls.cert} may not authenticate {role}: its extended key usage excludes it. Use the files made for "
                f"this role (feedline certs makes scheduler.pem, worker.pem, client.pem)"
            ) from error
        raise ClusterError(
            f"cluster.tls.cert {tls.cert} is not of the authority {tls.ca}: {error.verify_message}. Name files that "
            f"one feedline certs made"
        ) from error


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, *, peer_of_server: bool) -> Mapping[str, Any]:
    """Connect two contexts in memory; returns the certificate that one side has verified."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_side=False),
    ]
    for _ in range(_ROUNDS):
        for side in sides:
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    certificate = sides[0 if peer_of_server else 1].getpeercert()
    assert certificate is not None
    return certificate


def _check_dates(file: str, certificate: Mapping[str, Any], now_s: float, *, remedy: str = _REMEDY) -> None:
    first, last = str(certificate["notBefore"]), str(certificate["notAfter"])
    if now_s > ssl.cert_time_to_seconds(last):
        raise ClusterError(f"{file} expired on {certificate_date(last)}. {remedy}")
    if now_s < ssl.cert_time_to_seconds(first):
        raise ClusterError(
            f"{file} is not valid before {certificate_date(first)}: got {_date(now_s)}. Correct this host's clock, or "
            f"renew the certificates"
        )


def _read(key: str, file: str) -> None:
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ClusterError(
            f"{key} {file} cannot be read: {error.strerror}. Name a PEM file that this user may read; feedline certs "
            f"makes them"
        ) from error


def _reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason as words: NO_START_LINE becomes "no start line"."""
    return (error.reason or str(error)).replace("_", " ").lower()


def security_of(tls: TlsSpec | None, *, listens: bool) -> Security:
    """The security of the files of a `tls` section (None: unencrypted). listens: whether others connect to the process.
    Raises ClusterError for files that cannot be used."""
    if tls is None:
        return Security()
    check_certificate_files(tls, listens=listens)
    files = {
        f"tls_{role}_{part}": getattr(tls, part)
        for role in ("client", "worker", "scheduler")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=tls.ca, require_encryption=True, **files)
