"""Run `feedline fit` and `feedline fit --show`.

Runs in: the process of the command. The work is done by threads of this process, or by the Dask workers of `cluster`.
Ctrl-C and SIGTERM end it in order: the previous artifact set is still current.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from feedline.commands.cluster.connect import pipeline_cluster
from feedline.commands.consoles import console_on, say
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec, load_spec
from feedline.config.overrides import parse_overrides
from feedline.errors import SpecError
from feedline.fitting.fit_report import FitFacts, FitReport, load_fit_facts
from feedline.pipeline import Pipeline
from feedline.service.cluster.fit_workers import DaskWorkers
from feedline.transforms.learning.learner import WARNING

_SHOWN_FEATURES = 4
_SHOWN_FACTS = 3
_SHOWN_CHARACTERS = 60


def fit(
    pipeline: PipelinePath,
    show: Annotated[bool, typer.Option("--show", help="Show the current fits and their rows; fit nothing.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Fit only what is missing.")] = False,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Fit the ops that learn from the table, such as vocabularies and means, and keep the result under `artifacts`."""
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    if show and missing:
        raise SpecError("--show fits nothing: got --missing beside it. Leave out one of the two")
    if show:
        fits = load_fit_facts(spec)
        _show_facts(fits, console_on(stderr=as_json))
        facts: Any = [asdict(one) for one in fits]
    else:
        report = _run_fit(spec, missing=missing)
        _show_report(report, console_on(stderr=as_json))
        facts = asdict(report)
    if as_json:
        print(json.dumps(facts))


def _run_fit(spec: PipelineSpec, *, missing: bool) -> FitReport:
    with (
        ProgressLine() as line,
        exit_on_signals(lambda: line.note("stopped: the previous artifact set is still current")),
        pipeline_cluster(spec) as cluster,
    ):
        fit = partial(Pipeline(spec).fit, missing=missing)
        return fit() if cluster is None else fit(workers=DaskWorkers(cluster), map=cluster.map)


def _show_report(report: FitReport, console: Console) -> None:
    if not report.fits:
        console.print("nothing to fit: no op of the pipeline learns from data", highlight=False)
    else:
        console.print(_table(report.fits))
        summary = "nothing was missing"
        if report.made:
            summary = (
                f"{_quantity(report.made, 'statistic')} of {report.rows:,} rows in "
                f"{_quantity(report.passes, 'pass', 'passes')}, {report.nbytes_read:,} bytes read, "
                f"{report.seconds:.1f} s"
            )
        say(console, f"{summary}: {report.folder}")
    for one in report.fits:
        if WARNING in one.shown:
            say(console, f"warning: {one.op} of {', '.join(one.features)}: {one.shown[WARNING]}")
    say(console, f"golden vectors: {report.vectors} rows" if report.vectors else "golden vectors: none")


def _show_facts(facts: tuple[FitFacts, ...], console: Console) -> None:
    if not facts:
        console.print("nothing is fitted", highlight=False)
        return
    for one in facts:
        console.print(f"{one.op}: {', '.join(one.features)}", highlight=False, markup=False, style="bold")
        lines = {
            "parameters": ", ".join(f"{name} {_format_value(value)}" for name, value in one.parameters.items())
            or "none",
            "ops": one.chain,
            "columns": ", ".join(f"{name} {kind}" for name, kind in one.types.items()),
            **{name: value if name == WARNING else _format_value(value) for name, value in one.shown.items()},
            "fitted": f"{one.when} on {one.rows:,} rows of {one.table}"
            + (f" where {one.where}" if one.where else "")
            + (f", a sample of {one.sample['fraction']}" if one.sample else "")
            + "".join(f", {each.table}" + (f" where {each.where}" if each.where else "") for each in one.further),
            "pipeline": one.pipeline,
            "fit.where": one.fit_where or "not declared",
            "snapshot": one.snapshot,
            "digest": one.digest,
        }
        for name, text in lines.items():
            say(console, f"  {name:<12} {text}")


def _table(facts: tuple[FitFacts, ...]) -> Table:
    table = Table(expand=False)
    for name in ("features", "op", "learnt", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left")
    for one in facts:
        more = len(one.features) - _SHOWN_FEATURES
        names = ", ".join(one.features[:_SHOWN_FEATURES]) + (f" and {more} more" if more > 0 else "")
        table.add_row(escape(names), one.op, escape(_short_facts(one.shown)), f"{one.rows:,}")
    return table


def _short_facts(shown: Mapping[str, Any]) -> str:
    texts = [f"{name} {_format_value(value)}" for name, value in shown.items() if name != WARNING]
    return ", ".join([*texts[:_SHOWN_FACTS], *("…" for _ in texts[_SHOWN_FACTS : _SHOWN_FACTS + 1])])


def _quantity(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _format_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
