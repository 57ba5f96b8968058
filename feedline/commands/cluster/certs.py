"""Run `feedline certs`: make the certificates of a cluster.

Runs in: the process of the command.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from feedline.commands.pipeline_arguments import AsJson
from feedline.extras import extra


def certs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the files.")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="A name or address of the scheduler; repeat it for each (default: this host's name)."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Days until the certificates expire.")] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Make new certificates of the authority in DIR, if there is one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a certificate authority, and certificates for a cluster's scheduler, workers and clients."""
    with extra("tls", "feedline certs"):
        from feedline.service.certificate_authority import make_certificates  # noqa: PLC0415 -- an extra
    now = datetime.datetime.now(tz=datetime.UTC)
    report = make_certificates(directory, hosts=host or [], days=days, renew=renew, now=now)
    if as_json:
        print(json.dumps(asdict(report)))
        return
    folder = report.folder
    print(f"{folder}: {', '.join(report.files)}")
    print(f"valid until {report.expires} (the authority until {report.authority_expires})")
    print(f"scheduler: {', '.join(report.hosts)}")
    print(f"in pipeline.yaml: cluster: {{scheduler: tls://{report.hosts[0]}:8786, tls: ", end="")
    files = f"ca: {folder}/client/ca.pem, cert: {folder}/client/client.pem, key: {folder}/client/client.key"
    print(f"{{{files}}}}}")
    print(f"give each role its own folder; keep {folder}/authority where no cluster can read it: its key makes members")
