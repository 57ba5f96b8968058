"""docs/operations.md lists the messages that the code has: none that it has not, and every warning and ClusterError."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations.md"
KERNELS = ROOT / "feedline" / "native" / "kernels.py"
TOLD = [
    KERNELS,
    ROOT / "feedline" / "extras.py",
    *sorted((ROOT / "feedline" / "service").rglob("*.py")),
    *sorted((ROOT / "feedline" / "blocks").rglob("*.py")),
]
FORMAT = re.compile(r"%[-.\d,]*[a-z]")


def text_of(node: ast.expr) -> str | None:
    """A string of the code, with "…" for what varies; None for what is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return FORMAT.sub("…", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BoolOp):
        return next((text for part in node.values if (text := text_of(part)) is not None), None)
    return None


@cache
def messages() -> dict[str, re.Pattern[str]]:
    """The messages of the page's tables, as patterns for strings of the code."""
    rows = re.findall(r"^\| (`.*?`(?: … `.*?`)?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = [row.replace("` … `", "…").strip("`") for row in rows]
    return {each: re.compile(".*?".join(map(re.escape, each.split("…"))), re.DOTALL) for each in found}


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in TOLD}


@cache
def strings() -> tuple[str, ...]:
    nodes = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.expr)]
    return tuple(text for node in nodes if (text := text_of(node)))


def told() -> Iterator[tuple[str, str]]:
    """Where a warning is logged or a ClusterError made, and its text."""
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args and (text := text_of(node.args[0]))):
                continue
            is_warning = isinstance(node.func, ast.Attribute) and node.func.attr == "warning"
            if is_warning or (isinstance(node.func, ast.Name) and node.func.id == "ClusterError"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def is_of_the_code(message: str) -> bool:
    """What is put together from several strings, "subject" and "is not of the authority", is found by its parts."""
    parts = [part.strip() for part in message.split("…") if len(part.strip()) > 3]
    whole = any(messages()[message].search(text) for text in strings())
    return bool(parts) and (whole or all(any(part in text for text in strings()) for part in parts))


def test_messages_of_the_page_are_those_of_the_code():
    assert not [message for message in messages() if not is_of_the_code(message)]


def test_every_warning_and_error_is_on_the_page():
    missing = [
        f"{where}: {text}" for where, text in told() if not any(each.match(text) for each in messages().values())
    ]
    assert not missing, "docs/operations.md does not say what these mean:\n" + "\n".join(missing)


def test_what_is_not_on_the_page_is_found():
    assert len(list(told())) > 25
    assert not any(each.match("the moon is full") for each in messages().values())
