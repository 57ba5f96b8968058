"""Run `feedline generate`: example tables of any size.

Runs in: the process of the command.
"""

from __future__ import annotations

from typing import Annotated

import typer

from feedline.commands.completions import complete_words
from feedline.commands.progress_line import ProgressLine
from feedline.errors import SpecError
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

generate = typer.Typer(no_args_is_help=True, help="Generate example tables.")


@generate.callback()
def _generate() -> None:
    """Generate example tables."""


@generate.command()
def clicks(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder or URI.")],
    rows: Annotated[int, typer.Option(help="Total rows.")] = 1_000_000,
    days: Annotated[int, typer.Option(help="Partitions ds=YYYY-MM-DD.")] = 4,
    sessions_mean: Annotated[float, typer.Option(help="Mean rows of a user session.")] = 8.0,
    strings: Annotated[int, typer.Option(help="Categorical string columns.")] = 2,
    user_share: Annotated[
        float, typer.Option(help="Share of dense, id and string columns that repeat in a session, as all histories do.")
    ] = 0.5,
    keep_probability: Annotated[
        float, typer.Option(help="Probability that such a column has the value of the session's row before.")
    ] = 0.95,
    joint_changes: Annotated[
        bool, typer.Option("--joint-changes", help="Such columns change in the same rows, not each on its own.")
    ] = False,
    row_group_rows: Annotated[int, typer.Option(help="Rows of a row group.")] = 65_536,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same bytes.")] = 0,
    order: Annotated[
        str,
        typer.Option(
            help="session: clustered by session; log: by time.", autocompletion=complete_words("session", "log")
        ),
    ] = "session",
    overwrite: Annotated[bool, typer.Option(help="Replace an existing table.")] = False,
) -> None:
    """Write a session-structured click table of any size, reproducible from its seed."""
    if order not in ("session", "log"):
        raise SpecError(f"--order is unknown: got {order!r}, expected session or log")
    recipe = ClickRecipe(
        rows=rows,
        days=days,
        sessions_mean=sessions_mean,
        strings=strings,
        user_share=user_share,
        keep_probability=keep_probability,
        joint_changes=joint_changes,
        row_group_rows=row_group_rows,
        seed=seed,
        clustered=order == "session",
    )
    with ProgressLine():
        report = generate_clicks(directory, recipe, overwrite=overwrite)
    print(
        f"{report.rows:,} rows in {report.files} files, {report.bytes:,} bytes, {report.sessions:,} sessions, "
        f"{report.clicks:,} clicks: {report.uri}"
    )
