"""What the documentation names exists: commands, options, keys, messages, errors, attributes, constants, variables."""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import typer.main
from fences import FENCE
from tornado import websocket

import feedline
from feedline import Batch, FeedlineDataset, Pipeline, Table, errors
from feedline.cli import app
from feedline.loader.dataset_stats import DatasetStats
from feedline.loader.wire.facts import FeederFacts, PlanFacts
from feedline.spec import PipelineSpec
from feedline.spec.batch_section import BatchSpec
from feedline.spec.sections import keys_of, section_at

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


def words_of(line: str) -> list[str]:
    """The words of a command, up to a comment, or a remark after two spaces."""
    line = re.split(r"\s{2,}(?!-)", line)[0].replace("[", " ").replace("]", " ")
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # the rest of it is in the next line
        return line.split()


def command_of(words: list[str]) -> tuple[typer.core.TyperCommand | None, list[str]]:
    """The command that words call, and its arguments; None if there is no such command."""
    command, rest = typer.main.get_command(app), words[1:]
    while isinstance(command, typer.core.TyperGroup):
        if not rest:
            return None, []
        command, rest = command.get_command(typer.Context(command), rest[0]), rest[1:]
    return command, rest


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str):
    for shown in shown_commands(page):
        command, rest = command_of(words_of(shown))
        assert command is not None, f"{page}: {shown}: there is no such command"
        options = {option for parameter in command.params for option in parameter.opts}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert given <= options, f"{page}: {shown}: has no {sorted(given - options)}"


def exists(path: list[str]) -> bool:
    """Whether pipeline.yaml has a key at the path; anything may be below a mapping of free keys."""
    model = section_at(PipelineSpec, tuple(path[:-1]))
    return model is not None and path[-1] in keys_of(model)


@pytest.mark.parametrize("page", PAGES)
def test_keys_of_sections_exist(page: str):
    named = re.compile(rf"^(?:--set '?)?((?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+)\b(?!\()")
    for span in spans(page):
        found = named.match(span)
        if found is None or (found[1].startswith("batch.") and span not in ("batch.size", "batch.tail")):
            continue  # `batch.dense` is an attribute
        path = found[1].split(".")
        assert exists(path) or path[:2] == ["cluster", "options"], f"{page}: there is no key {found[1]}"


@pytest.mark.parametrize("page", PAGES)
def test_errors_exist(page: str):
    for name in set(re.findall(r"`(?:feedline\.errors\.)?([A-Z]\w+Error)`", text(page))):
        assert any(hasattr(module, name) for module in (errors, builtins, asyncio, websocket)), f"{page}: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_variables_of_the_environment_exist(page: str):
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    for name in set(re.findall(r"\bFEEDLINE_[A-Z_]+\b", text(page))):
        assert name in sources, f"{page}: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_extras_exist(page: str):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in set(re.findall(r"feedline\[(\w+)\]", text(page))):
        assert name in project["optional-dependencies"], f"{page}: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_benchmarks_exist(page: str):
    for name in set(re.findall(r"`(?:python )?benchmarks/([a-z_]+\.py)", text(page))):
        assert (ROOT / "benchmarks" / name).is_file(), f"{page}: {name}"


ATTRIBUTES = {"dataset": FeedlineDataset, "FeedlineDataset": FeedlineDataset, "Pipeline": Pipeline, "Table": Table}


@pytest.mark.parametrize("page", PAGES)
def test_attributes_exist(page: str):
    for span in spans(page):
        if found := re.match(r"(\w+)\.([a-z]\w*)\b(?!\.(?:yaml|md|parquet))", span):
            is_tensor = found[1] == "batch" and found[2] not in BatchSpec.model_fields
            owner = Batch if is_tensor else ATTRIBUTES.get(found[1])
            assert owner is None or hasattr(owner, found[2]), f"{page}: {span}"
        for key in re.findall(r"\bfacts\[\"(\w+)\"\]", span):
            assert key in {*PlanFacts.__slots__, *FeederFacts.__slots__}, f"{page}: {span}"


def test_statistics_of_a_dataset_exist():
    [listed] = re.findall(r"Since the first batch was requested: (.*?)\n\n", text("docs/training.md"), re.DOTALL)
    assert set(CODE.findall(listed)) == set(DatasetStats.__slots__)


