"""Run `feedline verify`: compare the batches that trainers received with the plan.

Runs in: the process of the command, which computes the expected rows. Ctrl-C and SIGTERM end it in order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from feedline.commands.exit_status import exit_on_signals
from feedline.commands.pipeline_arguments import AsJson, Overrides, PipelinePath
from feedline.commands.progress_line import ProgressLine
from feedline.errors import StateError
from feedline.pipeline import Pipeline
from feedline.resources.instructions import active_instructions, choose_cpu, cpu_environment, level_instructions
from feedline.service.verify.receipts import ReceiptFindings, StepRun, read_receipts, verify_receipts
from feedline.spec import PipelineSpec, load_spec
from feedline.spec.document.overrides import parse_overrides

_SHOWN = 20


def verify(
    pipeline: PipelinePath,
    receipts: Annotated[
        list[str], typer.Option(metavar="FILE", help="Receipts of a training: a file of JSON lines, or a folder.")
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare the batches that trainers received with the plan. Exit status 1 if any differs or is missing."""
    spec = load_spec(pipeline, parse_overrides(overrides or []))
    _compute_as_feeders_do(spec)
    with ProgressLine(), exit_on_signals():
        found, unreadable = read_receipts(_files(receipts))
        findings = verify_receipts(found, Pipeline(spec).plan_for)
        findings.unreadable = unreadable
    print(json.dumps(findings.to_json()) if as_json else report(findings))
    if not findings.equal:
        raise typer.Exit(1)


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
    cpu = choose_cpu(spec.cluster.cpu, shared=spec.cluster.is_elsewhere)
    if set(level_instructions(cpu)) != set(active_instructions()):
        words = [sys.executable, "-P", "-m", "feedline", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, **cpu_environment(cpu)})


def report(findings: ReceiptFindings) -> str:
    """The findings as lines: a summary, then the first differences."""
    compared = f"{findings.batches:,} batches, {findings.rows:,} rows"
    if findings.padding:
        compared += f" and {findings.padding:,} of padding"
    lines = [f"receipts of {compared}", *_step_lines("received", findings.received)]
    lines += _step_lines("received more than once, as after a resume", findings.again)
    lines += _step_lines("missing", findings.missing)
    if findings.unreadable:
        lines.append(f"lines that are cut off: {findings.unreadable:,}")
    lines.append("all as planned" if findings.equal else f"differences: {findings.count:,}")
    lines += [f"  {difference.text()}" for difference in findings.differences[:_SHOWN]]
    if findings.count > _SHOWN:
        lines.append(f"  and {findings.count - _SHOWN:,} more")
    return "\n".join(lines)


def _step_lines(title: str, runs: Sequence[StepRun]) -> list[str]:
    lines = [f"{title}: {run.text()}" for run in runs[:_SHOWN]]
    return lines if len(runs) <= _SHOWN else [*lines, f"{title}: and {len(runs) - _SHOWN:,} more"]
