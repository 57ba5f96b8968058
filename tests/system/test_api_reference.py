"""Each public name of the Python API is on a page of docs/api, with a docstring that names its parameters.

Its examples are run by test_docs.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline import errors, modules

ROOT = Path(__file__).resolve().parents[2]
SHOWN = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


@cache
def shown() -> dict[str, Any]:
    """What the pages of docs/api show, by its path."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "api").glob("*.md"))]
    return {path: found(path) for text in texts for path in SHOWN.findall(text)}


def found(path: str) -> Any:
    """The object with a path: a module, or a name of one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


def documented() -> list[Any]:
    """All classes and functions of the pages, those of modules among them."""
    whole = [each for each in shown().values() if not inspect.ismodule(each)]
    return [*whole, *(getattr(modules, name) for name in modules.__all__), *error_classes()]


def is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, errors.FeedlineError)


def error_classes() -> list[type]:
    return [each for each in vars(errors).values() if is_error(each)]


def members(owner: type) -> Iterator[tuple[str, Any, str]]:
    """Each public method and property that Feedline defines, with its docstring."""
    for name in dir(owner):
        definer = next(each for each in owner.__mro__ if name in vars(each)) if not name.startswith("_") else object
        if definer.__module__.startswith("feedline"):
            member = inspect.getattr_static(owner, name)
            if callable(member) or hasattr(member, "fget") or hasattr(member, "func") or hasattr(member, "__func__"):
                yield name, member, member.__doc__ or ""


def parameters(function: Any) -> list[str]:
    """What a function takes, or the constructor of a class, if it is Feedline's."""
    if dataclasses.is_dataclass(function):
        return [field.name for field in dataclasses.fields(function)]
    if inspect.isclass(function):
        function = vars(function).get("__init__", lambda: None)
    names = inspect.signature(getattr(function, "__func__", function)).parameters
    return [name for name in names if name not in ("self", "cls")]


def functions() -> Iterator[tuple[str, Any, str]]:
    """Each public class, function and method with its name, and what documents it: its docstring and its class's."""
    for each in documented():
        yield each.__name__, each, each.__doc__ or ""
        for name, member, text in members(each) if inspect.isclass(each) else ():
            if callable(member) or hasattr(member, "__func__"):
                yield f"{each.__name__}.{name}", member, f"{text}\n{each.__doc__}"


def test_every_export_is_on_a_page():
    names = {f"feedline.{name}" for name in feedline.__all__ if name != "__version__"}
    assert not names - {path for path in shown() if path.count(".") == 1}
    assert "feedline.modules" in shown()


def test_the_page_of_stability_declares_what_is_exported():
    text = " ".join((ROOT / "docs" / "stability.md").read_text(encoding="utf-8").split())
    [names] = re.findall(r"the names of `feedline.__all__` \(([^)]+)\)", text)
    assert set(re.findall(r"`(\w+)`", names)) == set(feedline.__all__) - {"__version__"}
    [public] = re.findall(r"the modules that pages import from \(([^)]+)\)", text)
    assert re.findall(r"`([\w.]+)`", public) == ["feedline.modules"]


def test_every_name_and_member_has_a_docstring():
    missing = [each.__name__ for each in documented() if not each.__doc__]
    for each in filter(inspect.isclass, documented()):
        missing += [f"{each.__name__}.{name}" for name, _, text in members(each) if not text]
    assert not missing


def test_every_parameter_is_named_by_its_docstring():
    unnamed = [
        f"{name}({parameter})"
        for name, function, text in functions()
        for parameter in parameters(function)
        if not re.search(rf"\b{parameter}\b", text)
    ]
    assert not unnamed, "\n".join(unnamed)


def test_every_name_has_an_example():
    """Errors have one for all, in their module."""
    assert not [
        each.__name__ for each in [*documented(), errors] if ">>> " not in (each.__doc__ or "") and not is_error(each)
    ]


@pytest.mark.parametrize("name", ["no_such", "Plan"])
def test_a_name_that_is_not_exported_is_not_shown(name: str):
    assert f"feedline.{name}" not in shown()
    with pytest.raises(AttributeError):
        found(f"feedline.{name}")
