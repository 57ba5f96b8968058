"""Run `feedline generate`: example tables of any size.

Runs in: the process of the command.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import typer
from dask.base import compute
from dask.callbacks import Callback
from dask.delayed import delayed

from feedline.commands.pipeline_arguments import complete_words
from feedline.commands.progress_line import ProgressLine
from feedline.dataclass import dataclass
from feedline.errors import SpecError, TableArgumentError, TableError
from feedline.progress import report_progress
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.locations import absolute, delete_folder, info_of, join, list_folder, locate, redact
from feedline.workbench.generate.clicks import ClickFile, ClickRecipe
from feedline.workbench.generate.daily_table import GeneratedFile
from feedline.workbench.generate.listens import ListenFile, ListenRecipe, events_before
from feedline.workbench.generate.logs import LOG_COUNTS, LOG_TABLES, LogPart, LogRecipe

# --------------------------------------------------------------------------------------------------------------------
# Generate tables of any size: `generate_clicks` writes the rows of `clicks`, `generate_listens` those of `listens`,
# `generate_logs` the four tables of `logs`, as Hive-partitioned Parquet. Files are `ds=YYYY-MM-DD/part-00000.parquet`,
# each written by one Dask task (of logs: several by one), in threads of the caller's process unless a Dask client is
# active; the caller's process moves them into place when all are written. Repeatable: the same recipe gives the same
# bytes, with any number of workers. Bounded: a file has at most `part_rows` rows; a task of clicks holds its sessions'
# distinct values and one row group, one of listens its file's rows, one of logs all that follows from its impressions.

_HIDDEN = "_generating"
Recipe = ClickRecipe | ListenRecipe | LogRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedTable:
    """A generated table: `files` Parquet files of `bytes` bytes in total."""

    uri: str
    rows: int
    days: int
    files: int
    row_groups: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport(GeneratedTable):
    """A generated click table: `clicks` rows with clicked = 1."""

    sessions: int
    clicks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListensReport(GeneratedTable):
    """A generated log: `listens` and `likes` of its rows, and `users` that have any."""

    users: int
    listens: int
    likes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsReport(GeneratedTable):
    """Generated logs: `rows` is the number of `impressions` without copies, `logged` the rows written of each table.

    `late`, `duplicates` and `orphans`: how many of all rows written are.
    """

    logged: Mapping[str, int]
    sessions: int
    requests: int
    late: int
    duplicates: int
    orphans: int


def generate_clicks(
    uri: str, recipe: ClickRecipe, *, overwrite: bool = False, threads: int | None = None
) -> GenerationReport:
    """Write a click table below `uri` (a path or a pyarrow.fs URI).

    `threads`: Dask threads (default: Dask's, the active client's workers, else every core here). Raises SpecError for
    an argument out of range, TableError if the target is not empty (`overwrite` empties it, provided that it holds only
    `ds=` partitions).
    """
    facts, (sessions, clicks) = _generate_table(uri, recipe, overwrite=overwrite, threads=threads)
    return GenerationReport(**facts, sessions=sessions, clicks=clicks)


def generate_listens(
    uri: str, recipe: ListenRecipe, *, overwrite: bool = False, threads: int | None = None
) -> ListensReport:
    """Write a log of listens below `uri`; arguments and errors are those of `generate_clicks`."""
    facts, (listens, likes) = _generate_table(uri, recipe, overwrite=overwrite, threads=threads)
    users = np.count_nonzero(np.diff(events_before(recipe.rows, recipe.user_count)))
    return ListensReport(**facts, users=int(users), listens=listens, likes=likes)


def generate_logs(uri: str, recipe: LogRecipe, *, overwrite: bool = False, threads: int | None = None) -> LogsReport:
    """Write the tables `impressions`, `clicks`, `orders` and `users` below `uri`; see `generate_clicks`.

    `overwrite` empties a folder that holds only these tables, with only `ds=` partitions in them.
    """
    facts, counts = _generate_table(uri, recipe, overwrite=overwrite, threads=threads)
    found: dict[str, Any] = dict(zip(LOG_COUNTS, counts, strict=True))
    return LogsReport(**facts, logged={table: found.pop(table) for table in LOG_TABLES}, **found)


def _generate_table(
    uri: str, recipe: Recipe, *, overwrite: bool, threads: int | None
) -> tuple[dict[str, Any], list[int]]:
    """Write a table; return the values of its GeneratedTable, and the sums of the counts of its tasks."""
    if threads is not None and threads < 1:
        raise SpecError(f"threads are out of range: got {threads}, expected at least 1.")
    filesystem, root = _open_target(uri)
    tables = LOG_TABLES if isinstance(recipe, LogRecipe) else ()
    earlier = _replaceable(filesystem, root, uri, tables, overwrite=overwrite)
    claim = Claim(uri=absolute(uri), hidden=_HIDDEN, file="generate", name=redact(uri))
    claim.take()
    try:
        for entry in earlier:
            delete_folder(filesystem, entry.path)
        write = delayed(_write_files, pure=False)
        tasks = [write(claim, recipe, day, number) for day in range(recipe.days) for number in range(recipe.parts(day))]
        options: dict[str, Any] = {} if threads is None else {"scheduler": "threads", "num_workers": threads}
        with _FilesWritten(len(tasks)):
            written = compute(*tasks, **options)
        files = [file for of_task, _ in written for file in of_task]
        claim.move((file.path, join(claim.location.path, file.target)) for file in files)
    finally:
        claim.release()
    counts = [sum(of_tasks) for of_tasks in zip(*(counts for _, counts in written), strict=True)]
    groups, size = sum(file.row_groups for file in files), sum(file.bytes for file in files)
    facts = {"rows": recipe.rows, "days": recipe.days, "files": len(files), "row_groups": groups, "bytes": size}
    return {"uri": uri, **facts}, counts


class _FilesWritten(Callback):
    def __init__(self, files: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Dask is untyped
        self._files, self._done = files, 0
        report_progress("writing", 0, files, "files")

    def _posttask(self, *_: object) -> None:
        self._done = min(self._done + 1, self._files)
        report_progress("writing", self._done, self._files, "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class _WrittenFile:
    """A file in the run's own folder, and where it belongs below the table's."""

    path: str
    target: str
    row_groups: int
    bytes: int


def _write_files(claim: Claim, recipe: Recipe, day: int, number: int) -> tuple[list[_WrittenFile], tuple[int, ...]]:
    """Write the files of a part of a day, in a Dask task; return them and its counts."""
    claim.check()
    folder = claim.own(secrets.token_hex(4))  # an attempt's own
    folder.filesystem.create_dir(folder.path, recursive=True)
    files, counts = _part(recipe, day, number)
    written: list[_WrittenFile] = []
    for file in files:
        path, groups = join(folder.path, f"{day}-{number}-{len(written)}"), 0
        with pq.ParquetWriter(
            path, file.schema, filesystem=folder.filesystem, compression=recipe.compression
        ) as writer:
            for table in file.row_groups:
                writer.write_table(table, row_group_size=recipe.row_group_rows)
                groups += 1
        size = int(folder.filesystem.get_file_info(path).size)
        written.append(_WrittenFile(path=path, target=file.target, row_groups=groups, bytes=size))
    return written, counts()


def _part(recipe: Recipe, day: int, number: int) -> tuple[Iterable[GeneratedFile], Callable[[], tuple[int, ...]]]:
    """The files of a part, and a function that returns its counts once their row groups are generated."""
    if isinstance(recipe, LogRecipe):
        part = LogPart(recipe, day, number)
        return part.files(), part.counts
    rows = ClickFile(recipe, day, number) if isinstance(recipe, ClickRecipe) else ListenFile(recipe, day, number)
    target = f"{recipe.partition(day)}/part-{number:05d}.parquet"
    return [GeneratedFile(target, recipe.schema(), rows.row_groups())], rows.counts


def clicks_pipeline(
    table: str,
    *,
    name: str = "clicks",
    dense: int = 13,
    ids: int = 26,
    strings: int = 0,
    histories: int = 6,
    first_x: int = 20,
    work_dir: str = ".feedline",
    batch_size: int = 8192,
    tail: str = "drop",
    shuffle: Mapping[str, object] | None = None,
) -> str:
    """Return the pipeline.yaml of benchmarks and docs, for a generated table with at least these columns.

    `shuffle`: the section (default: omitted).
    """
    groups = {
        "dense": [f"dense_{j}: [{{fill_null: 0}}, {{clip: {{min: 0, max: 1000}}}}, log1p]" for j in range(dense)],
        "categorical": [
            *(f"id_{k}: [{{modulo: 1000003}}]" for k in range(ids)),
            *(f"str_{k}: [{{hash_bucket: 100000}}]" for k in range(strings)),
        ],
        "sparse": [f"hist_{k}: [{{first_x: {first_x}}}]" for k in range(histories)],
        "label": ["clicked: []"],
    }
    lines = ["version: 1", f"name: {json.dumps(name)}", f"work_dir: {json.dumps(work_dir)}"]
    lines += ["source:", f"  table: {json.dumps(table)}", "features:"]
    for group, features in groups.items():
        if features:
            lines += [f"  {group}:", *(f"    {feature}" for feature in features)]
    lines.append(f"batch: {{size: {batch_size}, tail: {tail}}}")
    if shuffle is not None:
        lines.append(f"shuffle: {json.dumps(dict(shuffle))}")
    return "\n".join(lines) + "\n"


def _open_target(uri: str) -> tuple[pafs.FileSystem, str]:
    if not uri:
        raise SpecError("The table's location is empty: got '', expected a folder's path or a URI.")
    try:
        location = locate(absolute(uri))
    except TableError as error:
        raise TableArgumentError(f"{redact(uri)} cannot hold a table: {error}") from error
    return location.filesystem, location.path.rstrip("/")


def _replaceable(
    filesystem: pafs.FileSystem, root: str, uri: str, tables: Collection[str], *, overwrite: bool
) -> list[pafs.FileInfo]:
    """What the target, or each of the `tables` in it, holds of an earlier run. Raises TableArgumentError otherwise."""
    kind = info_of(filesystem, root).type
    if kind == pafs.FileType.File:
        raise TableArgumentError(f"The table's location is a file: got {uri}, expected an empty or missing folder.")
    entries = list_folder(filesystem, root) if kind == pafs.FileType.Directory else []
    if entries and not overwrite:
        raise TableArgumentError(
            f"The table's location is not empty: {uri} holds {len(entries)} entries. Choose another, or overwrite it."
        )
    entries = [entry for entry in entries if entry.base_name != _HIDDEN]
    partitions = entries
    if tables:
        _refuse(uri, entries, lambda name: name in tables, f"none of {', '.join(tables)}")
        partitions = [each for entry in entries for each in list_folder(filesystem, entry.path)]
    _refuse(uri, partitions, lambda name: name.startswith("ds="), "no ds= partition")
    return entries


def _refuse(uri: str, entries: Sequence[pafs.FileInfo], is_ours: Callable[[str], bool], what: str) -> None:
    for entry in entries:
        if not is_ours(entry.base_name) or entry.type != pafs.FileType.Directory:
            raise TableArgumentError(
                f"{uri} is not overwritten: it holds {entry.base_name!r}, which is {what}. Remove it first."
            )


# --------------------------------------------------------------------------------------------------------------------

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


@generate.command()
def listens(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder or URI.")],
    rows: Annotated[int, typer.Option(help="Total events.")] = 1_000_000,
    users: Annotated[int | None, typer.Option(help="Users (default: one per 4,763 events).")] = None,
    items: Annotated[int | None, typer.Option(help="Tracks (default: 136 times the root of the events).")] = None,
    days: Annotated[int, typer.Option(help="Partitions ds=YYYY-MM-DD.")] = 10,
    row_group_rows: Annotated[int, typer.Option(help="Rows of a row group.")] = 65_536,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same bytes.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing table.")] = False,
) -> None:
    """Write a log of a music service's events, in the order of time, reproducible from its seed."""
    recipe = ListenRecipe(rows=rows, users=users, items=items, days=days, row_group_rows=row_group_rows, seed=seed)
    with ProgressLine():
        report = generate_listens(directory, recipe, overwrite=overwrite)
    print(
        f"{report.rows:,} rows in {report.files} files, {report.bytes:,} bytes, {report.users:,} users, "
        f"{report.listens:,} listens, {report.likes:,} likes: {report.uri}"
    )


