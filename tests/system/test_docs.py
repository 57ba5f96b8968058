"""README.md and docs/ show nothing that does not work: examples run, commands exist, links lead somewhere.

Each rule looks at all pages and names all that break it.
"""

from __future__ import annotations

import ast
import doctest
import gc
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import numpy
import pytest
import torch
from fences import FENCE, assert_printed
from named_attributes import missing_names
from pipelines import furnished
from processes import ended_here
from ruamel.yaml import YAML

import feedline
from feedline import modules
from feedline.config import parse_spec
from feedline.loader.dataset_stats import DatasetStats
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.row_arrays import Encoded
from feedline.loader.tensors.slot_tensors import DedupGroup, InverseColumn, InverseSparse

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
]
WITH_FENCES = (
    "README.md",
    "docs/training.md",
    "docs/ranks.md",
    "docs/feeders.md",
    "docs/gpus.md",
    "docs/torchrec.md",
    "docs/materialize.md",
    "docs/tables.md",
    "docs/snapshots.md",
    "docs/rebase.md",
    "docs/following.md",
    "docs/optimize.md",
    "docs/requests.md",
    "docs/deleting.md",
    "docs/serving.md",
    "docs/clusters.md",
    "docs/dedup.md",
    "docs/histories.md",
    "docs/explain.md",
    "docs/editors.md",
)

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Fence:
    """A block of code on a page; `line` is its first line's number. A fragment needs what a test has not."""

    page: str
    line: int
    language: str
    fragment: bool
    text: str


@cache
def fences(page: str) -> tuple[Fence, ...]:
    content = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(content):
        language, _, note = match[1].partition(" ")
        form = r"fragment: \S.*" if language == "python" else "fragment"
        assert not note or re.fullmatch(form, note), f"{page}: a fence says {note!r}"
        line = content.count("\n", 0, match.start(2)) + 1
        found.append(Fence(page=page, line=line, language=language, fragment=bool(note), text=match[2]))
    return tuple(found)


def shown(page: str, language: str) -> list[Fence]:
    return [fence for fence in fences(page) if fence.language == language]


def small(text: str, before: str, after: str) -> str:
    """An example at a test's size."""
    assert before in text, f"the example no longer says {before!r}"
    return text.replace(before, after)


def commands() -> list[tuple[Fence, list[str]]]:
    """Every command of a shell example, as words."""
    return [
        (fence, shlex.split(line, comments=True))
        for page in WITH_FENCES
        for fence in shown(page, "sh")
        for line in fence.text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the README's reader stands: a folder with the pipeline.yaml and the table that it shows, made small."""
    with furnished(tmp_path_factory.mktemp("g"), Path()) as place, pytest.MonkeyPatch.context() as patch:
        patch.chdir(place.folder)
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place.folder / "i"))  # torch's own, made by any optimizer's step
        pipeline, _ = shown("README.md", "yaml")
        (place.folder / "pipeline.yaml").write_text(small(pipeline.text, "size: 8192", "size: 1024"))
        prepare(["README.md"])
        yield place.folder


@pytest.fixture(scope="module")
def whole_folder(folder: Path) -> Path:
    """The same, with the tables of all pages."""
    prepare(WITH_FENCES[1:])
    return folder


def prepare(pages: Sequence[str]) -> None:
    """Run the commands of pages that make tables, and that fit."""
    for fence, words in commands():
        if fence.page in pages and words[:2] == ["feedline", "generate"]:
            run(fence, [*words, "--row-group-rows", "1024"], {"500000": "20000"})
        elif fence.page in pages and words[:2] == ["feedline", "fit"]:
            run(fence, words)


def run(fence: Fence, words: list[str], smaller: dict[str, str] | None = None) -> str:
    """Run a `feedline` command in the current folder."""
    _, *arguments = (dict(smaller or {}).get(word, word) for word in words)
    done = ended_here(*arguments)
    assert done.returncode == 0, f"{fence.page}:{fence.line}: {shlex.join(words)}\n{done.stderr}"
    return done.stdout


def test_the_pipeline_is_accepted():
    """Also with the line that has it run on a local Dask cluster."""
    pipeline, setting = shown("README.md", "yaml")
    assert parse_spec(pipeline.text).name == "clicks-ctr"
    assert parse_spec(pipeline.text + setting.text).cluster.kind == "processes"


