"""docs/glossary.md defines the words of the documentation, and each page links its first use of them there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fences import FENCE

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
# Not the glossary itself, the index of pages, and what is generated.
OTHERS = {"glossary.md", "README.md", "ops.md"}
PAGES = {
    "README.md": ROOT / "README.md",
    **{f"docs/{path.name}": path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in OTHERS},
    **{f"docs/coming-from/{path.name}": path for path in sorted((ROOT / "docs" / "coming-from").glob("*.md"))},
}
DETERMINERS = "a|the|no|each|every|this|its|their|another|own|one|existing|current|separate|missing|these|of"
# A term, and how it is written where it is used; `fit` and `split` are verbs, too.
TERMS = {
    "row group": r"\b(?P<term>row\s+groups?)\b",
    # Of several tables; not everything that something comes from.
    "source": r"\b(?:each|every|several|one of several)\s+\[?(?P<term>sources?)\b",
    "pass": r"\b(?:a|one|each|every)\s+\[?(?P<term>pass(?:es)?)\s+through\b",
    "split": r"(?<![\w-])(?P<term>splits?)\b",
    "lane": r"\b(?P<term>lanes?)\b",
    "block": r"\b(?P<term>blocks?)\b",
    "step": r"(?<!Slurm )(?<!job )\b(?P<term>steps?)\b",
    "batch": r"\b(?P<term>batch(?:es)?)\b(?!\s+(?:system|script))",
    "slot": r"\b(?P<term>slots?)\b",
    "ring": r"\b(?P<term>rings?)\b",
    "feeder": r"\b(?P<term>feeders?)\b",
    "snapshot": r"\b(?P<term>snapshots?)\b",
    "fit": rf"\b(?:{DETERMINERS})\s+\[?(?P<term>fits?)\b",
    "artifact": r"\b(?P<term>artifacts?)\b",
    # Not every other cache: of pages, of footers, of a processor.
    "cache": r"\b(?:the|with a|without a)\s+\[?(?P<term>cache)\b",
    "column group": r"(?<!over )\b(?P<term>column\s+groups?)\b",  # not NVTabular's
}
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#.*$", re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\((?!\S*glossary\.md)\S*?\)")
FILE = re.compile(r"[\w./-]+\.(?:md|yaml|py)\b")


def prose(text: str) -> str:
    """A page without code, headings, links to other pages, and targets of links; everything stays at its place."""
    for hidden in (FENCE, CODE, HEADING, LINK, re.compile(r"\]\([^)]*\)"), FILE):
        text = hidden.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def first_use(text: str, term: str) -> re.Match[str] | None:
    return re.search(TERMS[term], prose(text), re.IGNORECASE)


def is_linked(text: str, use: re.Match[str], term: str) -> bool:
    """Whether the use is the text of a link to its section."""
    start, end = use.span("term")
    link = rf"\]\((?:docs/|\.\./)?glossary\.md#{term.replace(' ', '-')}\)"
    return text[start - 1] == "[" and re.match(link, text[end:]) is not None


def test_every_term_is_defined_in_one_section():
    assert re.findall(r"^## (.*)$", GLOSSARY, re.MULTILINE) == list(TERMS)
    for section in re.split(r"^## .*$", GLOSSARY, flags=re.MULTILINE)[1:]:
        assert 10 < len(section.split()) < 60


@pytest.mark.parametrize("page", PAGES)
def test_the_first_use_of_a_term_is_a_link(page: str):
    text = PAGES[page].read_text(encoding="utf-8")
    for term in TERMS:
        use = first_use(text, term)
        line = text.count("\n", 0, use.start()) + 1 if use is not None else 0
        assert use is None or is_linked(text, use, term), f"{page}:{line}: link {term!r} to glossary.md"


def test_a_use_without_a_link_is_found():
    use = first_use("`block` and # a block", "block")
    assert use is not None
    assert use.start("term") == 16
    assert not is_linked("`block` and # a block", use, "block")
    linked = "a [block](glossary.md#block) and a block"
    assert is_linked(linked, first_use(linked, "block"), "block")
    assert first_use("it fits", "fit") is None
