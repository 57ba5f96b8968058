"""Dask's security of a process: its certificate, in whichever role it speaks.

Runs in: schedulers, workers, feeders, and commands that ask a scheduler.
"""

from __future__ import annotations

from distributed import Security

from feedline.service.tls.certificate_files import check_certificate_files
from feedline.spec.cluster_section import TlsSpec


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
