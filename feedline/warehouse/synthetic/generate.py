"""How does anyone get a click warehouse of any size, without anybody's data in it?

`generate_clicks` writes a Hive-partitioned Parquet table, `ds=YYYY-MM-DD/part-00000.parquet`, of user sessions: one
Dask task per file, as threads of the caller's process unless a Dask client is active. Columns, in file order:

    request_id           int64        0 .. rows-1, the row's place in the table (day, part, row): unique
    ts                   timestamp    microseconds, UTC without a zone, within the partition's day
    session_id, user_id  int64
    dense_0 ..           float32      log-normal minus a little (some are negative), `null_share` of them null
    id_0 ..              int64        Zipf over 10^2 .. 10^7 ids, by column
    str_0 ..             string       Zipf over 10^2 .. 10^4 words, by column
    hist_0 ..            list<int64>  `history_min` .. `history_max` ids, newest first
    clicked              int8         1 with probability sigmoid(`click_logit`)
    dwell                float32      seconds, null where not clicked

The histories and the first `user_share` of the dense, id and string columns are user-side: from one row of a session to
the next each of them stays as it is with `keep_probability`. A changed history has one new id in front and has lost its
last; any other changed value is drawn anew. Sessions have geometric lengths of mean `sessions_mean` (the last one of a
file is cut). `clustered` keeps a session's rows together, in time order; log order sorts each file, and so each day, by
`ts`, which spreads every session over its file.

Repeatable: the same arguments give the same bytes, however many workers write them. Bounded: a file holds at most
`part_rows` rows, and a task holds its sessions' distinct values and one row group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from dask.base import compute
from dask.delayed import delayed

from feedline.errors import SpecError, TableArgumentError
from feedline.warehouse.synthetic.clicks import ClickFile, ClickRecipe, click_logit

__all__ = ["PART_ROWS", "GenerationReport", "click_logit", "clicks_pipeline", "generate_clicks", "write_part"]

PART_ROWS = 1 << 18  # rows of a file: four default row groups, about 60 MB of file


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport:
    """What was written: `files` Parquet files of `bytes` bytes in all, `clicks` rows with clicked = 1."""

    uri: str
    rows: int
    days: int
    files: int
    row_groups: int
    bytes: int
    sessions: int
    clicks: int


def generate_clicks(
    uri: str,
    *,
    rows: int,
    days: int,
    sessions_mean: float = 8,
    seed: int = 0,
    dense: int = 13,
    ids: int = 26,
    strings: int = 2,
    histories: int = 6,
    history_min: int = 5,
    history_max: int = 49,
    user_share: float = 0.5,
    keep_probability: float = 0.95,
    null_share: float = 0.05,
    row_group_rows: int = 65_536,
    part_rows: int = PART_ROWS,
    clustered: bool = True,
    start: date | str = date(2026, 1, 1),
    compression: str = "zstd",
    overwrite: bool = False,
    threads: int | None = None,
) -> GenerationReport:
    """Writes a click table of exactly `rows` rows over `days` partitions below `uri` (a path or a pyarrow.fs URI).

    `threads` bounds the Dask threads; None leaves it to Dask: the active client's workers, else every core here.
    Raises SpecError for an argument out of range, TableError where the target already holds something (`overwrite`
    empties it, if it holds nothing but `ds=` partitions).
    """
    recipe = ClickRecipe(
        uri=uri, rows=rows, days=days, sessions_mean=sessions_mean, seed=seed, dense=dense, ids=ids, strings=strings,
        histories=histories, history_min=history_min, history_max=history_max, user_share=user_share,
        keep_probability=keep_probability, null_share=null_share, row_group_rows=row_group_rows, part_rows=part_rows,
        clustered=clustered, start=_as_date(start), compression=_as_codec(compression),
    )  # fmt: skip
    if threads is not None and threads < 1:
        raise SpecError(f"threads are out of range: got {threads}, expected at least 1.")
    filesystem, root = _open_target(uri)
    _clear_target(filesystem, root, uri, overwrite=overwrite)
    for day in range(days):
        filesystem.create_dir(f"{root}/{recipe.partition(day)}", recursive=True)
    write = delayed(write_part, pure=False)
    tasks = [write(recipe, day, part) for day in range(days) for part in range(recipe.parts(day))]
    options: dict[str, Any] = {} if threads is None else {"scheduler": "threads", "num_workers": threads}
    written = compute(*tasks, **options)
    groups, size, sessions, clicks = (sum(column) for column in zip(*written, strict=True))
    counts = {"files": len(tasks), "row_groups": groups, "bytes": size, "sessions": sessions, "clicks": clicks}
    return GenerationReport(uri=uri, rows=rows, days=days, **counts)


def write_part(recipe: ClickRecipe, day: int, part: int) -> tuple[int, int, int, int]:
    """Writes one file; returns its (row groups, bytes, sessions, clicks). Runs in a Dask task."""
    filesystem, root = _open_target(recipe.uri)
    path = f"{root}/{recipe.partition(day)}/part-{part:05d}.parquet"
    rows, groups, clicks = ClickFile(recipe, day, part), 0, 0
    try:
        with pq.ParquetWriter(path, recipe.schema(), filesystem=filesystem, compression=recipe.compression) as writer:
            for table in rows.row_groups():
                writer.write_table(table, row_group_size=recipe.row_group_rows)
                groups += 1
                clicks += int(np.count_nonzero(table.column("clicked").chunk(0).to_numpy()))
    except BaseException:
        if filesystem.get_file_info(path).type == pafs.FileType.File:
            filesystem.delete_file(path)  # a file cut short would make the table a corrupt one
        raise
    return groups, int(filesystem.get_file_info(path).size), rows.sessions, clicks


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
    """pipeline.yaml for a generated table with at least those columns: the text of the benchmark and of the docs.

    `shuffle` None leaves the default; pass `set={"shuffle": "off"}` where the pipeline is used to turn it off.
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


