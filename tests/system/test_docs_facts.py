"""What the documentation names exists: commands, options, keys, messages, errors, attributes, constants, variables.

Each rule looks at all pages and names all that break it.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import typer.main
from fences import FENCE
from tornado import websocket

from feedline import Batch, FeedlineDataset, Pipeline, Table, errors
from feedline.cli import app
from feedline.config import PipelineSpec
from feedline.config.sections import BatchSpec, keys_of, section_at
from feedline.loader.dataset_stats import DatasetStats
from feedline.loader.wire.facts import FeederFacts, PlanFacts

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "feedline"
PATHS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/coming-from").glob("*.md"))]
PAGES = {str(path.relative_to(ROOT)): path for path in PATHS}
CODE = re.compile(r"`([^`\n]+)`")
SECTIONS = ("source", "batch", "shuffle", "cluster", "fit", "artifacts")


@cache
def text(page: str) -> str:
    return PAGES[page].read_text(encoding="utf-8")


@cache
def spans(page: str) -> tuple[str, ...]:
    """Code inside of the page's lines."""
    return tuple(CODE.findall(FENCE.sub("", text(page))))


@cache
def shown_commands(page: str) -> tuple[str, ...]:
    """Everything on the page that begins with `feedline` and a command, inside lines and in blocks."""
    blocks = [line for match in FENCE.finditer(text(page)) for line in match[2].replace("\\\n", " ").splitlines()]
    lines = [line.strip().removeprefix("$ ") for line in blocks]
    return tuple(each for each in (*spans(page), *lines) if re.match(r"feedline [a-z]", each))


