"""Build the compiled kernels so that they are checked while tests run, and run tests with them.

    python tools/checked_kernels.py sanitize [PYTEST ARGUMENTS]
    python tools/checked_kernels.py measure [--least PERCENT] [PYTEST ARGUMENTS]

`sanitize` builds them with AddressSanitizer and UndefinedBehaviorSanitizer, whose first report ends the process;
`measure` has them count the lines of C that run, prints a table of the files, and names the lines that no test reached.
Both need gcc. The kernels lie in a copy of the package below build/, which tests of this checkout then import; one of
their allocations fails where a test asks for it (`tests/support/failing_allocations.c`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FAILING = Path("tests/support/failing_allocations.c")
SANITIZED = ["-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
MEASURED = ["-O0", "-g", "--coverage", "-fprofile-update=atomic"]
TESTS = [
    "tests/native",
    "tests/warehouse/parquet",
    "tests/warehouse/histories",
    "tests/loader/ring",
    "tests/loader/encoding",
    "tests/service/feeder/test_slot_writers.py",
    "tests/test_hashing.py",
]
LEAST_PERCENT = 95.0
NOT_BUILT = 77  # the exit status
# A line that nothing can reach says why: `/* unreachable: REASON */`.
EXCLUDED = re.compile(r"/\* unreachable: \S.*\*/")


class BuildError(RuntimeError):
    """The kernels cannot be built so: the compiler, what it links, or Python's headers are missing."""


def kernels() -> dict[str, tuple[Path, list[str]]]:
    """The source of each kernel, and the compiler's options that do not optimize."""
    modules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    return {
        each["name"].rpartition(".")[2]: (
            Path(each["sources"][0]),
            [option for option in each["extra-compile-args"] if not option.startswith("-O")],
        )
        for each in modules
    }


def build(folder: Path, options: Sequence[str], compiler: str = "gcc") -> Path:
    """Copy the package to a folder, with kernels built so. Returns the folder. Raises BuildError."""
    if shutil.which(compiler) is None:
        raise BuildError(f"there is no {compiler}")
    shutil.rmtree(folder, ignore_errors=True)
    left_out = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(ROOT / "feedline", folder / "feedline", ignore=left_out)
    include = f"-I{sysconfig.get_paths()['include']}"
    wrapped = [f"-Wl,--wrap={name}" for name in wrapped_names()]
    for name, (source, own) in kernels().items():
        objects = []
        for each in (source, FAILING):
            objects.append(str(folder / f"{name}-{each.stem}.o"))
            instrumented = options if each == source else ["-O1"]
            run([compiler, *own, *instrumented, include, "-fPIC", "-c", str(each), "-o", objects[-1]])
        target = folder / "feedline" / "native" / f"{name}.abi3.so"
        run([compiler, *options, "-shared", *objects, *wrapped, "-o", str(target)])
    return folder


def wrapped_names() -> list[str]:
    """The functions that can be made to fail."""
    content = (ROOT / FAILING).read_text()
    return [*re.findall(r"^OF_(?:BYTES|OBJECTS)\((\w+)", content, re.MULTILINE), "Py_BuildValue"]


def run(command: Sequence[str]) -> str:
    """The output of a build's command. Raises BuildError."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}: {done.stderr[-1000:]}")
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """In which processes import the copy of a folder. The current directory does not come before it."""
    paths = [str(folder), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def sanitizing(folder: Path) -> dict[str, str]:
    """The environment of kernels with sanitizers, which are loaded first, as is the C++ library whose exceptions they
    watch.
    """
    libraries = [
        run(["gcc", f"-print-file-name={name}"]).strip() for name in ("libasan.so", "libubsan.so", "libstdc++.so")
    ]
    return environment(folder) | {
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",  # of the interpreter and its libraries, which free little at their end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
    }


def with_tests(arguments: Sequence[str]) -> list[str]:
    """Pytest's arguments, with the tests of the kernels where they name none."""
    names_some = any("/" in each for each in arguments)
    return [*arguments] if names_some else [*arguments, *TESTS]