def test_the_plan_that_is_shown_has_the_rows_of_the_plan(folder: Path):
    plans = [(fence, words) for fence, words in commands() if words == ["feedline", "plan", "pipeline.yaml"]]
    [(fence, words)] = [(fence, words) for fence, words in plans if fence.page == "README.md"]
    printed = run(fence, words)
    [excerpt] = [fence for fence in shown("README.md", "") if "counted" in fence.text]
    for line in [line for line in excerpt.text.splitlines() if "│" in line]:
        assert f" {line.split('│')[1].strip()} " in printed


@pytest.mark.nightly
def test_the_box_of_the_plan_is_the_one_that_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """At the size that the README generates; spaces and borders apart."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    pipeline, _ = shown("README.md", "yaml")
    Path("pipeline.yaml").write_text(pipeline.text)
    [generate] = [c for c in commands() if c[0].page == "README.md" and c[1][:2] == ["feedline", "generate"]]
    run(*generate)
    printed = [line.split() for line in run(pipeline, ["feedline", "plan", "pipeline.yaml"]).splitlines()]
    [excerpt] = [fence for fence in shown("README.md", "") if "counted" in fence.text]
    assert not [line for line in excerpt.text.splitlines() if line.split() not in printed]


def test_the_plan_of_the_snapshots_page_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    [pipeline] = [fence for fence in shown("docs/snapshots.md", "yaml") if "feedline generate" in fence.text]
    [line] = [line for line in pipeline.text.splitlines() if "feedline generate" in line]
    run(pipeline, shlex.split(line.partition("# ")[2]))
    (tmp_path / "p.yaml").write_text(pipeline.text)
    printed = run(pipeline, ["feedline", "plan", "p.yaml"])
    tables = [fence.text for fence in shown("docs/snapshots.md", "") if "statistics" in fence.text]
    assert len(tables) == 2
    for table in tables:
        assert_printed("\n".join(line for line in table.splitlines() if "━" not in line), printed)


def test_the_ring_is_drained(folder: Path):
    [(fence, words)] = [(fence, words) for fence, words in commands() if "null" in words]
    assert re.search(r"[\d,]+ rows in [\d,]+ batches", run(fence, words))


@pytest.mark.usefixtures("folder")
def test_examples_of_the_readme_run_one_after_the_other():
    execute("README.md")


@pytest.mark.nightly
@pytest.mark.usefixtures("whole_folder")
@pytest.mark.parametrize("page", WITH_FENCES[1:])
def test_examples_run_one_after_the_other(page: str):
    execute(page)


def execute(page: str) -> None:
    """Run a page's examples in one namespace, as a reader would paste them. Assertions in them are tests."""
    names: dict[str, object] = {"__name__": "example"}
    for fence in shown(page, "python"):
        if not fence.fragment:
            source = "\n" * (fence.line - 1) + fence.text  # so that a traceback names the page's line
            exec(compile(source, page, "exec"), names)
    names.clear()
    gc.collect()


@pytest.mark.nightly
def test_examples_of_docstrings_print_what_they_show(whole_folder: Path):
    """Those of the Python API, in the README's folder, with its names imported."""
    owners = [getattr(feedline, name) for name in feedline.__all__ if name != "__version__"]
    owners += [getattr(modules, name) for name in modules.__all__]
    values = [BatchSchema, SlotColumn, DatasetStats, DedupGroup, Encoded, InverseColumn, InverseSparse]
    owners += values
    names: dict[str, object] = {"datetime": datetime, "numpy": numpy, "torch": torch}
    names |= {each.__name__: each for each in values}
    names |= {each: getattr(place, each) for place in (feedline, modules) for each in place.__all__}
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    for owner in owners:
        examples = [each for each in finder.find(owner, globs=dict(names)) if each.examples]
        assert examples, owner
        for each in examples:
            printed: list[str] = []
            runner.run(each, out=printed.append)
            assert not printed, "".join(printed)
    gc.collect()


