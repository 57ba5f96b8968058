"""The arguments and options that commands on a pipeline share: the file, `--set`, `--source`, `--json`.

Runs in: the process of the command, and that of a shell's completion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from feedline.commands.completions import complete_override, complete_pipeline, complete_source

PipelinePath = Annotated[
    Path, typer.Argument(metavar="PIPELINE.YAML", help="The pipeline.", autocompletion=complete_pipeline)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a key: --set batch.tail=pad", autocompletion=complete_override),
]
Source = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="One of the pipeline's `sources` alone.", autocompletion=complete_source),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def names_pipeline(text: str) -> bool:
    """Whether an argument that may be a table names a pipeline.yaml."""
    return text.endswith((".yaml", ".yml"))
