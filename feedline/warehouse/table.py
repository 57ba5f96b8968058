"""`Table`: a table by its path or URI, to read, rewrite, or open as a Dask DataFrame.

Runs in the caller's process. A `Table` is only a name: every call takes a snapshot of its own, so two calls may see
different rows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from feedline.errors import TableError
from feedline.expressions import bind_where
from feedline.extras import extra
from feedline.resources.cgroups import available_cores
from feedline.warehouse.delete.delete import DeleteReport, DeleteRequest, delete_rows
from feedline.warehouse.discovery.formats import list_table
from feedline.warehouse.optimize.optimize import OptimizeReport, TaskRunner, optimize
from feedline.warehouse.optimize.recipe import Names, Settings, names_of
from feedline.warehouse.optimize.usage import load_uses, popular_columns
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.reading.sample import Sample, bind_sample, with_weight
from feedline.warehouse.selection.select import SPLIT_ROWS, Selection, plan_fragments, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import redact
from feedline.warehouse.storage.parallel import Map, in_threads


class Table:
    """A Hive-partitioned Parquet table. `uri`: a folder, a file, a glob, or a list of them; local paths or `pyarrow.fs`
    URIs.

    A folder with the log of a Delta Lake or Iceberg table is read as that: its newest state, or that at a `version`
    (delta), a `snapshot_id` (iceberg) or an ISO time `as_of` (both). `format`: hive, manifest, delta or iceberg, where
    it should not be found out (auto).

    Every method raises TableNotFoundError if there is nothing to read, TableError for files that contradict each
    other, CorruptFileError naming the file, and ExpressionError for a `where` that does not fit the columns.

    Examples:
        >>> Table("warehouse/clicks").read(["clicked", "ds"], 'ds == "2026-01-02" and clicked == 1').schema.names
        ['clicked', 'ds']
    """

    def __init__(
        self,
        uri: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        format: str = "auto",
        version: int | None = None,
        snapshot_id: int | None = None,
        as_of: str | None = None,
    ) -> None:
        names = os.fspath(uri) if isinstance(uri, str | os.PathLike) else tuple(os.fspath(part) for part in uri)
        self.uri: str | tuple[str, ...] = names
        self._state: dict[str, Any] = {
            "format": format,
            "version": version,
            "snapshot_id": snapshot_id,
            "as_of": as_of,
        }

    @classmethod
    def from_manifest(cls, uri: str | os.PathLike[str]) -> Table:
        """The table of the files in a manifest, `uri`: a JSON list of paths, or Parquet with a column `path`."""
        return cls(uri, format="manifest")

    def __repr__(self) -> str:
        state = "".join(f", {name}={value!r}" for name, value in self._state.items() if value not in (None, "auto"))
        return f"Table({self.uri!r}{state})"

    def snapshot(self) -> Snapshot:
        """List the table and read its footers."""
        return snapshot_of(list_table(self.uri, **self._state))

    def _select(self, where: str | None, sample: Sample | Mapping[str, Any] | None) -> tuple[Snapshot, Selection]:
        snapshot, parsed = self.snapshot(), Sample.of(sample)
        bound = None if where is None else bind_where(where, snapshot.schema)
        sampled = None if parsed is None else bind_sample(parsed, snapshot.schema)
        return snapshot, screen_rows(snapshot, bound, sample=sampled)

    def to_dask(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        *,
        sample: Sample | Mapping[str, Any] | None = None,
        split_rows: int = SPLIT_ROWS,
    ) -> Any:
        """Open the rows that `where` selects as a Dask DataFrame of Arrow-typed columns, one partition per split:
        about `split_rows` rows of one file.

        `sample`: a share of them, as in `read`.
        """
        with extra("dataframe", "Table.to_dask"):
            from feedline.warehouse.dask_frame import to_dask  # noqa: PLC0415 -- an extra; 0.35 s of pandas

        snapshot, selection = self._select(where, sample)
        return to_dask(snapshot, selection, columns, split_rows=split_rows)

    def read(
        self,
        columns: Sequence[str] | None = None,
        where: str | None = None,
        *,
        sample: Sample | Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Read the rows that `where` selects as one Arrow table, in the table's order; partition keys come last.

        `sample`: a share of them, by the keys of `source.sample` in pipeline.yaml, such as `{"fraction": 0.1}`;
        `columns` may then name `sample_weight` (float32). Raises SpecError for a sample that does not fit the table.
        """
        snapshot, selection = self._select(where, sample)
        names = snapshot.schema.names if columns is None else list(columns)
        whole = snapshot.schema if selection.sample is None else with_weight(snapshot.schema, columns)
        schema = pa.schema([field_of(whole, name) for name in names])

        request = ReadRequest(names, whole, selection.where, sample=selection.sample)
        fragments = plan_fragments(snapshot, selection, SPLIT_ROWS)
        return pa.concat_tables([schema.empty_table(), *in_threads(partial(read_arrow, request=request), fragments)])

    def delete(
        self,
        where: str,
        *,
        dry_run: bool = False,
        caches: Sequence[str | os.PathLike[str]] = (),
        copies: Sequence[str | os.PathLike[str]] = (),
        verify: bool = False,
        threads: int | None = None,
    ) -> DeleteReport:
        """Delete the rows for which `where` is true: see `warehouse.delete`.

        `where` may have `column in file("ids.parquet")`. `dry_run`: only find the rows. `caches`: folders of caches,
        from which the entries of files with such rows are removed. `verify`: look for the rows again, in the table, in
        caches, and in `copies`, which are tables with the columns of `where`. `threads`: how many read and write
        (default: one per core).
        """
        if not isinstance(self.uri, str) or any(value not in (None, "auto", "hive") for value in self._state.values()):
            raise TableError(f"delete changes the files of one folder: got {self!r}, expected Table(folder)")
        request = DeleteRequest(
            where=where,
            dry_run=dry_run,
            caches=tuple(os.fspath(each) for each in caches),
            copies=tuple(os.fspath(each) for each in copies),
            verify=verify,
        )
        return delete_rows(self.uri, request, threads=threads)

    def optimize(
        self,
        target: str | os.PathLike[str],
        settings: Settings | None = None,
        *,
        work_dir: str = ".feedline",
        projection: Names = (),
        map: Map | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        **options: Any,
    ) -> OptimizeReport:
        """Write the table to `target` in a layout that is cheap to read: see `warehouse.optimize`.

        `settings`: a value, or its fields as options, such as `cluster_by="session_id", order="popular"` (see
        `Settings.of`). Popular columns are those that runs of Feedline read most, from the usage record in `work_dir`.
        `projection`: columns to compare the cost of reading. `map` runs the tasks (default: `threads` threads here),
        within `memory_bytes` (default: half of the free memory).
        """
        layout = Settings.of(**options) if settings is None else replace(settings, **options)
        snapshot = self.snapshot()
        if layout.popular:
            layout = replace(layout, order=popular_columns(load_uses(work_dir, snapshot.uri)))
            if not layout.order:
                raise TableError(
                    f"no run on {redact(snapshot.uri)} is in the usage record of {redact(work_dir)}: expected at least "
                    "one. Name the work_dir of its runs, or list the columns"
                )
        return optimize(
            snapshot,
            os.fspath(target),
            layout,
            source=names_of(self.uri),
            projection=names_of(projection),
            runner=TaskRunner(map=map, threads=threads or available_cores(), memory_bytes=memory_bytes),
        )
