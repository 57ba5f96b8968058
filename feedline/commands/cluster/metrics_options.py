"""The options by which a scheduler or a worker serves its metrics.

Runs in: the process of the command. The rules are those of `metrics` in pipeline.yaml.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from feedline.config.monitoring_section import Metrics, MetricsSpec, is_address
from feedline.errors import SpecError

MetricsAt = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT|DIR",
        help="Serve /metrics there, without a key; with a folder, on a free port of this machine (default: not).",
    ),
]
MetricsDir = Annotated[
    str | None,
    typer.Option("--metrics-dir", metavar="DIR", help="Write the target file for Prometheus there as well."),
]


def metrics_options(at: str | None, folder: str | None) -> MetricsSpec | None:
    """Where to serve metrics; None: nowhere. Raises SpecError."""
    content: dict[str, str] = {} if folder is None else {"dir": folder}
    if at is not None:
        if not is_address(at) and folder is not None:
            raise SpecError(f"--metrics and --metrics-dir name two folders: got {at!r} and {folder!r}. Leave one out")
        content["listen" if is_address(at) else "dir"] = at
    try:
        return TypeAdapter(Metrics).validate_python(content) if content else None
    except ValidationError as error:
        context = error.errors()[0].get("ctx", {})
        expected = context.get("expected", "HOST:PORT or a folder")
        raise SpecError(f"--metrics must be {expected}: got {at or folder!r}. {context.get('remedy', '')}") from None