def on_all_pages(parts: Callable[[str], Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Each part of each page, with the page."""
    return ((page, part) for page in PAGES for part in parts(page))


def words_of(line: str) -> list[str]:
    """The words of a command, up to a comment, or a remark after two spaces."""
    line = re.split(r"\s{2,}(?!-)", line)[0].replace("[", " ").replace("]", " ")
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # the rest of it is in the next line
        return line.split()


@cache
def whole_command() -> typer.core.TyperGroup:
    """`feedline` with all its commands: making it costs 20 ms, and the pages show hundreds of commands."""
    return typer.main.get_command(app)


def command_of(words: list[str]) -> tuple[typer.core.TyperCommand | None, list[str]]:
    """The command that words call, and its arguments; None if there is no such command."""
    command, rest = whole_command(), words[1:]
    while isinstance(command, typer.core.TyperGroup):
        if not rest:
            return None, []
        command, rest = command.get_command(typer.Context(command), rest[0]), rest[1:]
    return command, rest


def test_commands_and_options_exist():
    wrong = []
    for page, shown in on_all_pages(shown_commands):
        command, rest = command_of(words_of(shown))
        options = {option for parameter in command.params for option in parameter.opts} if command else set()
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        if command is None or not given <= options:
            wrong.append(f"{page}: {shown}: {sorted(given - options) or 'no such command'}")
    assert not wrong, "\n".join(wrong)


def exists(path: list[str]) -> bool:
    """Whether pipeline.yaml has a key at the path; anything may be below a mapping of free keys."""
    model = section_at(PipelineSpec, tuple(path[:-1]))
    return model is not None and path[-1] in keys_of(model)


def test_keys_of_sections_exist():
    key = re.compile(rf"^(?:--set '?)?((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)\b(?!\()")
    wrong = []
    for page, span in on_all_pages(spans):
        found = key.match(span)
        if found is None or (found[1].startswith("batch.") and span not in ("batch.size", "batch.tail")):
            continue  # `batch.dense` is an attribute
        path = found[1].split(".")
        if not exists(path) and path[:2] != ["cluster", "options"]:
            wrong.append(f"{page}: {found[1]}")
    assert not wrong, "\n".join(wrong)


def named(pattern: str) -> set[tuple[str, str]]:
    """What a pattern finds on all pages, each with its page."""
    return {(page, name) for page in PAGES for name in re.findall(pattern, text(page))}


def test_errors_exist():
    errors_named = named(r"`(?:feedline\.errors\.)?([A-Z]\w+Error)`")
    modules = (errors, builtins, asyncio, websocket)
    assert not [place for place in errors_named if not any(hasattr(module, place[1]) for module in modules)]


def test_variables_of_the_environment_exist():
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert not [place for place in named(r"\bFEEDLINE_[A-Z_]+\b") if place[1] not in sources]


def test_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert not [place for place in named(r"feedline\[(\w+)\]") if place[1] not in extras]


def test_benchmarks_exist():
    programs = named(r"`(?:python )?benchmarks/([a-z_]+\.py)")
    assert not [place for place in programs if not (ROOT / "benchmarks" / place[1]).is_file()]


ATTRIBUTES = {"dataset": FeedlineDataset, "FeedlineDataset": FeedlineDataset, "Pipeline": Pipeline, "Table": Table}


def test_attributes_exist():
    wrong = []
    for page, span in on_all_pages(spans):
        if found := re.match(r"(\w+)\.([a-z]\w*)\b(?!\.(?:yaml|md|parquet))", span):
            is_tensor = found[1] == "batch" and found[2] not in BatchSpec.model_fields
            owner = Batch if is_tensor else ATTRIBUTES.get(found[1])
            if owner is not None and not hasattr(owner, found[2]):
                wrong.append(f"{page}: {span}")
        facts = {*PlanFacts.__slots__, *FeederFacts.__slots__}
        wrong += [f"{page}: {span}" for key in re.findall(r"\bfacts\[\"(\w+)\"\]", span) if key not in facts]
    assert not wrong, "\n".join(wrong)


def test_statistics_of_a_dataset_exist():
    [listed] = re.findall(r"Since the first batch was requested: (.*?)\n\n", text("docs/training.md"), re.DOTALL)
    assert set(CODE.findall(listed)) == set(DatasetStats.__slots__)


@cache
def nodes_below(folder: str) -> tuple[ast.AST, ...]:
    """The nodes of all modules below a folder of the package."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (PACKAGE / folder).rglob("*.py"))
    return tuple(node for tree in trees for node in ast.walk(tree))


@cache
def strings() -> frozenset[str]:
    """All strings of the ends of the ring."""
    nodes = (node for folder in ("loader", "service", "commands") for node in nodes_below(folder))
    values = (node.value for node in nodes if isinstance(node, ast.Constant))
    return frozenset(value for value in values if isinstance(value, str))


def message_types() -> Iterator[str]:
    """The types of messages in the code: of classes (`kind`, or a tag), and of messages written as dicts."""
    for node in (*nodes_below("loader"), *nodes_below("service/feeder")):
        values: list[ast.expr | None] = []
        of_class = isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "kind"
        if of_class or (isinstance(node, ast.keyword) and node.arg == "tag"):
            values = [node.value]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            values = [value for key, value in pairs if getattr(key, "value", None) == "type"]
        yield from (each.value for each in values if isinstance(each, ast.Constant) and each.value)


def test_the_tables_of_messages_are_complete():
    [tables] = re.findall(r"^\| from the trainer(.*?)\n\nFREE", text("docs/architecture.md"), re.DOTALL | re.MULTILINE)
    documented = {
        name for row in re.findall(r"^\| (`.*?) \|", tables, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    packed = {"FREE", "READY", "END", "REPORT"}
    assert documented - packed <= strings()
    assert set(message_types()) <= documented


# A sentence of a page with a number, and the constant that it is.
FIGURES = [
    ("docs/architecture.md", r"up to (\d+) threads that fetch byte ranges", "warehouse.storage.ranges:_THREADS"),
    ("docs/clusters.md", r"within `--drain-s` \((\d+) s\)", "service.worker.preload:DRAIN_S"),
    ("docs/expressions.md", r"Limits: ([\d,]+) characters", "expressions.parser:MAX_CHARACTERS"),
    ("docs/expressions.md", r"(\d+) open brackets", "expressions.parser:MAX_BRACKETS"),
    ("docs/expressions.md", r"brackets, (\d+) levels", "expressions.parser:MAX_DEPTH"),
    ("docs/expressions.md", r"levels, (\d+) digits", "expressions.parser:MAX_INTEGER_DIGITS"),
    ("docs/expressions.md", r"exponents up to (\d+)", "expressions.operators:MAX_EXPONENT"),
    ("docs/expressions.md", r"([\d,]+) operations after", "expressions.operators:MAX_SIZE"),
    ("docs/fitting.md", r"in (\d+) parts, and merged", "fitting.spill:PARTS"),
    ("docs/fitting.md", r"tasks of ([\d,]+) to", "fitting.fit_tasks:_MIN_TASK_ROWS"),
    ("docs/fitting.md", r"to ([\d,]+) rows, whose", "fitting.fit_tasks:_MAX_TASK_ROWS"),
    ("docs/optimize.md", r"the last (\d+) jobs", "warehouse.optimize.usage:KEPT"),
    ("docs/optimize.md", r"sample of each column \(([\d,]+) rows", "warehouse.optimize.optimize:_SAMPLE_ROWS"),
    ("docs/pipeline.md", r"(\d+) levels and", "config.yaml_document:MAX_DEPTH"),
    ("docs/pipeline.md", r"levels and ([\d,]+) entries", "config.yaml_document:MAX_ENTRIES"),
    ("docs/quality.md", r"once ([\d,]+) rows of the epoch", "service.feeder.quality_monitor:ENOUGH_ROWS"),
    ("docs/serving.md", r"the first (\d+) rows", "serving.golden_check:ROWS_OF_SPLIT"),
    ("docs/serving.md", r"may be (\d+) ulps", "serving.golden_check:ULPS"),
    ("docs/snapshots.md", r"kept every ([\d,]+) files", "warehouse.snapshot.take:_WAVE_FILES"),
    ("docs/snapshots.md", r"counts about every (\d+) s", "warehouse.selection.waves:WAVE_S"),
    ("docs/tables.md", r"(\d+) s for a connection", "warehouse.storage.locations:CONNECT_TIMEOUT_S"),
    ("docs/tables.md", r"connection, (\d+) s for a transfer", "warehouse.storage.locations:STALL_TIMEOUT_S"),
]


def test_numbers_are_those_of_the_code():
    wrong = []
    for page, pattern, constant in FIGURES:
        module, _, name = constant.partition(":")
        number = re.findall(pattern, " ".join(text(page).split()))
        expected = getattr(import_module(f"feedline.{module}"), name)
        if [float(each.replace(",", "")) for each in number] != [expected]:
            wrong.append(f"{page}: {pattern!r} is {number}, {constant} is {expected}")
    assert not wrong, "\n".join(wrong)


def section(page: str, fragment: str) -> str:
    """The words of a page's section, up to the next heading of its level."""
    parts = re.split(r"^(#+) (.*)$", FENCE.sub("", text(page)), flags=re.MULTILINE)
    headings = list(zip(parts[1::3], parts[2::3], parts[3::3], strict=True))
    [start] = [place for place, (_, name, _) in enumerate(headings) if anchor(name) == fragment]
    level = len(headings[start][0])
    after = [place for place, (marks, _, _) in enumerate(headings) if place > start and len(marks) <= level]
    return " ".join(" ".join(body for _, _, body in headings[start : (after or [None])[0]]).split())


def anchor(heading: str) -> str:
    """The fragment that points at a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_decisions_have_figures_of_the_sections_that_they_name():
    """The figures of a line are in the section that its last cell links: those between semicolons close together, in
    the same order.
    """
    rows = re.findall(
        r"^\| [^|]+\| [^|]+\| ([^|]+) \| \[[^]]+\]\(([\w.-]+)#([\w-]+)\) \|$", text("docs/choosing.md"), re.MULTILINE
    )
    assert len(rows) == text("docs/choosing.md").count("\n| ") - 3  # headings
    for measured, page, fragment in rows:
        there = section(f"docs/{page}", fragment)
        groups = [figures for part in measured.split("; ") if (figures := NUMBER.findall(part))]
        assert groups, measured
        for figures in groups:
            assert has_in_order(there, figures), (measured, figures)


NUMBER = re.compile(r"\d[\d.,]*\d|\d")


def has_in_order(there: str, figures: list[str], within: int = 450) -> bool:
    """Whether a passage of so many characters has the figures in this order, others between them."""
    numbers = list(NUMBER.finditer(there))
    for begin in (each.start() for each in numbers if each.group() == figures[0]):
        passage = iter([each.group() for each in numbers if begin <= each.start() < begin + within])
        if all(figure in passage for figure in figures):
            return True
    return False


def test_figures_that_are_swapped_or_apart_are_found():
    assert has_in_order("a 1.5 b 2 c 3.25", ["1.5", "3.25"])
    assert not has_in_order("a 1.5 b 2 c 3.25", ["3.25", "1.5"])
    assert not has_in_order("a 1.5 b 2 c 3.25", ["1.5", "3.25"], within=8)
    assert not has_in_order("a 11.5", ["1.5"])


def test_the_readme_has_the_ratios_of_the_performance_page():
    rows = re.findall(r"^\| `(\w+)[^|]*\| ([^|]*) \|", text("README.md").split("## Performance")[1], re.MULTILINE)
    shapes = text("docs/performance.md").split("**All shapes**")[1].split("## Short epochs")[0]
    assert [name for name, _ in rows] == ["flat", "flat", "short", "strings", "wide", "lists"]
    for name, ratios in rows:
        about = re.findall(rf"^(?:\| {name}|- `{name}`)(?:.|\n  )*", shapes, re.MULTILINE)
        assert set(re.findall(r"\d\.\d\d", ratios)) <= set(re.findall(r"\d\.\d\d", " ".join(about))), name


def test_a_name_that_does_not_exist_is_found():
    assert command_of(["feedline", "fly"])[0] is None
    assert not exists(["cluster", "colour"])
    assert exists(["cluster", "autoscale", "wait"])
    assert "nonsense" not in strings()
