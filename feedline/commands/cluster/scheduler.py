"""Run `feedline scheduler`: one Dask scheduler for many jobs and their workers.

Runs in: the scheduler's process.
"""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from feedline.commands.cluster.connection_files import TlsCa, TlsCert, TlsKey, connection_files
from feedline.commands.cluster.metrics_options import MetricsAt, MetricsDir, metrics_options
from feedline.errors import SpecError
from feedline.service.log_lines import write_log_lines
from feedline.service.scheduler.scheduler_process import SchedulerOptions, refuse_open, run_scheduler


def scheduler(
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine only with certificates.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one.")] = 8786,
    dashboard: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve the live page, Dask's, and /health there, without a key (default: not)."
        ),
    ] = None,
    metrics: MetricsAt = None,
    metrics_dir: MetricsDir = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    insecure: Annotated[bool, typer.Option(help="Allow an unencrypted port beyond this machine.")] = False,
) -> None:
    """Serve jobs and their workers with one scheduler.

    It shares workers fairly, and tells autoscalers how many the jobs need. SIGTERM and Ctrl-C end it with status 0;
    feeders and workers then wait for another.
    """
    if dashboard is not None and not dashboard.rpartition(":")[2].isdigit():
        raise SpecError(f"--dashboard is no address: got {dashboard!r}, expected HOST:PORT such as 127.0.0.1:8787")
    protocol = "tcp" if tls_ca is tls_cert is tls_key is None else "tls"
    tls = connection_files(f"{protocol}://127.0.0.1:{port or 8786}", tls_ca, tls_cert, tls_key, insecure=False)
    served = metrics_options(metrics, metrics_dir)
    options = SchedulerOptions(host=host, port=port, dashboard=dashboard, tls=tls, metrics=served)
    refuse_open(options, insecure=insecure)
    write_log_lines(level=logging.INFO)
    run_scheduler(options)
