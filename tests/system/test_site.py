"""The site of the documentation is built without a warning, has what GitHub shows, and loads nothing from another host.

`make docs` builds it; here it is built the same way, in a folder of its own.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from chromium import BrowserPage, browser, chromium_path
from markdown_it import MarkdownIt
from pipelines import eventually

import feedline

ROOT = Path(__file__).resolve().parents[2]
# Of what Markdown writes, and of what else the theme writes.
TAGS = set(re.findall(r"\w+", "h1 h2 h3 h4 h5 h6 ul ol li table tr th td pre code blockquote strong em img"))
OTHERS = set(
    re.findall(r"\w+", "a article br button dd del details div dl dt hr nav p path small span summary svg tbody thead")
)
LOADED = re.compile(
    r"""<(?:script|img|iframe)[^>]*\ssrc="(https?:[^"]*)"|<link[^>]*\shref="(https?:[^"]*)"|url\((https?:[^)]*)\)"""
)
BUILD_S = 300

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("material", "mkdocstrings"))),
        reason="the extra docs is not installed: make docs",
    ),
]
in_browser = pytest.mark.skipif(chromium_path() is None, reason="there is no Chromium")


def mkdocs(build: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", str(build / "mkdocs.yml")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )


def stage(build: Path) -> None:
    subprocess.run([sys.executable, ROOT / "tools" / "stage_site.py", build], check=True, timeout=BUILD_S)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    stage(folder)
    done = mkdocs(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserPage]:
    with browser(tmp_path_factory.mktemp("browser")) as tab:
        yield tab


class Structure(HTMLParser):
    """How many elements of each kind there are."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        if tag in TAGS:
            self.counts[tag] += 1


def article(build: Path, page: Path) -> str:
    """What the site shows of a page."""
    path = page.parent / "index.html" if page.name == "README.md" else page.with_suffix(".html")
    html = (build / "site" / path).read_text(encoding="utf-8")
    [found] = re.findall(r"<article.*?>(.*?)</article>", html, re.DOTALL)
    return re.sub(r"<img[^>]*#only-dark[^>]*>", "", found)  # one of two pictures is seen


def test_pages_have_the_structure_that_they_have_on_github(build: Path):
    """As many headings, items of lists, cells and blocks of code: the two read Markdown by different rules."""
    github = MarkdownIt("commonmark", {"html": True}).enable("table")
    pages = [path.relative_to(build / "pages") for path in (build / "pages").rglob("*.md")]
    pages = [page for page in pages if (ROOT / page).is_file() and page.parts[:2] != ("docs", "api")]
    assert len(pages) > 100
    wrong = {}
    for page in pages:
        there = Structure(github.render((ROOT / page).read_text(encoding="utf-8"))).counts
        here = Structure(article(build, page)).counts
        if there != here:
            wrong[str(page)] = (there - here, here - there)
    assert not wrong


def test_the_reference_shows_each_public_name(build: Path):
    shown = "".join(article(build, path.relative_to(ROOT)) for path in (ROOT / "docs" / "api").glob("*.md"))
    ids = set(re.findall(r'id="([\w.]+)"', shown))
    names = {f"feedline.{name}" for name in feedline.__all__} - {"feedline.__version__", "feedline.errors"}
    assert not names - ids
    assert {"feedline.errors.SpecError", "feedline.modules.DedupEmbedding", "feedline.FeedlineDataset.stats"} <= ids
    assert "feedline.errors.from_wire" not in ids


def test_no_words_are_taken_for_html(build: Path):
    """`<thing>` in a docstring would vanish."""
    for path in (build / "site").rglob("*.html"):
        for shown in re.findall(r"<article.*?>(.*?)</article>", path.read_text(encoding="utf-8"), re.DOTALL):
            assert set(re.findall(r"<([a-z][\w-]*)", shown)) <= TAGS | OTHERS, path


def test_pages_load_nothing_from_another_host(build: Path):
    files = [path for path in (build / "site").rglob("*") if path.suffix in (".html", ".css")]
    loaded = {str(path): found for path in files if (found := LOADED.findall(path.read_text(encoding="utf-8")))}
    assert not loaded
    assert LOADED.findall('<script src="https://example.org/a.js">')


def test_the_version_is_that_of_the_package(build: Path):
    assert f"Feedline {feedline.__version__}" in (build / "site" / "index.html").read_text(encoding="utf-8")


def test_what_leads_nowhere_fails_the_build(tmp_path: Path):
    """A page of its own in place of all, so that it takes seconds."""
    stage(tmp_path)
    configuration = (tmp_path / "mkdocs.yml").read_text(encoding="utf-8")
    configuration, changes = re.subn(r"^docs_dir: pages$", "docs_dir: few", configuration, flags=re.MULTILINE)
    configuration, more = re.subn(r"^nav: .*$", 'nav: ["README.md"]', configuration, flags=re.MULTILINE)
    assert changes == more == 1
    (tmp_path / "mkdocs.yml").write_text(configuration)
    (tmp_path / "few").mkdir()
    lines = "[a page](nothing.md)", "[a heading](README.md#nothing)", "[a name][feedline.Nothing]", "![a](nothing.svg)"
    (tmp_path / "few" / "README.md").write_text("\n\n".join(["# A page", *lines]))
    done = mkdocs(tmp_path)
    assert done.returncode != 0
    assert f"Aborted with {len(lines)} warnings in strict mode" in done.stdout + done.stderr


def show(page: BrowserPage, path: Path) -> None:
    """Open a page of the site, and wait until all of it is there."""
    page.open(path.as_uri())
    loaded = f"document.readyState === 'complete' && location.href === '{path.as_uri()}'"
    assert eventually(lambda: page.evaluate(loaded))


@in_browser
def test_search_finds_a_word_without_a_server(build: Path, page: BrowserPage):
    page.resize(1280, 900)
    show(page, build / "site" / "docs" / "begin.html")
    page.evaluate("document.querySelector('.md-search__input').focus()")
    page.call("Input.insertText", text="half-open")
    found = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href).join(' ')"
    assert "0025-half-open-connections.html" in eventually(lambda: page.evaluate(found))
    assert not page.console


@in_browser
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", ["index", "docs/index", "docs/performance", "docs/architecture", "docs/api/batch"])
def test_pages_are_no_wider_than_the_window(name: str, width: int, build: Path, page: BrowserPage):
    """Tables and code that are wider scroll by themselves."""
    page.resize(width, 900)
    show(page, build / "site" / f"{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert not page.failed


@in_browser
def test_the_picture_is_that_of_the_scheme(build: Path, page: BrowserPage):
    show(page, build / "site" / "docs" / "picture.html")
    seen = (
        "[...document.querySelectorAll('article img')].filter((image) => image.offsetWidth).map((image) => image.src)"
    )
    for scheme, name in (("default", "picture-light.svg"), ("slate", "picture-dark.svg")):
        page.evaluate(f"document.body.setAttribute('data-md-color-scheme', '{scheme}')")
        [source] = page.evaluate(f"JSON.stringify({seen})").strip('[]"').split('","')
        assert source.split("/")[-1].startswith(name)
