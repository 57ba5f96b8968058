"""Plant faults in the package, one after the other, and find out which of them the tests catch.

    python tools/mutations.py --list
    python tools/mutations.py --collect --data DIR        # the whole suite, traced; once per state of the code
    python tools/mutations.py --coverage --data DIR       # lines covered, per package
    python tools/mutations.py --run [NAME ...] --data DIR --out report.json
    python tools/mutations.py --survivors --data DIR --out report.json
    python tools/mutations.py --compare before.json after.json

`--collect` stores in DIR which test runs which line, also in feeders, Dask workers and commands, and how long each test
takes. `--run` needs these data for the same state of the code: for each fault of `mutation_table.py` it runs the tests
that reach the changed lines, those of the module's own file and then the cheapest first, until one fails. Tests beyond
`--budget` seconds are omitted, which the report notes ("capped"). A fault for which no test fails has survived;
`--survivors` runs the whole suite for each survivor. A test counts only if it passes without the fault. A test run that
takes longer than `--limit` seconds, or dies, has caught the fault.

Faults are planted in a copy of the checkout. The report is written after every fault; faults that it contains are not
run again. `--compare` fails if a fault that was caught is no longer caught. Requires the package `coverage` in the
environment that runs this, so that child processes find it, too.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import psutil
from coverage_contexts import CONTEXT_VARIABLE
from mutation_table import MUTATIONS, Mutation

TOOLS = Path(__file__).resolve().parent
DATA, DURATIONS = "contexts", "junit.xml"
CACHES = (".feedline", "__pycache__")
OUTPUTS = (".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", "build", "dist", "warehouse")
WHOLE_SUITE = ("--numprocesses", "2", "--dist", "loadfile")
MAX_FAILURES = 20  # failures after which a whole suite with a fault stops
_COVERAGE = """[run]
source = {root}/feedline
parallel = true
data_file = {data}
context = ${{{variable}-}}
sigterm = true
patch = _exit
disable_warnings = no-data-collected,module-not-measured,couldnt-parse,no-sysmon,module-not-imported,already-imported
"""


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a mutation's string: its file below the checkout, its characters and its lines.

    `lines`: those of the enclosing statement; of a compound statement, its head.
    """

    file: str
    start: int
    stop: int
    lines: range


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a run of pytest: what failed, and how ("failure", "timeout", "crash"); "" if all passed."""

    how: str
    failed: tuple[str, ...] = ()


@dataclass
class Suite:
    """The tests by the lines that they run, and the seconds of each."""

    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    @classmethod
    def load(cls, data: Path) -> Suite:
        """Load what `--collect` stored in a folder."""
        stored = coverage.CoverageData(str(data / DATA))
        stored.read()
        lines = {
            f"feedline/{name.rpartition('/feedline/')[2]}": stored.contexts_by_lineno(name)
            for name in stored.measured_files()
        }
        seconds: defaultdict[str, float] = defaultdict(float)
        for case in xml.etree.ElementTree.parse(data / DURATIONS).iter("testcase"):
            name = case.get("name", "").partition("[")[0]
            seconds[f"{case.get('classname')}.{name}"] += float(case.get("time", 0))
        return cls(lines, seconds)

    def reaching(self, place: Place) -> list[str]:
        """Return the tests that run one of these lines: those of the module's own file first, then the cheapest."""
        lines = self.lines.get(place.file, {})
        own = f"test_{Path(place.file).name}"
        tests = {test for line in place.lines for test in lines.get(line, ()) if test}
        return sorted(tests, key=lambda test: (Path(test.partition("::")[0]).name != own, self.cost(test), test))

    def cost(self, test: str) -> float:
        """Return the seconds of a test with all its parameters."""
        path, _, names = test.partition("::")
        return self.seconds.get(f"{path.removesuffix('.py').replace('/', '.')}.{names.replace('::', '.')}", 1.0)

    def chosen(self, tests: Sequence[str], budget_s: float) -> list[str]:
        """Return the first tests that fit the budget, at least one; file by file, so that fixtures are shared."""
        spent = 0.0
        files: defaultdict[str, list[str]] = defaultdict(list)
        for test in tests:
            spent += self.cost(test)
            if files and spent > budget_s:
                break
            files[test.partition("::")[0]].append(test)
        first, *others = files.values() or [[]]
        others.sort(key=lambda tests: sum(map(self.cost, tests)))
        return [test for tests in (first, *others) for test in tests]


