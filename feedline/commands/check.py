"""Run `feedline check`: read all files of a pipeline's table, or compute all its rows, and report what is wrong.

Runs in: the process of the command; files are read in threads there, or on the cluster of pipeline.yaml. Bad files are
recorded in work_dir for any `on_bad_file`, for runs that skip them. Files found good are removed from the record: after
a deep check all that it read, else those whose footer was bad.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any

import typer

from feedline.commands.cluster.connect import pipeline_cluster
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath, Source
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec, load_spec
from feedline.config.overrides import parse_overrides
from feedline.dataclass import dataclass
from feedline.errors import SpecError, StoreError, TableError
from feedline.expressions.column_parts import source_columns
from feedline.fitting.row_check import MAX_SHARE, RowReport
from feedline.pipeline import Pipeline
from feedline.planning.exclusions import matching_exclusion
from feedline.planning.nulls import Gaps, absence_line, find_gaps
from feedline.planning.read_columns import read_columns_of
from feedline.planning.table_snapshot import as_read, impressions_schema, listing_of_source, schema_rules
from feedline.service.cluster.cluster import Cluster
from feedline.service.cluster.fit_workers import DaskWorkers
from feedline.warehouse.bad_files import BadFile, load_findings, record_findings
from feedline.warehouse.parquet.schemas import SchemaRules
from feedline.warehouse.scan import Findings, Problem, check_footers, check_pages, check_presence
from feedline.warehouse.selection.exclusion import covers
from feedline.warehouse.selection.select import screen_rows
from feedline.warehouse.snapshot.take import snapshot_of
from feedline.warehouse.storage.locations import redact

_TASKS_AHEAD = 8  # tasks per thread submitted to a cluster at once: the rest waits, so that progress can be shown


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """The result of a check.

    columns: those whose pages were decoded; empty without `deep`. gaps: nulls and missing columns in the files without
    other problems; None if these do not form a table. expects_absent: pipeline.yaml allows files to lack columns.
    """

    table: str
    files: int
    ignored: int
    rows: int
    deep: bool
    columns: tuple[str, ...]
    bad_files: tuple[BadFile, ...]
    problems: tuple[Problem, ...]
    gaps: Gaps | None
    expects_absent: bool
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether a run would find nothing unexpected."""
        found = self._found
        return not (self.bad_files or self.problems or found.nulls or (found.absent and not self.expects_absent))

    @property
    def _found(self) -> Gaps:
        return self.gaps or Gaps()

    def facts(self) -> dict[str, Any]:
        """The report as plain values, for `--json`."""
        return {
            "table": self.table,
            "files": self.files,
            "files_ignored": self.ignored,
            "rows": self.rows,
            "deep": self.deep,
            "columns": list(self.columns),
            "bad_files": [{"path": bad.file, "reason": bad.reason, "rows": bad.rows} for bad in self.bad_files],
            "problems": [{"path": problem.file, "reason": problem.reason} for problem in self.problems],
            **self._found.facts(),
            "seconds": self.seconds,
        }

    def text(self) -> str:
        """The report for people."""
        scope = f"every page of {len(self.columns):,} columns" if self.deep else "footers"
        lines = [f"{self.table}: {self.files:,} files, {self.rows:,} rows; checked {scope} in {self.seconds:.1f} s"]
        lines += [f"bad      {bad.line()}" for bad in self.bad_files]
        lines += [f"problem  {problem.file}: {problem.reason}" for problem in self.problems]
        lines += [f"nulls    {found.line()}" for found in self._found.nulls]
        lines += [f"missing  {absence_line(found)}" for found in self._found.absent]
        if len(lines) == 1:
            return f"{lines[0]}: nothing found"
        if self.gaps is None:
            lines.append(
                "nulls and missing columns were not checked: the other files do not form a table that fits the pipeline"
            )
        if self._found.absent and not self.expects_absent:
            lines.append("To allow files that lack a column, write `missing: null` in source.schema")
        if self.bad_files or self.problems:
            lines.append(
                f"{len(self.bad_files):,} bad files, {len(self.problems):,} with other problems. "
                "`on_bad_file: skip` leaves the bad ones out of the plan, not the others"
            )
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class CheckReports:
    """The results of all sources. names: of several; empty for a pipeline with one `source`."""

    names: tuple[str, ...]
    reports: tuple[CheckReport, ...]

    @property
    def clean(self) -> bool:
        """Whether a run would find nothing unexpected."""
        return all(report.clean for report in self.reports)

    def facts(self) -> dict[str, Any]:
        """The reports as plain values: of several sources, a list `sources` with the `name` of each."""
        if not self.names:
            return self.reports[0].facts()
        pairs = zip(self.names, self.reports, strict=True)
        return {"sources": [{"name": name, **report.facts()} for name, report in pairs]}

    def text(self) -> str:
        """The reports for people."""
        if not self.names:
            return self.reports[0].text()
        pairs = zip(self.names, self.reports, strict=True)
        return "\n".join(f"source {name}: {report.text()}" for name, report in pairs)


