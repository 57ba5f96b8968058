"""The command `feedline explain`: what limits a run, and what would change it.

Runs in: the process of the command; without --attach and --last beside a feeder of its own. Beside a run it
imports only what that needs: the others import their own.
"""

from __future__ import annotations

import math
import time
from typing import Annotated

import typer

from feedline.commands.consoles import print_facts
from feedline.commands.exit_status import Stop
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath, complete_source
from feedline.commands.progress_line import ProgressLine
from feedline.config import PipelineSpec, load_spec
from feedline.config.overrides import parse_overrides
from feedline.errors import FeedlineError, SpecError
from feedline.loader.ring.rendezvous import job_fingerprint
from feedline.loader.ring.status_files import live_statuses
from feedline.progress import report_progress
from feedline.resources.cgroups import available_cores
from feedline.service.worker_demand import job_name
from feedline.workbench.explain.cost_process import (
    ALONE_S,
    MeasuredCosts,
    attached_budget_s,
    measure_apart,
    watch_s_for_costs,
)
from feedline.workbench.explain.explain_table import explain_view
from feedline.workbench.explain.explained_costs import Measuring, explained_with_costs
from feedline.workbench.explain.observed_runs import explain_last, watch_feeders
from feedline.workbench.explain.short_run import run_shortly

_SECONDS, _ATTACHED_SECONDS = 10.0, 30.0  # the latter, so that the start is a small part


_CostSource = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="NAME",
        help="Of several `sources`, the one whose costs are measured (default: that with most rows of a step).",
        autocompletion=complete_source,
    ),
]

_CostSeconds = Annotated[
    float | None,
    typer.Option(
        "--cost-seconds",
        min=0.0,
        help="CPU seconds to measure what columns, ops and features cost (default: 20; with --attach up to 5, "
        "within 2 % of the cores' time; 0: none).",
    ),
]


def explain(
    pipeline: PipelinePath,
    overrides: Overrides = None,
    source: _CostSource = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds to measure, from the first batch on (default: 10, with --attach 30)."),
    ] = None,
    step_s: Annotated[
        float | None,
        typer.Option("--step-s", min=0.0, help="Seconds per step of a trainer to simulate (default: none)."),
    ] = None,
    attached: Annotated[bool, typer.Option("--attach", help="Explain the run of this pipeline on this host.")] = False,
    last: Annotated[bool, typer.Option("--last", help="Explain the last run of this pipeline.")] = False,
    headspace: Annotated[
        bool, typer.Option("--headspace", help="Also the largest gain that any loader could give; needs --step-s.")
    ] = False,
    store_mb_s: Annotated[
        float | None, typer.Option("--store-mb-s", min=0.001, help="MB/s that the store or disk delivers, if known.")
    ] = None,
    cost_s: _CostSeconds = None,
    as_json: AsJson = False,
) -> None:
    """Say what limits a run, and what would change it, by how much: a short run, or --attach, or --last."""
    _check_options(attached, last, step_s, headspace)
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    if source is not None:
        spec.for_source(source)  # refuses an unknown one
    seconds = seconds or (_ATTACHED_SECONDS if attached else _SECONDS)
    stop = Stop()
    store_bytes_per_s = None if store_mb_s is None else 1e6 * store_mb_s
    measuring = Measuring(seconds=seconds, stop=stop, store_bytes_per_s=store_bytes_per_s)
    with stop.on_signals(), ProgressLine():
        if last:
            from feedline.service.last_runs import last_status  # noqa: PLC0415 -- 0.1 s of CPU time

            explanation = explain_last(spec, last_status(spec), store_bytes_per_s=store_bytes_per_s)
        elif attached:
            explanation = watch_feeders(spec, job_name(spec.name, job_fingerprint(spec)), live_statuses, measuring)
        else:
            from feedline.commands.run import RunRequest, feeder_accesses  # noqa: PLC0415 -- 0.5 s of CPU time

            access = feeder_accesses(RunRequest(spec=spec, ranks=[0], world_size=1))[0]
            cores = available_cores()
            explanation = run_shortly(access, spec, measuring, step_s=step_s, cores=cores, headspace=headspace)
        costs, skipped = _costs(spec, source, cost_s, seconds if attached else None, stop)
    facts = explained_with_costs(explanation, costs, skipped)
    print_facts(facts, explain_view, as_json=as_json, highlight=False)
    if stop.status is not None:
        raise typer.Exit(stop.status)


def _check_options(attached: bool, last: bool, step_s: float | None, headspace: bool) -> None:
    if attached and last:
        raise SpecError("--attach and --last exclude each other: got both, expected one. Leave one out")
    if (attached or last) and (step_s is not None or headspace):
        raise SpecError(
            "--step-s and --headspace belong to a short run: got them with --attach or --last. Leave them out; in "
            "training, use dataset.headspace(batch)"
        )
    if headspace and not step_s:
        raise SpecError("--headspace needs a trainer: got none, expected one. Give --step-s")


def _costs(
    spec: PipelineSpec,
    source: str | None,
    budget_s: float | None,
    watched_s: float | None,
    stop: Stop,
) -> tuple[MeasuredCosts | None, str]:
    """What features cost; or None, and why. watched_s: for which a run was watched (None: there is none)."""
    if budget_s == 0 or stop():
        return None, "not measured"
    if budget_s is None and watched_s is not None:
        cores = available_cores()
        if not (budget_s := attached_budget_s(cores, watched_s)):
            return None, (
                f"not measured beside a run: of {watched_s:g} s with {cores:g} cores, 2 % are too little. "
                f"--seconds {watch_s_for_costs(cores)} is enough, --cost-seconds 5 takes what it needs"
            )
    began_s, most_s = time.monotonic(), ALONE_S if budget_s is None else budget_s

    def look() -> bool:
        seconds = int(time.monotonic() - began_s)
        report_progress("measuring costs", seconds, math.ceil(most_s) if seconds <= most_s else None, "s")
        return stop()

    try:
        attached = watched_s is not None
        return measure_apart(spec, budget_s=most_s, source=source, attached=attached, stop=look), ""
    except FeedlineError as error:
        return None, str(error)
