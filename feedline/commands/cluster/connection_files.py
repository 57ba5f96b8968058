"""The options by which a command connects to a scheduler: its address, and the files of a TLS connection.

Runs in: the process of the command. The rules are those of `cluster` in pipeline.yaml.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from feedline.config.cluster_section import ClusterSpec, TlsSpec
from feedline.errors import SpecError

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="The scheduler: tls://host:port or tcp://host:port.")]
TlsCa = Annotated[str | None, typer.Option(metavar="FILE", help="Certificate of the authority (PEM).")]
TlsCert = Annotated[str | None, typer.Option(metavar="FILE", help="Certificate of this side (PEM).")]
TlsKey = Annotated[str | None, typer.Option(metavar="FILE", help="Private key of this side (PEM).")]
# What the rules of pipeline.yaml advise, as options.
_OPTIONS = {
    "`tls: {ca, cert, key}`": "--tls-ca, --tls-cert and --tls-key",
    "`insecure: true`": "--insecure",
}
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow tcp:// to another machine.")]


def connection_files(
    address: str, ca: str | None, cert: str | None, key: str | None, *, insecure: bool
) -> TlsSpec | None:
    """The files of the connection, None for tcp://. Raises SpecError."""
    files = {"ca": ca, "cert": cert, "key": key}
    given = {name: value for name, value in files.items() if value is not None}
    if given and len(given) < len(files):
        missing = ", ".join(f"--tls-{name}" for name in files if name not in given)
        raise SpecError(f"tls:// needs three files: {missing} missing. Give --tls-ca, --tls-cert and --tls-key")
    if address.startswith("tls://") and not given:
        raise SpecError(
            f"tls:// needs certificates: got {address!r} without any. Give --tls-ca, --tls-cert and --tls-key"
        )
    if address.startswith("tls://") and insecure:
        raise SpecError("--insecure contradicts tls://, which is always authenticated. Leave it out")
    if address.startswith("tcp://") and given:
        raise SpecError(
            f"--tls-ca, --tls-cert and --tls-key need tls://: got {address!r}. Write tls://, or leave them out"
        )
    try:
        return ClusterSpec.model_validate({"scheduler": address, "tls": given or None, "insecure": insecure}).tls
    except ValidationError as error:
        details = error.errors()[0]
        message = str(details.get("ctx", {}).get("message") or details["msg"])
        for key, option in _OPTIONS.items():
            message = message.replace(key, option)
        raise SpecError(f"the scheduler's address is refused: got {address!r}: {message}") from None
