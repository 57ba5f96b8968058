"""The commands of modules of their own, which the command line imports when one of them runs.

Runs in: the process of the command.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
import typer.core

RUN, PREPARE, LOOK, OPERATE = "Run", "Prepare", "Look", "Operate"  # the groups of the help
ORDER = (
    *("run", "transform", "materialize", "rebase"),
    *("init", "generate", "fit", "build", "optimize", "columns", "delete", "check", "audit", "snapshot"),
    *("plan", "head", "schema", "explain", "profile", "usage"),
    *("scheduler", "worker", "jobs", "cache", "certs", "version"),
)

# Commands that are declared in modules of their own: group, module and first sentence of the help.
ELSEWHERE = {
    "transform": (
        RUN,
        "feedline.commands.transform",
        "Turn rows of a file into features, exactly as training does. Needs only pipeline.yaml and its artifacts.",
    ),
    "materialize": (
        RUN,
        "feedline.commands.materialize",
        "Write the finished features of all selected rows, in the table's order, as arrays or Parquet.",
    ),
    "init": (
        PREPARE,
        "feedline.workbench.begin.init",
        "Look at a table, and write a commented pipeline.yaml and a train.py that runs.",
    ),
    "generate": (PREPARE, "feedline.workbench.generate.generate", "Generate example tables."),
    "fit": (
        PREPARE,
        "feedline.commands.fit",
        "Fit the ops that learn from the table, such as vocabularies and means, and keep the result under `artifacts`.",
    ),
    "build": (
        PREPARE,
        "feedline.commands.build",
        "Make a training table of logs: impressions joined with outcomes and features, partition by partition.",
    ),
    "optimize": (
        PREPARE,
        "feedline.commands.table_layout",
        "Rewrite a table so that reading it is cheap: clustered, compacted, each column in its best encoding.",
    ),
    "delete": (
        PREPARE,
        "feedline.commands.delete",
        "Delete rows of a table, such as those of users in a list: only row groups that hold them are written anew.",
    ),
    "columns": (
        PREPARE,
        "feedline.commands.columns",
        "Add columns to a table, drop and list them, without rewriting it: in column files beside its own.",
    ),
    "check": (
        PREPARE,
        "feedline.commands.check",
        "Find bad files, nulls that features cannot hold and, with --rows, bad rows, before a run does.",
    ),
    "audit": (
        PREPARE,
        "feedline.commands.audit",
        "Compare columns of lists that a table has with the features that rebuild them from histories.",
    ),
    "explain": (
        LOOK,
        "feedline.workbench.explain.explain",
        "Say what limits a run, and what would change it, by how much: a short run, or --attach, or --last.",
    ),
    "profile": (
        LOOK,
        "feedline.workbench.profile.profile",
        "Describe a table: its layout and columns with their distributions, or the drift between two tables or days.",
    ),
    "usage": (
        LOOK,
        "feedline.commands.table_layout",
        "Show what runs of Feedline read of a table: columns, bytes, partitions.",
    ),
    "scheduler": (OPERATE, "feedline.commands.cluster.scheduler", "Serve jobs and their workers with one scheduler."),
    "worker": (OPERATE, "feedline.commands.cluster.worker", "Compute blocks for the jobs of a scheduler."),
    "jobs": (
        OPERATE,
        "feedline.commands.cluster.list_jobs",
        "List the jobs of a scheduler: their rates, the threads of workers that they use, their fair parts, who waits.",
    ),
    "cache": (
        OPERATE,
        "feedline.commands.cache_commands",
        "Look after a cache of computed features: list, prune and verify its entries.",
    ),
    "certs": (
        OPERATE,
        "feedline.commands.cluster.certs",
        "Make a certificate authority, and certificates for a cluster's scheduler, workers and clients.",
    ),
}


class CommandList(typer.core.TyperGroup):
    """The commands of `feedline.cli`, and those of `ELSEWHERE`, which are imported to be run but not to be listed."""

    _listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*super().list_commands(ctx), *ELSEWHERE}, key=ORDER.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        group, module, summary = ELSEWHERE[cmd_name]
        if self._listing:
            return typer.core.TyperCommand(cmd_name, help=summary, rich_help_panel=group)
        command = getattr(importlib.import_module(module), cmd_name)
        if isinstance(command, typer.Typer):
            return typer.main.get_command(command)
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(cmd_name)(command)
        return typer.main.get_command(alone)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with self._as_listed():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._as_listed():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _as_listed(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False