@cache
def strings() -> frozenset[str]:
    """All strings of the ends of the ring."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("loader", "service", "commands")
        for path in (PACKAGE / folder).rglob("*.py")
    ]
    constants = (node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(value for value in constants if isinstance(value, str))


def message_types() -> Iterator[str]:
    """The types of messages in the code: of classes (`kind`, or a tag), and of messages written as dicts."""
    for folder in ("loader", "service/feeder"):
        for path in (PACKAGE / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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
    assert len(documented) == 20
    assert documented - packed <= strings()
    assert set(message_types()) <= documented


def test_torch_is_where_the_page_says():
    for path in PACKAGE.rglob("*.py"):
        imports = re.search(r"^(?:import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE)
        room = path.relative_to(PACKAGE)
        beside = str(room) == "commands/begin/baseline.py"
        assert not imports or room.parts[0] in ("loader", "modules") or beside, path


# A sentence of a page with a number, and the constant that it is.
FIGURES = [
    ("docs/architecture.md", r"up to (\d+) threads that fetch byte ranges", "warehouse.storage.ranges:_THREADS"),
    ("docs/clusters.md", r"within `--drain-s` \((\d+) s\)", "service.worker.preload:DRAIN_S"),
    ("docs/expressions.md", r"Limits: ([\d,]+) characters", "expressions.syntax:MAX_CHARACTERS"),
    ("docs/expressions.md", r"(\d+) open brackets", "expressions.syntax:MAX_BRACKETS"),
    ("docs/expressions.md", r"brackets, (\d+) levels", "expressions.parser:MAX_DEPTH"),
    ("docs/expressions.md", r"levels, (\d+) digits", "expressions.syntax:MAX_INTEGER_DIGITS"),
    ("docs/expressions.md", r"exponents up to (\d+)", "expressions.operators:MAX_EXPONENT"),
    ("docs/expressions.md", r"([\d,]+) operations after", "expressions.operators:MAX_SIZE"),
    ("docs/fitting.md", r"in (\d+) parts, and merged", "fitting.spill:PARTS"),
    ("docs/fitting.md", r"tasks of ([\d,]+) to", "fitting.fit_tasks:_MIN_TASK_ROWS"),
    ("docs/fitting.md", r"to ([\d,]+) rows, whose", "fitting.fit_tasks:_MAX_TASK_ROWS"),
    ("docs/optimize.md", r"the last (\d+) jobs", "warehouse.optimize.usage:KEPT"),
    ("docs/optimize.md", r"sample of each column \(([\d,]+) rows", "warehouse.optimize.units:_SAMPLE_ROWS"),
    ("docs/pipeline.md", r"(\d+) levels and", "spec.document.yaml_document:MAX_DEPTH"),
    ("docs/pipeline.md", r"levels and ([\d,]+) entries", "spec.document.yaml_document:MAX_ENTRIES"),
    ("docs/quality.md", r"once ([\d,]+) rows of the epoch", "service.feeder.quality_monitor:ENOUGH_ROWS"),
    ("docs/serving.md", r"the first (\d+) rows", "serving.golden_rows:ROWS_OF_SPLIT"),
    ("docs/serving.md", r"may be (\d+) ulps", "serving.golden_check:ULPS"),
    ("docs/snapshots.md", r"kept every ([\d,]+) files", "warehouse.snapshot.footer_waves:_WAVE_FILES"),
    ("docs/snapshots.md", r"counts about every (\d+) s", "warehouse.selection.waves:WAVE_S"),
    ("docs/tables.md", r"(\d+) s for a connection", "warehouse.storage.locations:CONNECT_TIMEOUT_S"),
    ("docs/tables.md", r"connection, (\d+) s for a transfer", "warehouse.storage.locations:STALL_TIMEOUT_S"),
]


@pytest.mark.parametrize(("page", "pattern", "constant"), FIGURES)
def test_numbers_are_those_of_the_code(page: str, pattern: str, constant: str):
    module, _, name = constant.partition(":")
    [number] = re.findall(pattern, " ".join(text(page).split()))
    assert float(number.replace(",", "")) == getattr(import_module(f"feedline.{module}"), name)


def test_the_readme_has_the_ratios_of_the_performance_page():
    rows = re.findall(r"^\| `(\w+)[^|]*\| ([^|]*) \|", text("README.md"), re.MULTILINE)
    shapes = text("docs/performance.md").split("**All shapes**")[1].split("## Short epochs")[0]
    assert [name for name, _ in rows] == ["flat", "flat", "short", "strings", "wide", "lists"]
    for name, ratios in rows:
        about = re.findall(rf"^(?:\| {name}|- `{name}`)(?:.|\n  )*", shapes, re.MULTILINE)
        assert set(re.findall(r"\d\.\d\d", ratios)) <= set(re.findall(r"\d\.\d\d", " ".join(about))), name


def sentences(page: str, words: int) -> set[tuple[str, ...]]:
    """All runs of so many words of the page's prose."""
    prose = re.sub(r"\]\([^)]*\)", "", FENCE.sub(" ", text(page)))
    said = re.sub(r"[^\w.%-]+", " ", prose).lower().split()
    return {tuple(said[start : start + words]) for start in range(len(said) - words + 1)}


def test_no_sentence_is_on_two_pages():
    pages = [page for page in PAGES if page not in ("docs/README.md", "docs/ops.md")]
    said: dict[tuple[str, ...], str] = {}
    for page in pages:
        for sentence in sentences(page, words=12):
            assert said.setdefault(sentence, page) == page, f"{page}, {said[sentence]}: {' '.join(sentence)}"


def test_a_name_that_does_not_exist_is_found():
    assert command_of(["feedline", "fly"])[0] is None
    assert not exists(["cluster", "colour"])
    assert exists(["cluster", "autoscale", "wait"])
    assert "nonsense" not in strings()
    assert feedline.__name__ == "feedline"