def check_tables(spec: PipelineSpec, *, deep: bool = False, all_columns: bool = False) -> CheckReports:
    """Check the table of each source, as `run_check`."""
    reports = [run_check(each, deep=deep, all_columns=all_columns) for each in spec.per_source()]
    return CheckReports(tuple(source.name for source in spec.sources), tuple(reports))


def check(
    pipeline: PipelinePath,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every page of the columns that the pipeline reads.")] = (
        False
    ),
    all_columns: Annotated[bool, typer.Option("--all-columns", help="With --deep: decode all columns.")] = False,
    rows: Annotated[
        bool, typer.Option("--rows", help="Compute all rows instead, and write bad ones for source.exclude.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="With --rows: a file for the exclusion, besides work_dir.")] = None,
    max_rows: Annotated[int | None, typer.Option(min=0, help="With --rows: more bad rows are an error.")] = None,
    max_share: Annotated[
        float | None, typer.Option(min=0, max=1, help=f"With --rows: so is a larger share (default: {MAX_SHARE}).")
    ] = None,
    earlier: Annotated[
        str | None, typer.Option("--from", help="With --rows: an exclusion whose unchanged files are not read again.")
    ] = None,
    overrides: Overrides = None,
    source: Source = None,
    as_json: AsJson = False,
) -> None:
    """Find bad files, nulls that features cannot hold and, with --rows, bad rows, before a run does.

    Exit status 1 if there are any; with --rows, if more rows are bad than are allowed.
    """
    if all_columns and not deep:
        raise SpecError("--all-columns needs --deep: got it alone. Add --deep")
    needing = {"--out": out, "--max-rows": max_rows, "--max-share": max_share, "--from": earlier}
    if not rows and (names := [name for name, value in needing.items() if value is not None]):
        raise SpecError(f"{names[0]} needs --rows: got it alone. Add --rows")
    if rows and deep:
        raise SpecError("--rows and --deep are two checks: got both. Run one after the other")
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    spec = spec if source is None else spec.for_source(source)
    if rows:
        share = MAX_SHARE if max_share is None else max_share
        found = _check_rows(spec, out=out, max_rows=max_rows, max_share=share, earlier=earlier)
        print(json.dumps(asdict(found)) if as_json else found.text())
        return
    with ProgressLine(), exit_on_signals():
        reports = check_tables(spec, deep=deep, all_columns=all_columns)
    print(json.dumps(reports.facts()) if as_json else reports.text())
    if not reports.clean:
        raise typer.Exit(1)


def _check_rows(spec: PipelineSpec, **options: Any) -> RowReport:
    """Check the rows in threads, or on the cluster. Ctrl-C and SIGTERM end it in order."""
    with (
        ProgressLine() as line,
        exit_on_signals(lambda: line.note("stopped: no exclusion was written")),
        pipeline_cluster(spec) as cluster,
    ):
        check_rows = partial(Pipeline(spec).check_rows, **options)
        return check_rows() if cluster is None else check_rows(workers=DaskWorkers(cluster), map=cluster.map)


def run_check(spec: PipelineSpec, *, deep: bool = False, all_columns: bool = False) -> CheckReport:
    """Check the table of a pipeline. Raises what listing it raises; faults of files are in the report.

    `deep`: decode every page of the columns that the pipeline reads, or of all columns with `all_columns`.
    """
    began = time.perf_counter()
    listing = listing_of_source(spec)
    columns: tuple[str, ...] = ()
    with pipeline_cluster(spec, computes=False) as cluster:
        map = None if cluster is None else partial(_on_cluster, cluster)
        rules = schema_rules(spec.source)
        findings = check_footers(listing, map=map, rules=rules)
        _remember(spec.work_dir, findings, deep=False)
        if rules.missing_error and findings.kinds:
            schema = impressions_schema(spec, findings.table_schema())
            read = read_columns_of(spec, schema)
            check_presence(findings, read.parts(schema), read.where)
        gaps = _gaps(spec, findings, rules)
        if deep and findings.kinds:
            columns = _columns(spec, findings, all_columns=all_columns)
            check_pages(findings, columns, map=map, decoder=spec.source.decoder)
            _remember(spec.work_dir, findings, deep=True)
    return CheckReport(
        table=redact(listing.uri),
        files=len(listing.files),
        ignored=listing.ignored,
        rows=findings.rows,
        deep=deep,
        columns=columns,
        bad_files=tuple(sorted(findings.bad, key=lambda bad: bad.file)),
        problems=tuple(sorted(findings.problems, key=lambda problem: problem.file)),
        gaps=gaps,
        expects_absent="missing" in spec.source.schema_rules.model_fields_set,
        seconds=time.perf_counter() - began,
    )


def _gaps(spec: PipelineSpec, findings: Findings, rules: SchemaRules) -> Gaps | None:
    """Find nulls and missing columns, by footers, in the rows that a run selects of the good files.

    It takes the snapshot of the next run. None if the good files do not form a table that fits the pipeline; if all
    files are good, that is an error.
    """
    listing, good = findings.listing, set(findings.good_files())
    paths = listing.files["path"].to_pylist()
    faulty = [path for index, path in enumerate(paths) if findings.name(index) not in good]
    if len(faulty) == len(paths):
        return None
    try:
        snapshot = snapshot_of(listing, rules=rules, work_dir=spec.work_dir, on_bad=lambda path, error: None)
        snapshot = snapshot.without(faulty) if faulty else snapshot
        snapshot = as_read(spec, snapshot)
        columns = read_columns_of(spec, snapshot.schema)
    except StoreError:
        raise
    except (TableError, SpecError):
        if not faulty:
            raise
        return None
    exclusion = matching_exclusion(spec, snapshot)
    selection = screen_rows(snapshot, columns.where, sample=columns.sample).without(exclusion)
    gaps = find_gaps(columns, snapshot, selection.rows, columns.where)
    return replace(gaps, nulls=()) if covers(exclusion, columns.features.fingerprint[:32]) else gaps


def _columns(spec: PipelineSpec, findings: Findings, *, all_columns: bool) -> tuple[str, ...]:
    """The stored columns to decode: all, or those that the pipeline reads."""
    if all_columns:
        return tuple(findings.schema.names)
    schema = impressions_schema(spec, findings.table_schema())
    needed = source_columns(schema, sorted(read_columns_of(spec, schema).columns(schema)))
    return tuple(name for name in needed if name in schema.names and name not in findings.partition)


def _remember(work_dir: str, findings: Findings, *, deep: bool) -> None:
    recorded = load_findings(work_dir)
    good = findings.good_files()
    good_files = [file for file in good if file in recorded and (deep or recorded[file].footer_digest is None)]
    record_findings(work_dir, findings.bad, good_files=good_files)


def _on_cluster(cluster: Cluster, function: Callable[[Any], Any], tasks: Sequence[Any]) -> Iterator[Any]:
    at_once = _TASKS_AHEAD * cluster.threads()
    for start in range(0, len(tasks), at_once):
        yield from cluster.map(function, tasks[start : start + at_once])
