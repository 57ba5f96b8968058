"""Find names of Feedline in a piece of Python that do not exist, without running it.

Values are followed as far as a page's code needs: `x = FeedlineDataset(...)`, `with ... as x`, `for batch in x`, and
`dataset` and `batch` where nothing says what they are. Of these and of the classes, attributes and keyword arguments
are looked up; of modules, what is imported from them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from feedline import Batch, FeedlineDataset, Pipeline, Table

_CLASSES: dict[str, type] = {each.__name__: each for each in (Batch, FeedlineDataset, Pipeline, Table)}
# Methods that give an instance of these.
_MAKERS = {
    (Pipeline, "from_yaml"): Pipeline,
    (Pipeline, "from_dict"): Pipeline,
    (Table, "from_manifest"): Table,
    (FeedlineDataset, "evaluation"): FeedlineDataset,
    (Batch, "to"): Batch,
    (Batch, "clone"): Batch,
}


def missing_names(text: str) -> Iterator[str]:
    """Each that does not exist: `feedline.Nothing`, `Batch.nothing`, or `FeedlineDataset(nothing)` of an argument."""
    tree = ast.parse(text)
    instances = _instances(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "feedline":
            module = import_module(node.module or "")
            yield from (f"{node.module}.{name.name}" for name in node.names if not hasattr(module, name.name))
        elif isinstance(node, ast.Attribute) and (owner := _owner(node.value, instances)) is not None:
            if not hasattr(owner, node.attr) and node.attr not in _own_attributes(owner):
                yield f"{owner.__name__}.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from _unknown_arguments(node, instances)


def _instances(tree: ast.AST) -> dict[str, type]:
    """The variables that hold an instance of one of the classes."""
    found: dict[str, type] = {"dataset": FeedlineDataset, "batch": Batch}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in [each.id for each in node.targets if isinstance(each, ast.Name)]:
                made = _made(node.value, found)
                found.pop(target, None)
                if made is not None:
                    found[target] = made
        elif isinstance(node, ast.With):
            pairs = [(item.optional_vars, _made(item.context_expr, found)) for item in node.items]
            found |= {target.id: made for target, made in pairs if isinstance(target, ast.Name) and made is not None}
        elif (
            isinstance(node, ast.For)
            and isinstance(node.target, ast.Name)
            and _made(node.iter, found) is FeedlineDataset
        ):
            found[node.target.id] = Batch
    return found


def _made(node: ast.expr, instances: dict[str, type]) -> type | None:
    """The class of an expression's value, if it is one of these."""
    if isinstance(node, ast.Name):
        return instances.get(node.id)
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Name):
        return _CLASSES.get(node.func.id)
    if isinstance(node.func, ast.Attribute) and (owner := _owner(node.func.value, instances)) is not None:
        return _MAKERS.get((owner, node.func.attr))
    return None


def _owner(node: ast.expr, instances: dict[str, type]) -> type | None:
    """The class whose attributes an expression has: its value's, or the class itself."""
    if isinstance(node, ast.Name) and node.id in _CLASSES:
        return _CLASSES[node.id]
    return _made(node, instances)


def _own_attributes(owner: type) -> set[str]:
    """What its constructors set."""
    makers = [vars(each)["__init__"] for each in owner.__mro__ if "__init__" in vars(each)]
    sources = [inspect.getsource(each) for each in makers if getattr(each, "__module__", "").startswith("feedline")]
    trees = [ast.parse(textwrap.dedent(source)) for source in sources]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def _unknown_arguments(call: ast.Call, instances: dict[str, type]) -> Iterator[str]:
    function: Any = None
    if isinstance(call.func, ast.Name):
        function, name = _CLASSES.get(call.func.id), call.func.id
    elif isinstance(call.func, ast.Attribute) and (owner := _owner(call.func.value, instances)) is not None:
        function, name = getattr(owner, call.func.attr, None), f"{owner.__name__}.{call.func.attr}"
    if function is None:
        return
    parameters = inspect.signature(function).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        known = {each.name for each in parameters}
        yield from (f"{name}({each.arg})" for each in call.keywords if each.arg is not None and each.arg not in known)
