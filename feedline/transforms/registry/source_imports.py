"""List the modules that a Python source imports, without running it, and what it does that no list can tell.

Pure. All import statements count, those inside functions and conditions too. A name may be a module or an attribute:
`from a import b` imports `a`, and perhaps `a.b`; so does `import a` with `a.b` in an expression.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Modules that import, load or run what their arguments name.
_LOADERS = frozenset(
    {"__main__", "builtins", "cffi", "code", "codeop", "ctypes", "imp", "importlib"}
    | {"lazy_loader", "pkg_resources", "pkgutil", "runpy", "zipimport"}
)
_LOADER_NAMES = frozenset({"__builtins__", "__import__", "eval", "exec"})
_LOADER_ATTRIBUTES = frozenset({"__import__", "import_module", "load_library", "register_plugin_function"})
_IMPORT = re.compile(rb"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))", re.MULTILINE)
_SYSTEM_STATE = frozenset({"meta_path", "modules", "path", "path_hooks"})  # of sys


@dataclass(frozen=True, slots=True)
class SourceImports:
    """What a source imports, each name once, in order of appearance.

    modules: names of import statements. perhaps: names that are modules or attributes of modules. stars: modules of
    which all names are imported. obstacle: a call or module that loads code by name, with its line; "" without one.
    """

    modules: tuple[str, ...]
    perhaps: tuple[str, ...]
    stars: tuple[str, ...]
    obstacle: str


def imports_of(source: bytes, package: str) -> SourceImports:
    """What a source imports. package: that relative imports start from. Raises SyntaxError, as Python does."""
    reader = _Reader(package)
    nodes = [*_nodes(ast.parse(source))]
    for node in nodes:
        if isinstance(node, ast.Import):
            reader.read_import(node)
        elif isinstance(node, ast.ImportFrom):
            reader.read_from(node)
    for node in nodes:
        if isinstance(node, ast.Attribute):
            reader.read_attribute(node)
        elif isinstance(node, ast.Name) and node.id in _LOADER_NAMES:
            reader.note(node.id, node.lineno)
    return SourceImports(tuple(reader.modules), tuple(reader.perhaps), tuple(reader.stars), reader.obstacle())


def packages_in(source: bytes) -> set[str]:
    """The first parts of the names that a source may import, without parsing it: all that it does, and perhaps words of
    its texts."""
    lines = b"\n".join([line for line in source.split(b"\n") if b"import" in line])  # a third of the time without
    found = set[bytes]()
    for one, several in _IMPORT.findall(lines):
        found.update([one] if one else (name.strip().partition(b".")[0] for name in several.split(b",")))
    return {name.partition(b" ")[0].decode(errors="replace") for name in found if name}


class _Reader:
    def __init__(self, package: str) -> None:
        self._package = package
        self.modules: dict[str, None] = {}
        self.perhaps: dict[str, None] = {}
        self.stars: dict[str, None] = {}
        self._bound: dict[str, str] = {}  # names of the source, by which it calls modules
        self._loaders: dict[int, str] = {}  # by line

    def note(self, what: str, line: int) -> None:
        self._loaders.setdefault(line, what)

    def obstacle(self) -> str:
        if not self._loaders:
            return ""
        line = min(self._loaders)
        return f"{self._loaders[line]} in line {line}"

    def read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(alias.name, node.lineno)
            first = alias.name.partition(".")[0]
            self._bound[alias.asname or first] = alias.name if alias.asname else first

    def read_from(self, node: ast.ImportFrom) -> None:
        name = node.module or ""
        if node.level:
            parents = self._package.split(".")
            base = ".".join(parents[: len(parents) - node.level + 1])
            name = f"{base}.{name}" if base and name else base or name
        self._module(name, node.lineno)
        for alias in node.names:
            if alias.name == "*":
                self.stars[name] = None
                continue
            if alias.name in _LOADER_ATTRIBUTES or (name == "sys" and alias.name in _SYSTEM_STATE):
                self.note(alias.name, node.lineno)
            self.perhaps[f"{name}.{alias.name}"] = None
            self._bound[alias.asname or alias.name] = f"{name}.{alias.name}"

    def read_attribute(self, node: ast.Attribute) -> None:
        if node.attr in _LOADER_ATTRIBUTES:
            self.note(node.attr, node.lineno)
        steps: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            steps.append(root.attr)
            root = root.value
        bound = self._bound.get(root.id) if isinstance(root, ast.Name) else None
        if bound is None:
            return
        if bound == "sys" and steps[-1] in _SYSTEM_STATE:
            self.note(f"sys.{steps[-1]}", node.lineno)
        for name in _beginnings(bound, steps[::-1]):
            self.perhaps[name] = None

    def _module(self, name: str, line: int) -> None:
        if name == "__future__":
            return
        if name.partition(".")[0] in _LOADERS:
            self.note(name, line)
        self.modules[name] = None


def _nodes(root: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of blocks that no process runs."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        waiting += node.orelse if isinstance(node, ast.If) and is_typing else ast.iter_child_nodes(node)


def _beginnings(name: str, steps: list[str]) -> Iterator[str]:
    for step in steps:
        name = f"{name}.{step}"
        yield name
