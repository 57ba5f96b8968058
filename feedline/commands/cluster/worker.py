"""Run `feedline worker`: compute blocks for the jobs of a scheduler.

Runs in: the worker's process. What its libraries read when they load (allocators, sizes of pools, numpy's instructions)
is set first, and the program started anew in the same process.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Annotated, Literal

import typer
from pydantic import ValidationError

from feedline.commands.cluster.tls_options import tls_files
from feedline.errors import SpecError
from feedline.resources import available_cores, choose_cpu
from feedline.service.worker.departure import DRAIN_S
from feedline.service.worker.worker_process import WorkerOptions, WorkerProcess, replace_process, worker_environment
from feedline.spec.cluster_section import ClusterSpec, TlsSpec


def worker(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="The scheduler: tls://host:port or tcp://host:port.")
    ],
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: the cores it may use).")] = None,
    name: Annotated[str | None, typer.Option(help="Its name among the workers (default: its address).")] = None,
    tls_ca: Annotated[str | None, typer.Option(metavar="FILE", help="Certificate of the authority (PEM).")] = None,
    tls_cert: Annotated[str | None, typer.Option(metavar="FILE", help="Certificate of this worker (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Private key of this worker (PEM).")] = None,
    insecure: Annotated[bool, typer.Option(help="Allow tcp:// to another machine.")] = False,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on (default: the one from which it reaches the scheduler)."),
    ] = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /health and /metrics there (default: not at all).")
    ] = None,
    scratch: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for what Dask keeps on disk.")] = None,
    cpu: Annotated[
        Literal["native", "x86-64-v3"] | None, typer.Option(help="As `cluster.cpu` of the jobs (default: likewise).")
    ] = None,
    drain_s: Annotated[
        float, typer.Option("--drain-s", min=0, help="Seconds for running blocks to end when it is stopped.")
    ] = DRAIN_S,
    wait_s: Annotated[
        float | None, typer.Option("--wait-s", min=0, help="Seconds to search the scheduler (default: forever).")
    ] = None,
) -> None:
    """Compute blocks for the jobs of a scheduler. SIGTERM and Ctrl-C: take no new blocks, end the running ones, hand
    over the finished ones, and end with status 0; a second one gives up the running ones."""
    options = WorkerOptions(
        scheduler=address,
        threads=threads or available_cores(),
        tls=_connection(address, tls_ca, tls_cert, tls_key, insecure=insecure),
        name=name,
        host=host,
        http=http,
        scratch=scratch,
        drain_s=drain_s,
        wait_s=wait_s,
    )
    environment = worker_environment(options.threads, choose_cpu(cpu, shared=True), os.environ)
    replace_process(environment, [sys.executable, "-m", "feedline", *sys.argv[1:]])
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("feedline").setLevel(logging.INFO)
    WorkerProcess(options).run()


def _connection(address: str, ca: str | None, cert: str | None, key: str | None, *, insecure: bool) -> TlsSpec | None:
    """The files of the connection, None for tcp://, by the rules of `cluster` in pipeline.yaml."""
    tls = tls_files(ca, cert, key)
    try:
        return ClusterSpec.model_validate({"scheduler": address, "tls": tls, "insecure": insecure}).tls
    except ValidationError as error:
        details = error.errors()[0]
        message = str(details.get("ctx", {}).get("message") or details["msg"])
        raise SpecError(f"the scheduler's address is refused: got {address!r}: {message}") from None