def test_fragments_are_whole_statements():
    for fence in [fence for page in PAGES for fence in fences(str(page.relative_to(ROOT))) if fence.fragment]:
        if fence.language == "python":
            compile(fence.text, f"{fence.page}:{fence.line}", "exec", ast.PyCF_ONLY_AST)
        elif fence.language == "yaml":
            assert YAML(typ="safe", pure=True).load(fence.text), f"{fence.page}:{fence.line}"
        else:
            assert fence.language == "sh", f"{fence.page}:{fence.line}"


def test_fragments_use_names_that_exist():
    fragments = [fence for page in PAGES for fence in shown(str(page.relative_to(ROOT)), "python") if fence.fragment]
    assert not [f"{each.page}:{each.line}: {name}" for each in fragments for name in missing_names(each.text)]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("from feedline import Batch, Nothing", "feedline.Nothing"),
        ("with FeedlineDataset('p', color=1) as data: pass", "FeedlineDataset(color)"),
        ("for each in FeedlineDataset('p'): each.dense, each.sparce", "Batch.sparce"),
        ("Pipeline.from_yaml('p').materialize('out', shape=1)", "Pipeline.materialize(shape)"),
        ("report = Table('t').remove('a == 1')", "Table.remove"),
    ],
)
def test_a_name_that_does_not_exist_is_found(text: str, missing: str):
    assert list(missing_names(text)) == [missing]


def test_no_python_goes_untested():
    """It is run by this file, by another page's test, or is a fragment with a reason."""
    elsewhere = (
        "docs/pipeline.md",
        "docs/ops.md",
        "docs/user-code.md",
        "docs/expressions.md",
        "docs/tutorial.md",
        "docs/from-logs.md",
        "examples/flights/README.md",
    )
    pages = [str(page.relative_to(ROOT)) for page in PAGES]
    others = [page for page in pages if page not in (*WITH_FENCES, *elsewhere) and "/coming-from/" not in page]
    assert not [page for page in others if any(not fence.fragment for fence in shown(page, "python"))]


def test_commands_of_shell_examples_are_feedline_make_or_an_installation():
    """That those of feedline exist is held by test_docs_facts.py."""
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    wrong = [
        f"{fence.page}:{fence.line}: {shlex.join(words)}"
        for fence, words in commands()
        if words[0] != "feedline"
        and words != ["python", "train.py"]  # what init writes
        and not (words[0] == "make" and words[1] in targets)
        and words[:2] != ["pip", "install"]
    ]
    assert not wrong, "\n".join(wrong)


def anchor(heading: str) -> str:
    """The fragment that points at a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(anchor(heading) for heading in HEADING.findall(page.read_text(encoding="utf-8")))


def test_links_lead_somewhere():
    wrong = []
    for page in PAGES:
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            name, _, fragment = target.partition("#")
            other = (page.parent / name).resolve() if name else page
            if "://" in target or (other.exists() and not fragment):
                continue
            if not other.exists() or fragment not in anchors(other):
                wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_row():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_/]+)/` \| .{15,} \|$", text, re.MULTILINE)
    package = ROOT / "feedline"
    present = [str(path.parent.relative_to(package)) for path in package.rglob("__init__.py")]
    assert sorted(rows) == sorted(set(present) - {"."})


def test_every_package_is_in_the_picture():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [picture] = [fence[2] for fence in FENCE.finditer(text) if "planning → blocks" in fence[2]]
    names = {path.parent.name for path in (ROOT / "feedline").glob("*/__init__.py")}
    assert not names - set(re.findall(r"[a-z_]+", picture))


def test_every_answer_names_a_module():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+\? \| (.+) \|$", text[text.index("## Where is") :], re.MULTILINE)
    assert rows
    for place in re.findall(r"`([a-z_/]+)`", " ".join(rows)):
        path = ROOT / "feedline" / place
        assert path.is_dir() if place.endswith("/") else path.with_suffix(".py").is_file(), place


def test_pictures_are_those_that_the_tool_draws(tmp_path: Path):
    subprocess.run([sys.executable, ROOT / "tools" / "pictures.py", tmp_path], check=True)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert len(drawn) == 2
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "images").glob("*.svg")}


def test_the_index_has_a_line_for_each_page():
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = {(ROOT / "docs" / target).resolve() for target in LINK.findall(text)}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")}
    assert not sorted(str(page.relative_to(ROOT)) for page in pages - listed - {ROOT / "docs" / "README.md"})
