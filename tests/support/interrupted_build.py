"""`feedline build` in a child process, for tests that kill it at any moment."""

from __future__ import annotations

import os

import feedline.commands.build  # noqa: F401  # before the fork
from feedline.cli import app


def build(samples: str, output: str, *options: str) -> None:
    """Run the command; what it prints goes to the file `output`."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    app(["build", samples, *options], standalone_mode=False)