@dataclass
class Trial:
    """A copy of a checkout in which to plant faults, and the tests that fail there without any."""

    root: Path
    limit_s: float
    sound: set[str] = field(default_factory=set)
    unsound: set[str] = field(default_factory=set)

    def plant(self, mutation: Mutation) -> Place:
        """Put a fault into the copy."""
        place = find(self.root, mutation)
        path = self.root / place.file
        source = path.read_text(encoding="utf-8")
        self._write(path, source[: place.start] + mutation.replacement + source[place.stop :])
        return place

    def restore(self, file: str, original: Path) -> None:
        """Remove the fault again."""
        self._write(self.root / file, (original / file).read_text(encoding="utf-8"))

    def catch(self, tests: Sequence[str], file: str, original: Path) -> Outcome:
        """Run tests (none: the whole suite) with a fault planted in `file`; again without tests that always fail."""
        while True:
            sound = [test for test in tests if test not in self.unsound]
            if tests and not sound:
                return Outcome("")
            without = [f"--deselect={test}" for test in sorted(self.unsound)]
            outcome = self._pytest(["-x", *sound] if tests else [f"--maxfail={MAX_FAILURES}", *WHOLE_SUITE, *without])
            found = [test for test in outcome.failed if test not in self.unsound]
            fault = (self.root / file).read_text(encoding="utf-8")
            self.restore(file, original)
            confirmed = tuple(test for test in found if self._passes(test))
            self._write(self.root / file, fault)
            if confirmed or not found:
                return Outcome(outcome.how, confirmed)

    def _passes(self, test: str) -> bool:
        """Whether a test passes without a fault."""
        if test not in self.sound | self.unsound:
            (self.unsound if self._pytest([test]).how else self.sound).add(test)
        return test in self.sound

    def _pytest(self, arguments: Sequence[str]) -> Outcome:
        command = [sys.executable, "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", *arguments]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
            status = _ended(command, self.root, _environment(self.root), self.limit_s, output)
            output.seek(0)
            text = output.read()
        if status is None:
            return Outcome("timeout")
        if status in (0, 5):
            return Outcome("")
        failed = dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", text, re.MULTILINE))
        if status in (1, 2) and failed:
            return Outcome("failure", tuple(failed))
        if status in (3, 4):
            raise SystemExit(f"pytest could not run: status {status}\n{text[-4000:]}")
        return Outcome("crash")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")
        # Two versions of equal size, written within a second, share a compiled file.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def find(root: Path, mutation: Mutation) -> Place:
    """Locate a mutation's string below a checkout. Raises LookupError unless it occurs exactly once."""
    pattern = re.compile(r"\s+".join(map(re.escape, mutation.text.split())))
    found = [
        (path, match)
        for path in sorted((root / "feedline").rglob("*.py"))
        for match in pattern.finditer(path.read_text(encoding="utf-8"))
    ]
    if len(found) != 1:
        places = ", ".join(str(path.relative_to(root)) for path, _ in found) or "no module"
        raise LookupError(f"{mutation.name}: got {mutation.text!r} in {places}, expected it once below feedline/")
    [(path, match)] = found
    first = match.string.count("\n", 0, match.start()) + 1
    last = match.string.count("\n", 0, match.end()) + 1
    return Place(str(path.relative_to(root)), match.start(), match.end(), _statement(match.string, first, last))


def find_all(root: Path) -> dict[str, Place]:
    """Locate each mutation's string, by name. Exits if some are not found."""
    places, wrong = {}, []
    for mutation in MUTATIONS:
        try:
            places[mutation.name] = find(root, mutation)
        except LookupError as error:
            wrong.append(str(error))
    if wrong:
        raise SystemExit("\n".join([*wrong, "Correct these strings in mutation_table.py"]))
    return places


def _statement(source: str, first: int, last: int) -> range:
    """Return the lines of the innermost statement with these lines; of a compound one its head, if they are in it."""
    lines = range(first, last + 1)
    for node in ast.walk(ast.parse(source)):  # outer statements come first
        if not isinstance(node, ast.stmt) or not node.lineno <= first <= last <= (node.end_lineno or node.lineno):
            continue
        body = getattr(node, "body", None)
        head = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        lines = range(node.lineno, max(head, last) + 1)
    return lines


# -- commands ---------------------------------------------------------------------------------------------------------


def show(root: Path) -> None:
    """List all faults with their locations."""
    places = find_all(root)
    for mutation in MUTATIONS:
        place = places[mutation.name]
        print(f"{mutation.area:22} {mutation.name:28} {place.file}:{place.lines.start}\n{'':22} {mutation.breaks}")
    print(f"{len(MUTATIONS)} faults")