def _as_codec(name: object) -> str:
    try:
        if isinstance(name, str) and (name == "none" or pa.Codec.is_available(name)):
            return name
    except ValueError:
        pass
    raise SpecError(f"compression is unknown: got {name!r}, expected zstd, lz4, snappy, gzip, brotli or none.")


def _as_date(start: date | str) -> date:
    try:
        return date.fromisoformat(start) if isinstance(start, str) else date(start.year, start.month, start.day)
    except ValueError as error:
        raise SpecError(f"start is no date: got {start!r}, expected YYYY-MM-DD.") from error


def _open_target(uri: str) -> tuple[pafs.FileSystem, str]:
    if not uri:
        raise SpecError("The table's place is empty: got '', expected a folder's path or a URI.")
    try:
        filesystem, root = pafs.FileSystem.from_uri(uri) if "://" in uri else (pafs.LocalFileSystem(), uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise TableArgumentError(f"{uri} is no place for a table: {error}") from error
    return filesystem, root.rstrip("/")


def _clear_target(filesystem: pafs.FileSystem, root: str, uri: str, *, overwrite: bool) -> None:
    """Leaves an empty or missing folder, or refuses (TableError)."""
    kind = filesystem.get_file_info(root).type
    if kind == pafs.FileType.File:
        raise TableArgumentError(f"The table's place is a file: got {uri}, expected an empty or missing folder.")
    entries = filesystem.get_file_info(pafs.FileSelector(root)) if kind == pafs.FileType.Directory else []
    if entries and not overwrite:
        raise TableArgumentError(
            f"The table's place is not empty: {uri} holds {len(entries)} entries. Say overwrite, or move."
        )
    strange = [entry.base_name for entry in entries if not entry.base_name.startswith("ds=")]
    if strange:
        raise TableArgumentError(
            f"{uri} is not overwritten: it holds {strange[0]!r}, which is no ds= partition. Remove it first."
        )
    for entry in entries:
        filesystem.delete_dir(entry.path)
