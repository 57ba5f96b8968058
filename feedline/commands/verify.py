"""Run `feedline verify`: compare what trainers get, or got, with the plan.

Runs in: the process of the command, which computes the expected rows; feeders are processes of their own. Ctrl-C and
SIGTERM end them in order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from feedline.commands.display.progress_line import ProgressLine
from feedline.commands.exit_status import exit_on_sigterm
from feedline.commands.run import RunRequest, feeder_accesses
from feedline.errors import PlanError, SpecError, StateError
from feedline.loader.ring.launch import FeederAccess
from feedline.loader.state import read_state
from feedline.pipeline import Pipeline
from feedline.planning.schedule import Schedule
from feedline.resources.instructions import active_instructions, choose_cpu, cpu_environment, level_instructions
from feedline.service.verify.findings import VerifyFindings
from feedline.service.verify.receipts import ReceiptFindings, StepRun, read_receipts, verify_receipts
from feedline.service.verify.rings import verify_rings
from feedline.spec import PipelineSpec, load_spec
from feedline.spec.overrides import parse_overrides

_SHOWN = 20


def verify(
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE.YAML", help="The pipeline.")],
    ranks: Annotated[int | None, typer.Option(min=1, help="Start the feeders of this many ranks (default: 1).")] = None,
    epoch: Annotated[int | None, typer.Option(min=0, help="The epoch (default: the state's, or 0).")] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Steps A to B - 1 (default: from the state's, or the first, to the last)."),
    ] = None,
    state: Annotated[Path | None, typer.Option(help="Resume from a state, the JSON of a dataset's state_dict.")] = None,
    receipts: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Compare receipts of a training instead: a file of JSON lines, a folder."),
    ] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override a key: --set batch.tail=pad")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
) -> None:
    """Compare what trainers get, or got, with the plan, row by row. Exit status 1 if anything differs."""
    values = parse_overrides(overrides or [])
    spec = load_spec(pipeline, values)
    _compute_as_feeders_do(spec)
    line = ProgressLine()
    try:
        with exit_on_sigterm():
            if receipts is None:
                here = range(ranks or 1)
                request = RunRequest(
                    path=pipeline.absolute(), overrides=values, spec=spec, ranks=here, world_size=len(here)
                )
                accesses = list(feeder_accesses(request).values())
                facts, findings = _verify_rings(Pipeline(spec), accesses, epoch, steps, state, line)
            elif any(option is not None for option in (ranks, epoch, steps, state)):
                raise SpecError("--receipts name ranks, epochs and steps themselves: leave out the other options")
            else:
                facts, findings = _verify_receipts(Pipeline(spec), receipts, line)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        line.close()
    print(json.dumps(facts) if as_json else report(facts, findings))
    if not findings.equal:
        raise typer.Exit(1)


def _verify_rings(
    pipeline: Pipeline,
    accesses: Sequence[FeederAccess],
    epoch: int | None,
    steps: str | None,
    state: Path | None,
    line: ProgressLine,
) -> tuple[dict[str, Any], VerifyFindings]:
    """Compare what feeders deliver with the plan."""
    saved = {"epoch": 0, "step": 0} if state is None else read_state(state)
    plan = pipeline.plan(world_size=len(accesses)) if state is None else pipeline.plan_for(saved)
    plan.require_fitted()
    epoch = saved["epoch"] if epoch is None else epoch
    schedule = plan.schedule(epoch)
    chosen = parse_steps(steps, schedule, saved["step"] if epoch == saved["epoch"] else 0)
    findings = verify_rings(
        plan,
        accesses,
        epoch=epoch,
        steps=chosen,
        progress=lambda step: line.show(f"  step {step:,} of {chosen.start:,} to {chosen.stop - 1:,}"),
    )
    facts = {"epoch": epoch, "steps": [chosen.start, chosen.stop], "ranks": len(accesses), "lanes": plan.lanes}
    return {"plan": plan.fingerprint, "snapshot": plan.snapshot_name, **facts, **findings.to_json()}, findings


def _verify_receipts(
    pipeline: Pipeline, names: Sequence[str], line: ProgressLine
) -> tuple[dict[str, Any], ReceiptFindings]:
    """Compare a training's receipts with the plan."""
    found, unreadable = read_receipts(_files(names))
    findings = verify_receipts(
        found, pipeline.plan_for, progress=lambda done: line.show(f"  {done:,} of {len(found):,} batches")
    )
    findings.unreadable = unreadable
    return findings.to_json(), findings