@generate.command()
def logs(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A folder or URI, for four tables.")],
    rows: Annotated[int, typer.Option(help="Total impressions, copies not counted.")] = 1_000_000,
    days: Annotated[int, typer.Option(help="Partitions ds=YYYY-MM-DD, the days on which rows arrive.")] = 4,
    sessions_mean: Annotated[float, typer.Option(help="Mean impressions of a session.")] = 16.5,
    requests_mean: Annotated[float, typer.Option(help="Mean impressions of a request.")] = 5.5,
    users: Annotated[int | None, typer.Option(help="Users (default: one per 66 impressions).")] = None,
    items: Annotated[int | None, typer.Option(help="Items (default: 20 times the root of the impressions).")] = None,
    late: Annotated[float, typer.Option(help="Share of rows that arrive a day or two late.")] = 0.01,
    duplicates: Annotated[float, typer.Option(help="Share of rows that are written twice.")] = 0.005,
    orphans: Annotated[float, typer.Option(help="Share of clicks and orders without an impression.")] = 0.01,
    row_group_rows: Annotated[int, typer.Option(help="Rows of a row group.")] = 65_536,
    seed: Annotated[int, typer.Option(help="Random seed; the same seed gives the same bytes.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace existing tables.")] = False,
) -> None:
    """Write logs of impressions, clicks, orders and users, with events that are late, double or orphaned."""
    recipe = LogRecipe(
        rows=rows,
        days=days,
        sessions_mean=sessions_mean,
        requests_mean=requests_mean,
        users=users,
        items=items,
        late=late,
        duplicates=duplicates,
        orphans=orphans,
        row_group_rows=row_group_rows,
        seed=seed,
    )
    with ProgressLine():
        report = generate_logs(directory, recipe, overwrite=overwrite)
    logged = ", ".join(f"{count:,} {table}" for table, count in report.logged.items())
    print(
        f"{logged} in {report.files} files, {report.bytes:,} bytes; {report.sessions:,} sessions, "
        f"{report.requests:,} requests; {report.late:,} rows late, {report.duplicates:,} double, "
        f"{report.orphans:,} orphaned: {report.uri}"
    )
