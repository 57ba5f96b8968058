"""Make a certificate authority, and the certificates of a cluster's schedulers, workers and clients.

Runs in: the process of `feedline certs`. Needs the package `cryptography` (the extra `tls`).

Dask trusts whoever holds a certificate of the authority, whatever its name. So the authority serves one cluster only,
and certificates name their use (extended key usage): a client's cannot stand in for a scheduler or a worker, which
listen. Each role has a folder with all that it needs, to be copied or mounted whole; the authority's has the key that
signs, which no role needs. Keys are of the curve P-256.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feedline.dataclass import dataclass
from feedline.errors import SpecError

Role = Literal["scheduler", "worker", "client"]

ROLES: tuple[Role, ...] = ("scheduler", "worker", "client")
AUTHORITY = "authority"  # the folder of ca.key
_AUTHORITY_DAYS = 3650
_EARLIER = datetime.timedelta(minutes=5)  # clocks of other machines may be behind


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateReport:
    """What was written: the folder, the files in it, the hosts that the scheduler's certificate names, and the days
    (ISO) on which certificates and authority expire."""

    folder: str
    files: tuple[str, ...]
    hosts: tuple[str, ...]
    expires: str
    authority_expires: str


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certificates(
    folder: Path, *, hosts: Sequence[str], days: int, renew: bool, now: datetime.datetime
) -> CertificateReport:
    """Write `authority/ca.pem` and `authority/ca.key`, and `ROLE/ca.pem`, `ROLE/ROLE.pem` and `ROLE/ROLE.key` for each
    role; folders and keys can be read by their owner only.

    hosts: names and addresses at which the scheduler is reached (default: those of the scheduler's certificate that is
    renewed, or else this host's); loopback is always among them. renew: replace the certificates by new ones of the
    folder's authority, if there is one. Raises SpecError where a file exists and `renew` is not set, where the folder
    cannot be written, and where the authority cannot be used.
    """
    pairs = [f"{AUTHORITY}/ca", *(f"{role}/{role}" for role in ROLES)]
    present = [file for pair in pairs for file in (f"{pair}.key", f"{pair}.pem") if (folder / file).exists()]
    if present and not renew:
        raise SpecError(
            f"{folder / present[0]} exists: a new authority would shut out everybody who trusts the present one. Make "
            f"new certificates of the same authority with --renew, or name another folder"
        )
    content: dict[str, bytes] = {}
    if present:
        authority = _load_authority(folder / AUTHORITY, now + datetime.timedelta(days=days))
    else:
        authority = _new_authority(now, max(days, _AUTHORITY_DAYS))
        content[f"{AUTHORITY}/ca.key"] = _key_bytes(authority.key)
        content[f"{AUTHORITY}/ca.pem"] = _pem(authority.certificate)
    given = hosts or _hosts_of(folder / "scheduler" / "scheduler.pem") or [platform.node()]
    names_of_host = tuple(dict.fromkeys([*given, "localhost", "127.0.0.1"]))
    for role in ROLES:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(authority, role, key, names_of_host, now, days)
        content[f"{role}/ca.pem"] = _pem(authority.certificate)
        content[f"{role}/{role}.key"], content[f"{role}/{role}.pem"] = _key_bytes(key), _pem(certificate)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in (AUTHORITY, *ROLES):
            (folder / part).mkdir(mode=0o700, exist_ok=True)
        for name, data in content.items():
            _write(folder / name, data, 0o600 if name.endswith(".key") else 0o644)
    except OSError as error:
        raise SpecError(f"certificates cannot be written to {folder}: {error}. Name a writable folder") from error
    return CertificateReport(
        folder=str(folder),
        files=tuple(sorted(content)),
        hosts=names_of_host,
        expires=(now + datetime.timedelta(days=days)).date().isoformat(),
        authority_expires=authority.certificate.not_valid_after_utc.date().isoformat(),
    )


def _new_authority(now: datetime.datetime, days: int) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Feedline cluster {now:%Y-%m-%d %H:%M:%S}")])
    use = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(name, name, key, now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(use, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _Authority(certificate, key)


def _certificate(
    authority: _Authority,
    role: Role,
    key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    now: datetime.datetime,
    days: int,
) -> x509.Certificate:
    """A certificate of the authority. Schedulers and workers connect and listen, clients only connect."""
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if role == "client" else [ExtendedKeyUsageOID.SERVER_AUTH])]
    own = x509.DNSName(f"feedline-{role}")
    names = [_general_name(host) for host in hosts] if role == "scheduler" else []
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, own.value)])
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return (
        _builder(subject, authority.certificate.subject, key, now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([*names, own]), critical=False)
        .add_extension(issuer_key, critical=False)
        .sign(authority.key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    """A host as a certificate names it. Raises SpecError for what is neither a name nor an address."""
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    labels = host.removeprefix("*.").split(".")
    if not all(label and label.isascii() and label.replace("-", "").replace("_", "").isalnum() for label in labels):
        raise SpecError(
            f"--host is neither a name nor an address: got {host!r}. Name it without protocol and port, such as "
            f"scheduler.example.org or 10.0.0.7"
        )
    return x509.DNSName(host)


def _hosts_of(scheduler: Path) -> list[str]:
    """The hosts that a scheduler's certificate names; none where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, x509.ExtensionNotFound):
        certificate = x509.load_pem_x509_certificate(scheduler.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return [str(name.value) for name in names if name.value != "feedline-scheduler"]
    return []


def _load_authority(folder: Path, until: datetime.datetime) -> _Authority:
    """The authority of its folder. Raises SpecError where it cannot be read, or ends before `until`."""
    try:
        certificate = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise SpecError(
            f"the authority in {folder} cannot be used: {error}. Put its ca.pem and ca.key back, or make a new one in "
            f"another folder"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise SpecError(f"{folder / 'ca.key'} is not the key of {folder / 'ca.pem'}. Put the right one back")
    if certificate.not_valid_after_utc < until:
        raise SpecError(
            f"{folder / 'ca.pem'} expires on {certificate.not_valid_after_utc:%Y-%m-%d}, before the new certificates "
            f"would. Give fewer --days, or make a new authority in another folder"
        )
    return _Authority(certificate, key)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file that has its mode from the start, and replace an existing one at once."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask says
            file.write(data)
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
