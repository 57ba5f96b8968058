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

from feedline.commands.cluster.connection_files import Address, Insecure, TlsCa, TlsCert, TlsKey, connection_files
from feedline.commands.cluster.metrics_options import MetricsAt, MetricsDir, metrics_options
from feedline.config.cluster_section import is_loopback, scheduler_address
from feedline.errors import SpecError
from feedline.resources.cgroups import available_cores
from feedline.resources.instructions import choose_cpu
from feedline.service.log_lines import write_log_lines
from feedline.service.worker.departure import DRAIN_S
from feedline.service.worker.worker_process import WorkerOptions, WorkerProcess, replace_process, worker_environment

ContactAddress = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where others reach it, if not where it listens: behind NAT, or a container's port. Needs --port.",
    ),
]


def worker(
    address: Address,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads (default: the cores it may use).")] = None,
    name: Annotated[str | None, typer.Option(help="Its name among the workers (default: its address).")] = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Insecure = False,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on (default: the one from which it reaches the scheduler)."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on (default: a free one).")] = None,
    contact_address: ContactAddress = None,
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /health and /metrics there (default: not at all).")
    ] = None,
    metrics: MetricsAt = None,
    metrics_dir: MetricsDir = None,
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
    """Compute blocks for the jobs of a scheduler.

    On SIGTERM and Ctrl-C it takes no new blocks, ends the running ones, hands over the finished ones, and ends with
    status 0; a second one gives up the running ones. A scheduler that is gone is waited for.
    """
    tls = connection_files(address, tls_ca, tls_cert, tls_key, insecure=insecure)
    _refuse_open(host, tls is not None or insecure)
    _check_contact_address(contact_address, port)
    options = WorkerOptions(
        scheduler=address,
        threads=threads or available_cores(),
        tls=tls,
        name=name,
        host=host,
        port=port,
        contact_address=contact_address,
        http=http,
        metrics=metrics_options(metrics, metrics_dir),
        scratch=scratch,
        drain_s=drain_s,
        wait_s=wait_s,
    )
    environment = worker_environment(options.threads, choose_cpu(cpu, shared=True), os.environ)
    replace_process(environment, [sys.executable, "-m", "feedline", *sys.argv[1:]])
    write_log_lines(level=logging.INFO)
    WorkerProcess(options).run()


def _refuse_open(host: str | None, is_allowed: bool) -> None:
    """Raise SpecError for a worker that other machines reach without TLS, unless that is allowed."""
    if host is not None and not is_allowed and not is_loopback(host):
        raise SpecError(
            f"the worker would be unencrypted and not only on this machine: got --host {host}. Dask's messages are "
            "pickle, so anyone who reaches the port can run code. Give --tls-ca, --tls-cert and --tls-key, or accept "
            "the risk with --insecure"
        )


def _check_contact_address(contact_address: str | None, port: int | None) -> None:
    """Raise SpecError for an address that is none, or one that leads to a port which nobody knows."""
    if contact_address is None:
        return
    try:
        scheduler_address(f"tcp://{contact_address}")
    except ValueError:
        raise SpecError(
            f"--contact-address is no address: got {contact_address!r}, expected HOST:PORT such as 192.0.2.7:9000"
        ) from None
    if port is None:
        raise SpecError(
            f"--contact-address leads to a port that is not fixed: got {contact_address!r} without --port. Give the "
            "port to which the address is forwarded"
        )
