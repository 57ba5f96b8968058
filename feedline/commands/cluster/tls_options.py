"""The options --tls-ca, --tls-cert and --tls-key of the commands of a cluster.

Runs in: the process of the command.
"""

from __future__ import annotations

from feedline.errors import SpecError
from feedline.spec.cluster_section import TlsSpec


def tls_files(ca: str | None, cert: str | None, key: str | None) -> TlsSpec | None:
    """The three files, by absolute paths; None if none is given. Raises SpecError if some are missing."""
    files = {"ca": ca, "cert": cert, "key": key}
    given = {name: value for name, value in files.items() if value is not None}
    if not given:
        return None
    if len(given) < len(files):
        missing = ", ".join(f"--tls-{name}" for name in files if name not in given)
        raise SpecError(f"tls:// needs three files: {missing} missing. Give --tls-ca, --tls-cert and --tls-key")
    return TlsSpec(**given)