def pytest(arguments: Sequence[str], folder: Path, variables: Mapping[str, str]) -> int:
    """Run tests of this checkout with the kernels of a folder. Returns pytest's status."""
    program = "from feedline.native import parquet; print(parquet._compiled.__file__)"
    found = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=True)
    if not found.stdout.startswith(str(folder)):
        raise BuildError(f"others are imported: got {found.stdout.strip()}, expected them below {folder}")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=900", *arguments]
    return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


@dataclass(frozen=True, slots=True)
class FileLines:
    """The lines of a source file with code, and of these the ones that ran."""

    name: str
    lines: frozenset[int]
    reached: frozenset[int]

    @property
    def unreached(self) -> list[int]:
        return sorted(self.lines - self.reached)

    @property
    def percent(self) -> float:
        return 100.0 * len(self.reached) / len(self.lines)


def file_lines(reports: Iterable[Mapping[str, Any]], excluded: Mapping[str, frozenset[int]]) -> list[FileLines]:
    """What gcov's JSON reports say of the kernels' files. A line ran if it did in any function, clone or kernel."""
    lines: defaultdict[str, set[int]] = defaultdict(set)
    reached: defaultdict[str, set[int]] = defaultdict(set)
    for report in reports:
        for file in report["files"]:
            name = Path(file["file"]).name
            if "feedline/native" not in file["file"]:
                continue
            counted = [each for each in file["lines"] if each["line_number"] not in excluded.get(name, ())]
            lines[name].update(each["line_number"] for each in counted)
            reached[name].update(each["line_number"] for each in counted if each["count"])
    return [FileLines(name, frozenset(lines[name]), frozenset(reached[name])) for name in sorted(lines) if lines[name]]


def excluded_lines(folder: Path) -> dict[str, frozenset[int]]:
    """By file, the lines that say that nothing can reach them."""
    return {
        path.name: frozenset(
            number for number, line in enumerate(path.read_text().splitlines(), 1) if EXCLUDED.search(line)
        )
        for path in folder.glob("*.[ch]")
    }


def gcov(folder: Path) -> list[FileLines]:
    """The lines that ran since the kernels of a folder were built."""
    counts = sorted(folder.glob("*.gcda"))
    output = run(["gcov", "--json-format", "--stdout", *map(str, counts)]) if counts else ""
    reports = [json.loads(line) for line in output.splitlines() if line]
    return file_lines(reports, excluded_lines(ROOT / "feedline" / "native"))


def table(files: Sequence[FileLines]) -> str:
    """A line for each file, and one for all."""
    rows = [(each.name, len(each.lines), len(each.unreached), each.percent, ranges(each.unreached)) for each in files]
    lines, unreached = sum(row[1] for row in rows), sum(row[2] for row in rows)
    rows.append(("all", lines, unreached, percent(files), ""))
    return "\n".join(
        f"{name:14} {count:5} {missed:5} {share:6.1f} %  {where}" for name, count, missed, share, where in rows
    )


def percent(files: Sequence[FileLines]) -> float:
    """Of all lines, those that ran."""
    return 100.0 * sum(len(each.reached) for each in files) / max(1, sum(len(each.lines) for each in files))


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, neighbours joined."""
    # [3, 4, 5, 9] -> 3-5, 9
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in spans)


def sanitize(arguments: Sequence[str]) -> int:
    folder = build(ROOT / "build" / "sanitized", SANITIZED)
    return pytest(["--capture=sys", *with_tests(arguments)], folder, sanitizing(folder))  # reports are written by C


def measure(arguments: Sequence[str], least: float) -> int:
    folder = build(ROOT / "build" / "measured", MEASURED)
    status = pytest(with_tests(arguments), folder, environment(folder))
    files = gcov(folder)
    print(f"{'file':14} {'lines':>5} {'unreached':>5}\n{table(files)}")
    if percent(files) < least:
        print(f"tests reach too few lines of the kernels: got {percent(files):.1f} %, expected {least:g} % at least")
        return status or 1
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("check", choices=("sanitize", "measure"))
    parser.add_argument("--least", type=float, default=LEAST_PERCENT, help="percent of lines (default: 95)")
    known, arguments = parser.parse_known_args()
    try:
        return sanitize(arguments) if known.check == "sanitize" else measure(arguments, known.least)
    except BuildError as error:
        print(f"the kernels cannot be built: {error}", file=sys.stderr)
        return NOT_BUILT


if __name__ == "__main__":
    sys.exit(main())