def collect(root: Path, data: Path, more: Sequence[str]) -> int:
    """Run the whole suite under coverage; return pytest's exit status."""
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    (data / "coveragerc").write_text(_COVERAGE.format(root=root, data=data / "part", variable=CONTEXT_VARIABLE))
    environment = _environment(root, TOOLS) | {"COVERAGE_PROCESS_START": str(data / "coveragerc")}
    probe = "import coverage; print(coverage.Coverage.current() is not None)"
    if _said([sys.executable, "-c", probe], root, environment) != "True":
        raise SystemExit(
            f"coverage does not start by itself in {sys.executable}: install the package coverage in that environment "
            "(its .pth file has to lie in the environment's own site-packages)"
        )
    report = ("-p", "coverage_contexts", f"--junitxml={data / DURATIONS}", "-o", "junit_family=xunit2")
    command = [sys.executable, "-m", "pytest", "-q", "--color=no", *report, *WHOLE_SUITE, *more]
    status = subprocess.run(command, cwd=root, env=environment, check=False).returncode
    gathered = coverage.Coverage(data_file=str(data / DATA), config_file=False)
    gathered.combine([str(path) for path in data.glob("part.*")], strict=True)
    gathered.save()
    return status


def report_coverage(root: Path, data: Path) -> None:
    """Print statements, missed lines and percent of the package and of each of its folders."""
    measured = coverage.Coverage(data_file=str(data / DATA), config_file=False)
    measured.load()
    known = {name.rpartition("/feedline/")[2]: name for name in measured.get_data().measured_files()}
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path in sorted((root / "feedline").rglob("*.py")):
        inside = path.relative_to(root / "feedline").as_posix()
        if inside not in known:
            continue  # an empty file
        _, statements, _, missing, _ = measured.analysis2(known[inside])
        for folder in ("(all)", Path("feedline", inside).parent.as_posix()):
            totals[folder][0] += len(statements)
            totals[folder][1] += len(missing)
    print(f"{'package':40} {'lines':>7} {'missed':>6} {'covered':>7}")
    for folder, (count, missed) in sorted(totals.items()):
        print(f"{folder:40} {count:7} {missed:6} {100 * (1 - missed / max(count, 1)):7.2f} %")


def run(root: Path, data: Path, out: Path, names: Sequence[str], *, budget_s: float, limit_s: float) -> None:
    """Plant the faults with these names, or all, that are not in the report."""
    places = find_all(root)
    if unknown := set(names) - places.keys():
        raise SystemExit(f"no such fault: {', '.join(sorted(unknown))}")
    suite, report = Suite.load(data), _read(out)
    with _copy(root, limit_s) as trial:
        for mutation in MUTATIONS:
            if mutation.name in report or (names and mutation.name not in names):
                continue
            reaching = suite.reaching(places[mutation.name])
            tests = suite.chosen(reaching, budget_s)
            began_s = time.monotonic()
            place = trial.plant(mutation)
            outcome = trial.catch(tests, place.file, root) if tests else Outcome("")
            trial.restore(place.file, root)
            report[mutation.name] = _entry(mutation, place, outcome, began_s) | {
                "reaching": len(reaching),
                "run": len(tests),
                "capped": len(tests) < len(reaching),
            }
            _write(out, report)


def run_survivors(root: Path, out: Path, *, limit_s: float) -> None:
    """Run the whole suite for the faults that survived the tests that reach them."""
    report = _read(out)
    with _copy(root, limit_s) as trial:
        for mutation in MUTATIONS:
            entry = report.get(mutation.name, {})
            if entry.get("outcome") != "survived" or entry.get("whole"):
                continue
            began_s = time.monotonic()
            place = trial.plant(mutation)
            outcome = trial.catch((), place.file, root)
            trial.restore(place.file, root)
            report[mutation.name] = entry | _entry(mutation, place, outcome, began_s) | {"whole": True}
            _write(out, report)


def compare(before: Path, after: Path) -> int:
    """Print the fate of each fault; return 1 if one that was caught is no longer caught."""
    old, new = _read(before), _read(after)
    lost = 0
    for name in dict.fromkeys([*old, *new]):
        was, now = (report.get(name, {}).get("outcome", "not run") for report in (old, new))
        worse = was == "caught" and now != "caught"
        lost += worse
        print(f"{'LOST' if worse else 'ok':5} {name:30} {was:9} -> {now:9} {new.get(name, {}).get('by', '')}")
    for title, report in (("before", old), ("after", new)):
        caught = sum(entry["outcome"] == "caught" for entry in report.values())
        print(f"{title}: {caught} of {len(report)} caught")
    return int(lost > 0)


