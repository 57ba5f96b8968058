"""Find out why a scheduler cannot be connected to: nothing listens, it speaks no TLS, or one side refuses the other.

Runs in: the feeder, after a connection has failed: Dask tells little, and tries until its time is up. One more
connection is made by hand, whose errors OpenSSL names.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from typing import Any

from feedline.config.cluster_section import TlsSpec, scheduler_address
from feedline.errors import ClusterError
from feedline.service.certificates import (
    EXPIRED,
    NOT_YET_VALID,
    UNSUITABLE_PURPOSE,
    authority_context,
    certificate_date,
    load_pair,
    trusting_context,
)

_WAIT_S = 3.0
_GREETING_S = 1.0  # an unencrypted scheduler greets first, one that speaks TLS waits for its client
# The alerts with which the other side refuses our certificate.
_ALERTS = {
    "UNKNOWN_CA": "it is of another authority than the scheduler's (its --tls-ca-file)",
    "CERTIFICATE_EXPIRED": "it has expired by the scheduler's clock",
    "CERTIFICATE_REQUIRED": "it was not sent",
    "UNSUPPORTED_CERTIFICATE": "it is made for another role",
    "BAD_CERTIFICATE": "it is invalid to the scheduler, whose clock may be wrong",
}


def explain_refusal(address: str, tls: TlsSpec | None) -> str | None:
    """What keeps a connection to the scheduler from being made, with the remedy; None where that is not TLS."""
    _, host, port = scheduler_address(address)
    try:
        with socket.create_connection((host, port), timeout=_WAIT_S) as connection:
            return _explain_plain(connection, address) if tls is None else _explain_tls(connection, address, tls)
    except OSError:
        return None


def check_scheduler_host(address: str, certificate: Mapping[str, Any]) -> None:
    """Raise ClusterError where a scheduler's certificate names hosts, and not that of the address.

    Dask does not compare them. A certificate that names none is accepted.
    """
    _, host, _ = scheduler_address(address)
    names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    if names and not any(_is_same_host(host, name) for name in names):
        shown = ", ".join(name for name in names if name != "feedline-scheduler")
        raise ClusterError(
            f"the certificate of the scheduler at {address} is of another host: it names {shown}. Connect to one of "
            f"them, or renew it for this one (feedline certs DIR --renew --host {host})"
        )


def _is_same_host(host: str, name: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    host, name = host.lower().rstrip("."), name.lower().rstrip(".")
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])


def _explain_plain(connection: socket.socket, address: str) -> str | None:
    """Whether the scheduler behind a tcp:// address speaks TLS.

    One that does not would take TLS for the length of a message, and log that it has no 64 PiB for it.
    """
    connection.settimeout(_GREETING_S)
    with contextlib.suppress(TimeoutError):
        connection.recv(1 << 16)  # whole: what is unread resets the connection
        return None
    connection.settimeout(_WAIT_S)
    with trusting_context().wrap_socket(connection):
        return (
            f"the scheduler at {address} speaks TLS: expected an unencrypted one. Write "
            f"{address.replace('tcp:', 'tls:')} and `tls: {{ca: …, cert: …, key: …}}`, or with a command --tls-ca, "
            "--tls-cert and --tls-key"
        )


def _explain_tls(connection: socket.socket, address: str, tls: TlsSpec) -> str | None:
    context = authority_context(tls.ca)
    load_pair(context, tls)
    try:
        with context.wrap_socket(connection) as secure:
            secure.recv(1)  # Dask greets first; with TLS 1.3 a refusal arrives in its place
    except ssl.SSLCertVerificationError as error:
        return _explain_certificate(address, tls, error)
    except ssl.SSLError as error:
        reason = error.reason or ""
        if "ALERT" not in reason:
            message = f"the scheduler at {address} speaks no TLS ({reason.replace('_', ' ').lower()})"
            return f"{message}. Start it with certificates (--tls-ca-file, --tls-cert, --tls-key)"
        why = next((why for alert, why in _ALERTS.items() if alert in reason), reason.replace("_", " ").lower())
        return f"the scheduler at {address} refuses the certificate {tls.cert}: {why}. Use files of one feedline certs"
    return None


def _explain_certificate(address: str, tls: TlsSpec, error: ssl.SSLCertVerificationError) -> str:
    subject = f"the certificate of the scheduler at {address}"
    renew = "Renew it (feedline certs DIR --renew), and restart the scheduler with it"
    if error.verify_code in (EXPIRED, NOT_YET_VALID):
        dates = _dates_of(address, tls)
        if error.verify_code == EXPIRED:
            return f"{subject} expired{f' on {dates[1]}' if dates else ''}. {renew}"
        first = dates[0] if dates else "a later day"
        return f"{subject} is not valid before {first}. Correct this host's clock, or renew it"
    if error.verify_code == UNSUITABLE_PURPOSE:
        return f"{subject} is made for a client. Start the scheduler with scheduler.pem and scheduler.key"
    return (
        f"{subject} is not of the authority {tls.ca}: {error.verify_message}. Name the authority that made it, or "
        f"start the scheduler with files of the same feedline certs"
    )


def _dates_of(address: str, tls: TlsSpec) -> tuple[str, str] | None:
    """The first and the last day of the scheduler's certificate, by one more connection."""
    _, host, port = scheduler_address(address)
    context = authority_context(tls.ca, ignore_dates=True)
    load_pair(context, tls)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, port), timeout=_WAIT_S) as connection,
        context.wrap_socket(connection) as secure,
    ):
        certificate: Mapping[str, Any] = secure.getpeercert() or {}
        return certificate_date(str(certificate["notBefore"])), certificate_date(str(certificate["notAfter"]))
    return None
