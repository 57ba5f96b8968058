"""Stage situations of which the bottleneck is known, ask for the verdict, take its advice, and measure again.

    python benchmarks/explain.py                 all situations, one after another: about twenty minutes
    python benchmarks/explain.py --only STORE    those whose name has this word; repeatable
    python benchmarks/explain.py --eight         the eight bottlenecks that the verdict must name
    python benchmarks/explain.py --tiny          small and short, to see that it runs: figures say nothing

Exit status 1 where a verdict does not name the staged bottleneck, its advice is not given, or the measured gain is not
within 25 % of the predicted one. Gains are rows per second after the change over those before it, or, of advice on
data, CPU seconds per million rows of blocks less; each as `feedline explain` predicts it. Those need a machine without
other work, CPU seconds less so.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import yaml
from explain_situations import EIGHT, SITUATIONS, Staged, fill_cache

from feedline.commands.run import RunRequest, feeder_accesses
from feedline.config import load_spec
from feedline.loader.limits.machine_advice import Advice
from feedline.loader.limits.run_facts import Interval, sum_samples
from feedline.loader.limits.verdict import Verdict
from feedline.resources.cgroups import available_cores
from feedline.workbench.explain.cost_process import measure_apart
from feedline.workbench.explain.explained_costs import Explanation, Measuring, verdict_with_costs
from feedline.workbench.explain.short_run import run_shortly

WITHIN = 0.25
_WARM_UP, _SAMPLES = 4, 10  # samples that are left out until all workers have come, of so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure. seconds: of a run; cost_s: CPU seconds of measuring costs; rounds: runs before and after a
    change, in turn."""

    seconds: float = 8.0
    cost_s: float = 20.0
    rounds: int = 2
    tiny: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said of a situation, and what came of it. problems: of the verdict and the advice that was asked for.

    rank: of the taken advice among all. unit: of both gains. predicted: with its interval (None: unknown).
    """

    name: str
    sentence: str
    named: str
    problems: tuple[str, ...]
    advice: str
    rank: int
    unit: str
    predicted: float
    interval: Interval | None
    measured: float

    @property
    def ratio(self) -> float:
        """The measured gain over the predicted one."""
        return self.measured / self.predicted if self.predicted else 0.0

    @property
    def is_within(self) -> bool:
        return abs(self.ratio - 1) <= WITHIN

    @property
    def is_right(self) -> bool:
        return not self.problems and self.is_within


def explain_run(path: Path, step_s: float | None, seconds: float) -> Explanation:
    """A short run of a pipeline, without its first samples."""
    spec = load_spec(path, {})
    request = RunRequest(spec=spec, ranks=[0], world_size=1)
    measuring = Measuring(seconds=seconds, stop=lambda: False, sample_s=seconds / _SAMPLES)
    found = run_shortly(feeder_accesses(request)[0], spec, measuring, step_s=step_s, cores=available_cores())
    return replace(found, ranks=(replace(found.slowest, samples=found.slowest.samples[_WARM_UP:]),))


def block_cpu_s(found: Explanation) -> float:
    """CPU seconds per million rows of a run's blocks."""
    facts = sum_samples(found.slowest.samples)
    return facts.block_cpu_s / max(facts.block_rows, 1) * 1e6


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Run this process, and those that it starts, on some cores (0: all)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[: count or len(before)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def judge_situation(name: str, folder: Path, effort: Effort) -> Outcome:
    """Stage a situation, and take its advice."""
    folder.mkdir(parents=True, exist_ok=True)
    with SITUATIONS[name](folder, effort.tiny) as staged:
        path, changed = folder / "pipeline.yaml", folder / "changed.yaml"
        path.write_text(yaml.safe_dump(staged.document))
        with on_cores(staged.cores):
            before = explain_run(path, staged.step_s, effort.seconds)
            costs = measure_apart(load_spec(path, {}), budget_s=effort.cost_s) if _needs_costs(staged) else None
        verdict = verdict_with_costs(before, costs)
        advice = _advice_of(verdict, staged)
        if (advice is None) != (staged.kind is None):
            return _outcome(name, staged, verdict, [advice], 0.0)
        document = copy.deepcopy(staged.document)
        staged.apply(advice, document, folder)
        changed.write_text(yaml.safe_dump(document))
        if staged.fill:
            fill_cache(changed)
        runs, gain = _measure_gain(staged, before, path, changed, effort)
        given = [_advice_of(verdict_with_costs(each, costs), staged) for each in runs]
        return _outcome(name, staged, verdict, given, gain)


def _advice_of(verdict: Verdict, staged: Staged) -> Advice | None:
    given = (each for each in verdict.advice if each.kind == staged.kind and staged.advised in each.change)
    return next(given, None)


def _needs_costs(staged: Staged) -> bool:
    """Whether advice is on data, or on threads without an end that a trainer sets: what they hold of the lock."""
    return _is_cpu(staged) or (staged.step_s is None and staged.kind == "threads")


def _is_cpu(staged: Staged) -> bool:
    return staged.gain == "CPU-s"


def _measure_gain(
    staged: Staged, before: Explanation, path: Path, changed: Path, effort: Effort
) -> tuple[list[Explanation], float]:
    """All runs before the change, in turn with others after it; rows per second after it over those before, or CPU
    seconds before less those after."""

    def run(path: Path, cores: int) -> Explanation:
        with on_cores(cores):
            return explain_run(path, staged.step_s, effort.seconds)

    old, new = [before], list[Explanation]()
    rounds = effort.rounds if staged.step_s is None else 1  # sleeps take the same each time
    for number in range(rounds):
        new.append(run(changed, staged.cores_after))
        if number + 1 < rounds:
            old.append(run(path, staged.cores))
    if _is_cpu(staged):
        return old, median(map(block_cpu_s, old)) - median(map(block_cpu_s, new))
    rates = [median(each.slowest.verdict().rows_per_s for each in runs) for runs in (new, old)]
    return old, rates[0] / rates[1]


def _outcome(name: str, staged: Staged, verdict: Verdict, given: Sequence[Advice | None], measured: float) -> Outcome:
    """verdict: on the first run. given: the advice on every run before the change, the first one's first: as the speed
    of machines varies, the median of what they predict counts."""
    advice, problems = given[0], list[str]()
    if verdict.limit not in staged.limits or verdict.stage not in staged.stages:
        problems.append(f"expected {' or '.join(staged.stages)} of {' or '.join(staged.limits)}")
    problems += [f"expected {word!r}" for word in staged.words if word not in verdict.sentence]
    if advice is None and staged.kind is not None:
        problems.append(f"expected advice on {staged.kind}")
    predicted, interval = 1.0, None
    if advice is not None and _is_cpu(staged):
        predicted, interval = median(each.cpu_s_saved for each in given if each), advice.cpu_interval
    elif advice is not None:
        predicted, interval = median(each.rows_ratio for each in given if each), advice.rows_interval
    return Outcome(
        name=name, sentence=verdict.sentence, named=f"{verdict.stage} ({verdict.limit})", problems=tuple(problems),
        advice="none" if advice is None else advice.change,
        rank=0 if advice is None else 1 + verdict.advice.index(advice), unit=staged.gain, predicted=predicted,
        interval=interval, measured=measured,
    )  # fmt: skip


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| situation | verdict | named | advice | predicted gain | measured | ratio | |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in outcomes:
        between = "" if each.interval is None else f" ({each.interval.low:.2f} to {each.interval.high:.2f})"
        rank = "" if each.rank < 2 else f" (number {each.rank})"
        advice = " ".join(each.advice.split())
        outcome = "; ".join(each.problems) or ("right" if each.is_within else f"not within {WITHIN:.0%}")
        yield (
            f"| {each.name} | {each.sentence} | {each.named} | `{advice}`{rank} | "
            f"{each.predicted:.2f}{between} {each.unit} | {each.measured:.2f} | {each.ratio:.2f} | {outcome} |"
        )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, help="of each run (default: 8; with --tiny 1)")
    parser.add_argument("--rounds", type=int, help="runs before and after a change, in turn (default: 2; --tiny 1)")
    parser.add_argument("--only", action="append", default=[], help="situations whose name has this word; repeatable")
    parser.add_argument("--eight", action="store_true", help="the eight bottlenecks that the verdict must name")
    parser.add_argument("--tiny", action="store_true", help="small tables and short runs; exit status 0")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and return the exit status."""
    options = parse(arguments)
    effort = Effort(seconds=1.0, cost_s=1.0, rounds=1, tiny=True) if options.tiny else Effort()
    effort = replace(effort, seconds=options.seconds or effort.seconds, rounds=options.rounds or effort.rounds)
    names = [
        name
        for name in (EIGHT if options.eight else SITUATIONS)
        if not options.only or any(word.lower() in name for word in options.only)
    ]
    if not names:
        print(f"--only names no situation: expected a word of {', '.join(SITUATIONS)}", file=sys.stderr)
        return 2
    root = Path(tempfile.mkdtemp(prefix="feedline-explain-"))
    outcomes = []
    try:
        for name in names:
            began_s = time.perf_counter()
            outcomes.append(judge_situation(name, root / name.replace(" ", "_"), effort))
            shutil.rmtree(root / name.replace(" ", "_"))
            print(f"{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    facts = [{**asdict(each), "ratio": each.ratio, "is_right": each.is_right} for each in outcomes]
    print(json.dumps(facts) if options.json else "\n".join(lines(outcomes)))
    return 0 if options.tiny or all(each.is_right for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