def _entry(mutation: Mutation, place: Place, outcome: Outcome, began_s: float) -> dict[str, Any]:
    caught = bool(outcome.how) and (bool(outcome.failed) or outcome.how != "failure")
    entry = {
        "outcome": "caught" if caught else "survived",
        "how": outcome.how if caught else "",
        "by": ", ".join(outcome.failed),
        "seconds": round(time.monotonic() - began_s, 1),
        "area": mutation.area,
        "place": f"{place.file}:{place.lines.start}",
        "breaks": mutation.breaks,
    }
    print(f"{entry['outcome']:9} {mutation.name:30} {entry['seconds']:6} s  {entry['how']} {entry['by']}", flush=True)
    return entry


# -- processes and files ----------------------------------------------------------------------------------------------


@contextmanager
def _copy(root: Path, limit_s: float) -> Iterator[Trial]:
    """Yield a temporary copy of a checkout from which child processes import the package."""
    with tempfile.TemporaryDirectory(prefix="feedline-mutations-", ignore_cleanup_errors=True) as folder:
        copied = Path(folder, "checkout")
        shutil.copytree(
            root, copied, ignore=lambda folder, _: OUTPUTS if folder == str(root) else CACHES, symlinks=True
        )
        used = _said([sys.executable, "-c", "import feedline; print(feedline.__file__)"], copied, _environment(copied))
        if not Path(used).is_relative_to(copied):
            raise SystemExit(f"tests would import another copy of the package: got {used}, expected one in {copied}")
        yield Trial(copied, limit_s)


def _environment(*first: Path) -> dict[str, str]:
    """Return this process's environment, with a checkout's package, and optionally the plugin's folder, first."""
    path = [*map(str, first), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def _said(command: Sequence[str], folder: Path, environment: dict[str, str]) -> str:
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def _ended(command: Sequence[str], folder: Path, environment: dict[str, str], limit_s: float, out: Any) -> int | None:
    """Return the exit status of a program; None if it took too long and was killed with all its descendants."""
    program = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
    family: dict[int, psutil.Process] = {}
    deadline_s = time.monotonic() + limit_s
    try:
        while time.monotonic() < deadline_s:
            try:
                return program.wait(timeout=1)
            except subprocess.TimeoutExpired:
                family |= {child.pid: child for child in psutil.Process(program.pid).children(recursive=True)}
        return None
    finally:
        if program.poll() is None:
            program.kill()
        program.wait()
        for process in family.values():
            if process.is_running():
                process.kill()


def _read(report: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {}
    return found


def _write(report: Path, entries: dict[str, Any]) -> None:
    unfinished = report.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(entries, indent=1) + "\n")
    unfinished.replace(report)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="show the faults")
    action.add_argument("--collect", action="store_true", help="run the whole suite under coverage")
    action.add_argument("--coverage", action="store_true", help="print what --collect measured")
    action.add_argument("--run", nargs="*", metavar="NAME", help="plant these faults (default: all)")
    action.add_argument("--survivors", action="store_true", help="run the whole suite for those that survived")
    action.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"), help="compare two reports")
    parser.add_argument("--root", type=Path, default=TOOLS.parent, help="the checkout (default: this one)")
    parser.add_argument("--data", type=Path, help="folder of what --collect measures")
    parser.add_argument("--out", type=Path, help="report of --run and --survivors (JSON)")
    parser.add_argument("--budget", type=float, default=240, help="seconds of tests per fault (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=1200, help="seconds until tests hang (default: %(default)s)")
    parser.add_argument("pytest", nargs="*", help="after --: more arguments for pytest, with --collect")
    given = parser.parse_args()
    root = given.root.resolve()
    for option, used in (("data", given.collect or given.coverage or given.run is not None), ("out", given.survivors)):
        if used and getattr(given, option) is None:
            parser.error(f"--{option} is missing")
    if given.compare:
        return compare(*given.compare)
    if given.collect:
        return collect(root, given.data.resolve(), given.pytest)
    if given.coverage:
        report_coverage(root, given.data.resolve())
    elif given.survivors:
        run_survivors(root, given.out, limit_s=3 * given.limit)
    elif given.run is not None:
        run(root, given.data, given.out, given.run, budget_s=given.budget, limit_s=given.limit)
    else:
        show(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
