"""Stage the pages of the documentation as one tree, in MkDocs' dialect of Markdown, and give it their order.

`python tools/stage_site.py build` writes build/pages, and build/mkdocs.yml: mkdocs.yml with the version and the order
of pages, that of the tables in docs/README.md. Pages keep their paths, so that links between them stay as they are.
What pages link to that is no page is staged as one: a source file as its code, a folder as the list of its pages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OF_THE_PROJECT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md")
PICTURES = (".png", ".svg")

_FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_PICTURE = re.compile(  # the dark one, the light one, and the words in their place
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def paths_of_pages() -> list[str]:
    """Every page of the repository, by its path in it."""
    found = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md"), *ROOT.glob("examples/**/README.md")]
    return ["README.md", *OF_THE_PROJECT, *sorted(str(path.relative_to(ROOT)) for path in found)]


def stage(folder: Path) -> None:
    """Write all pages, what they link to and their pictures below a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = paths_of_pages()
    others: dict[str, str] = {}  # what is linked and no page: the page that stands for it
    for page in pages:
        _write(folder / page, page_text(page, pages, others))
    for target, page in others.items():
        _write(folder / page, _listing(target, pages) if (ROOT / target).is_dir() else _source_text(target))
    for name in ("assets", "images"):
        shutil.copytree(ROOT / "docs" / name, folder / "docs" / name)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def page_text(page: str, pages: list[str], others: MutableMapping[str, str]) -> str:
    """A page as it is staged. others: gets what it links to that is no page."""

    def link(match: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), match[2]))
        if "://" in match[2] or target in pages or target.endswith(PICTURES):
            return match[0]
        others[target] = f"{target}/README.md" if (ROOT / target).is_dir() else f"{target}.md"
        return match[1] + os.path.relpath(others[target], os.path.dirname(page) or ".") + match[3]

    text = (ROOT / page).read_text(encoding="utf-8")
    return "".join(part if is_code else in_dialect(_LINK.sub(link, part)) for is_code, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """The blocks of code and what is between them, in order."""
    end = 0
    for match in _FENCE.finditer(text):
        yield False, text[end : match.start()]
        yield True, _code(*match.groups())
        end = match.end()
    yield False, text[end:]


def _code(indent: str, first: str, lines: str) -> str:
    """A block of code. Of the words after ``` the language is left; in a list the block is indented by four spaces."""
    block = f"```{first.partition(' ')[0]}\n{textwrap.dedent(lines)}```"
    return textwrap.indent(block, "    ") if indent else block


def in_dialect(text: str) -> str:
    """Text with an empty line between a paragraph and a list that follows it, and pictures in the site's scheme, not in
    the browser's."""
    text = _PICTURE.sub(r"![\3](\2#only-light) ![\3](\1#only-dark)", text)
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        before = lines[-1] if lines else "\n"
        if _ITEM.match(line) and before.strip() and not _ITEM.match(before) and not before.startswith(" "):
            lines.append("\n")
        lines.append(line)
    return "".join(lines)


def _source_text(path: str) -> str:
    language = _LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f"# {path}\n\n````{language}\n{(ROOT / path).read_text(encoding='utf-8')}````\n"


def _listing(folder: str, pages: list[str]) -> str:
    inside = [page for page in pages if page.startswith(f"{folder}/")]
    return f"# {folder}\n\n" + "".join(f"- [{title(page)}]({os.path.relpath(page, folder)})\n" for page in inside)


def title(page: str) -> str:
    """The first heading of a page."""
    [first, *_] = re.findall(r"^# (.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return str(first)


def navigation() -> list[Mapping[str, Any]]:
    """Pages by kind, as docs/README.md lists them: its headings, and the pages that their tables link first. Pages of a
    folder below docs/ are a group of their own."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    kinds: list[Mapping[str, Any]] = [{"Feedline": ["README.md", "docs/README.md"]}]
    for kind in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        entries: list[Any] = []
        groups: dict[str, list[str]] = {}
        for link in re.findall(r"^\| \[[^\]]*\]\(([^)]+)\)", kind, re.MULTILINE):
            path = os.path.normpath(os.path.join("docs", link))
            parts = path.split("/")
            if len(parts) == 3 and parts[0] == "docs":
                if parts[1] not in groups:
                    entries.append({_group_name(parts[1]): groups.setdefault(parts[1], [])})
                groups[parts[1]].append(path)
            elif path.endswith(".md") and path not in OF_THE_PROJECT:
                entries.append(path)
        kinds.append({kind.partition("\n")[0]: entries})
    return [*kinds, {"Project": list(OF_THE_PROJECT)}]


def _group_name(folder: str) -> str:
    index = f"docs/{folder}/README.md"
    return title(index) if (ROOT / index).is_file() else folder.replace("-", " ").capitalize()


def configuration() -> str:
    """mkdocs.yml, completed."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    rest = {"nav": navigation(), "copyright": f"Feedline {version}, Apache License 2.0"}
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in rest.items()]  # JSON is YAML
    return (ROOT / "mkdocs.yml").read_text(encoding="utf-8") + "".join(lines)


def main(build: Path) -> None:
    """Write the pages and the configuration."""
    stage(build / "pages")
    _write(build / "mkdocs.yml", configuration())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
