"""Where a module reaches into Dask, distributed or Tornado, as far as its syntax tree tells.

An object is one of theirs if it is imported, annotated with an imported class, made by calling one, or an attribute, an
element or another name of such an object. What a function of our own returns is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

LIBRARIES = {"dask", "distributed", "tornado"}
# Their classes that are made to be subclassed.
EXTENSION_POINTS = {"SchedulerPlugin", "WorkerPlugin", "NannyPlugin", "RequestHandler", "Application"}
# Tables that a node calls what it finds in; names that begin with ours may be added.
TABLES = {"handlers", "stream_handlers", "extensions", "periodic_callbacks", "plugins", "startup_information"}
CHANGES = {"update", "pop", "popitem", "setdefault", "clear"}
_OWN = "feedline"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def accesses(module: ast.Module) -> list[tuple[int, str]]:
    """The lines of a module that replace, override or use in private what is Dask's, each with its reason."""
    imported = set(_imported(module))
    if not imported:
        return [(node.lineno, "setattr") for node in ast.walk(module) if _is_call_of(node, {"setattr", "delattr"})]
    found: set[tuple[int, str]] = set()
    _search(module, _extended(module, imported), found)
    return sorted(found)


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] in LIBRARIES]
            yield from (alias.asname or alias.name.split(".")[0] for alias in names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            yield from (alias.asname or alias.name for alias in node.names)


def _search(scope: ast.AST, theirs: set[str], found: set[tuple[int, str]]) -> None:
    """Look at a scope and those inside it; names of outer scopes are seen from inner ones."""
    for node in _within(scope):
        found.update((node.lineno, reason) for reason in _reasons(node, theirs))
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            _search(node, _extended(node, theirs), found)


def _within(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of the scopes inside it."""
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
            yield from _within(child)


def _extended(scope: ast.AST, theirs: set[str]) -> set[str]:
    """The names of their objects in a scope; in a class, those of all its methods that begin with `self`."""
    names = set(theirs)
    if isinstance(scope, _FUNCTIONS):
        arguments = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        names -= {argument.arg for argument in arguments}
        names |= {each.arg for each in arguments if each.annotation is not None and _names_theirs(each, theirs)}
    before = None
    while before != names:
        before = set(names)
        for node in _within(scope):
            if isinstance(node, ast.Assign):
                pairs = [pair for target in node.targets for pair in _pairs(target, node.value)]
                names |= {ast.unparse(target) for target, value in pairs if _is_theirs(value, names)}
            elif isinstance(node, ast.AnnAssign) and (
                _names_theirs(node, theirs) or (node.value is not None and _is_theirs(node.value, names))
            ):
                names.add(ast.unparse(node.target))
            elif isinstance(scope, ast.ClassDef) and isinstance(node, _FUNCTIONS):
                names |= {name for name in _extended(node, names) if name.startswith("self.")}
    return names


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with their values."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _names_theirs(node: ast.arg | ast.AnnAssign, theirs: set[str]) -> bool:
    """Whether an annotation names one of their classes."""
    assert node.annotation is not None
    return any(isinstance(each, ast.Name) and each.id in theirs for each in ast.walk(node.annotation))


def _is_theirs(node: ast.AST, theirs: set[str]) -> bool:
    if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in theirs:
        return True
    if isinstance(node, ast.Attribute | ast.Subscript | ast.Await):
        return _is_theirs(node.value, theirs)
    return isinstance(node, ast.Call) and _is_theirs(node.func, theirs)


def _reasons(node: ast.AST, theirs: set[str]) -> Iterator[str]:
    if _is_call_of(node, {"setattr", "delattr"}):
        yield "setattr"
    if isinstance(node, ast.ClassDef):
        bases = {ast.unparse(base) for base in node.bases if _is_theirs(base, theirs)}
        yield from (f"a subclass of {base}" for base in bases if base.split(".")[-1] not in EXTENSION_POINTS)
    if isinstance(node, ast.Attribute) and _is_private(node.attr) and ast.unparse(node.value) not in ("self", "cls"):
        yield f"the private {ast.unparse(node)}"
    if _is_call_of(node, {"getattr", "hasattr"}) and isinstance(node, ast.Call):
        names = [str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)]
        yield from (f"the private {name}" for name in names if _is_private(name))
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Delete):
        for target in node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]:
            yield from (f"an assignment to {ast.unparse(each)}" for each in ast.walk(target) if _is_set(each, theirs))
    if isinstance(node, ast.Attribute) and node.attr in CHANGES and _is_table(node.value, theirs):
        yield f"a change of {ast.unparse(node.value)}"


def _is_set(target: ast.AST, theirs: set[str]) -> bool:
    """Whether a target of an assignment belongs to one of their objects; but for names of ours in their tables."""
    if not isinstance(target, ast.Attribute | ast.Subscript) or not isinstance(target.ctx, ast.Store | ast.Del):
        return False
    if isinstance(target, ast.Subscript) and _is_text(target.slice) and target.slice.value.startswith(_OWN):
        return False
    return _is_theirs(target.value, theirs)


def _is_table(node: ast.AST, theirs: set[str]) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in TABLES and _is_theirs(node.value, theirs)


def _is_call_of(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