def parse_steps(text: str | None, schedule: Schedule, first: int) -> range:
    """The steps of `A:B`, `A:`, `:B` or `A`.

    Raises SpecError for other text, PlanError for steps that the epoch does not have.
    """
    begin, colon, end = (text or f"{first}:").partition(":")
    try:
        start = int(begin) if begin else schedule.first_step
        stop = (int(end) if end else schedule.steps) if colon else start + 1
    except ValueError:
        raise SpecError(f"--steps are two integers with a colon between them: got {text!r}, such as 0:100") from None
    start = max(start, schedule.first_step) if text is None else start
    if not schedule.first_step <= start < stop <= schedule.steps:
        raise PlanError(
            f"--steps are out of range: got {start}:{stop}, expected steps of {schedule.first_step}:{schedule.steps}"
        )
    return range(start, stop)


def _files(names: Sequence[str]) -> list[Path]:
    """The files that are named: each is a file, or a folder of `*.jsonl`. Raises StateError for none."""
    files: list[Path] = []
    for name in names:
        path = Path(name)
        found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
        if not found or not found[0].is_file():
            raise StateError(f"--receipts names no file: got {name!r}, expected a file, or a folder with *.jsonl")
        files += found
    return files


def _compute_as_feeders_do(spec: PipelineSpec) -> None:
    """Start this program again with the instructions of `cluster.cpu`, which decide the last bits of floats."""
    cpu = choose_cpu(spec.cluster.cpu, shared=spec.cluster.scheduler is not None)
    if set(level_instructions(cpu)) != set(active_instructions()):
        words = [sys.executable, "-P", "-m", "feedline", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, **cpu_environment(cpu)})


def report(facts: dict[str, Any], findings: VerifyFindings) -> str:
    """The findings as text: a summary, then the first differences, one per line."""
    compared = f"{findings.batches:,} batches, {findings.rows:,} rows"
    if findings.padding:
        compared += f" and {findings.padding:,} of padding"
    if isinstance(findings, ReceiptFindings):
        lines = [f"receipts of {compared}", *_receipt_lines(findings)]
    else:
        first, stop = facts["steps"]
        ranks = "1 rank" if facts["ranks"] == 1 else f"{facts['ranks']} ranks"
        where = f"epoch {facts['epoch']}, steps {first:,} to {stop - 1:,}, {ranks}"
        lines = [f"plan {facts['plan'][:12]}: {where}: {compared}", f"rows that came before: {findings.repeated:,}"]
    lines.append("all as planned" if findings.equal else f"differences: {findings.count:,}")
    lines += [f"  {difference.text()}" for difference in findings.differences[:_SHOWN]]
    if findings.count > _SHOWN:
        lines.append(f"  and {findings.count - _SHOWN:,} more")
    return "\n".join(lines)


def _receipt_lines(findings: ReceiptFindings) -> list[str]:
    lines = _step_lines("received", findings.received)
    lines += _step_lines("received more than once, as after a resume", findings.again)
    lines += _step_lines("missing", findings.missing)
    if findings.unreadable:
        lines.append(f"lines that are cut off: {findings.unreadable:,}")
    return lines


def _step_lines(title: str, runs: Sequence[StepRun]) -> list[str]:
    lines = [f"{title}: {run.text()}" for run in runs[:_SHOWN]]
    return lines if len(runs) <= _SHOWN else [*lines, f"{title}: and {len(runs) - _SHOWN:,} more"]
