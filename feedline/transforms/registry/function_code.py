"""Digest what decides what a user's function computes: sources of the own modules that it imports, and packages.

Runs in: every process that loads users' functions. From the module that pipeline.yaml names, and the one that defines
the function, import statements are followed through *own* modules: those that no distribution has installed under a
version, such as files beside pipeline.yaml. Python's modules and installed ones are named by versions. Feedline, numpy,
polars and pyarrow are left out, as the environment of a job names them. Installed modules that are loaded are searched
for imports that lead back to own ones:

    my_features (own) -> a (installed, 1.0) -> b (an editable install), settings (beside pipeline.yaml)
    sources: my_features, b, settings       packages: a 1.0

Sources are digested as they were when the process imported them. What no digest tells is an *obstacle*, with which a
cache keeps nothing of the function: code that is loaded by name, a compiled own module, a file that has changed since,
a package that was installed since.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import platform
import re
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from functools import cache
from pathlib import Path

from feedline.dataclass import dataclass
from feedline.transforms.registry.installed_packages import (
    changed_ns,
    distribution_of,
    forget_packages,
    package_version,
    required_versions,
)

# --------------------------------------------------------------------------------------------------------------------
# List the modules that a Python source imports, without running it, and what it does that no list can tell. All
# import statements count, those inside functions and conditions too. A name may be a module or an attribute: `from a
# import b` imports `a`, and perhaps `a.b`; so does `import a` with `a.b` in an expression.

# Modules that import, load or run what their arguments name.
_LOADERS = frozenset(
    {"__main__", "builtins", "cffi", "code", "codeop", "ctypes", "imp", "importlib"}
    | {"lazy_loader", "pkg_resources", "pkgutil", "runpy", "zipimport"}
)
_LOADER_NAMES = frozenset({"__builtins__", "__import__", "eval", "exec"})
_LOADER_ATTRIBUTES = frozenset({"__import__", "import_module", "load_library", "register_plugin_function"})
_IMPORT = re.compile(rb"(?:^|[;:])[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+([\w., \t]+))", re.MULTILINE)
_SYSTEM_STATE = frozenset({"meta_path", "modules", "path", "path_hooks"})  # of sys


def packages_in(source: bytes) -> set[str]:
    """The first parts of the names that a source may import, without parsing it: all that it does, and perhaps words of
    its texts."""
    lines = b"\n".join([line for line in source.split(b"\n") if b"import" in line])  # a third of the time without
    found = set[bytes]()
    for one, several in _IMPORT.findall(lines):
        found.update([one] if one else (name.strip().partition(b".")[0] for name in several.split(b",")))
    return {name.partition(b" ")[0].decode(errors="replace") for name in found if name}


class SourceImports:
    """What a source imports, each name once, in order of appearance. Raises SyntaxError, as Python does.

    package: that relative imports start from. modules: names of import statements. perhaps: names that are modules or
    attributes of modules. stars: modules of which all names are imported.
    """

    def __init__(self, source: bytes, package: str) -> None:
        self._package = package
        self.modules: dict[str, None] = {}
        self.perhaps: dict[str, None] = {}
        self.stars: dict[str, None] = {}
        self._bound: dict[str, str] = {}  # names of the source, by which it calls modules
        self._loaders: dict[int, str] = {}  # by line
        nodes = [*_nodes(ast.parse(source))]
        for node in nodes:
            if isinstance(node, ast.Import):
                self._read_import(node)
            elif isinstance(node, ast.ImportFrom):
                self._read_from(node)
        for node in nodes:
            if isinstance(node, ast.Attribute):
                self._read_attribute(node)
            elif isinstance(node, ast.Name) and node.id in _LOADER_NAMES:
                self._note(node.id, node.lineno)

    @property
    def obstacle(self) -> str:
        """A call or module that loads code by name, with its line; "" without one."""
        line = min(self._loaders, default=0)
        return f"{self._loaders[line]} in line {line}" if line else ""

    def _note(self, what: str, line: int) -> None:
        self._loaders.setdefault(line, what)

    def _read_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._module(alias.name, node.lineno)
            first = alias.name.partition(".")[0]
            self._bound[alias.asname or first] = alias.name if alias.asname else first

    def _read_from(self, node: ast.ImportFrom) -> None:
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
                self._note(alias.name, node.lineno)
            self.perhaps[f"{name}.{alias.name}"] = None
            self._bound[alias.asname or alias.name] = f"{name}.{alias.name}"

    def _read_attribute(self, node: ast.Attribute) -> None:
        if node.attr in _LOADER_ATTRIBUTES:
            self._note(node.attr, node.lineno)
        steps: list[str] = []
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            steps.append(root.attr)
            root = root.value
        bound = self._bound.get(root.id) if isinstance(root, ast.Name) else None
        if bound is None:
            return
        if bound == "sys" and steps[-1] in _SYSTEM_STATE:
            self._note(f"sys.{steps[-1]}", node.lineno)
        for name in _beginnings(bound, steps[::-1]):
            self.perhaps[name] = None

    def _module(self, name: str, line: int) -> None:
        if name == "__future__":
            return
        if name.partition(".")[0] in _LOADERS:
            self._note(name, line)
        self.modules[name] = None


def _nodes(root: ast.AST) -> Iterator[ast.AST]:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        waiting += node.orelse if isinstance(node, ast.If) and is_typing else ast.iter_child_nodes(node)


def _beginnings(name: str, steps: list[str]) -> Iterator[str]:
    # a, [b, c] -> a.b, a.b.c
    for step in steps:
        name = f"{name}.{step}"
        yield name


# --------------------------------------------------------------------------------------------------------------------

_ENVIRONMENT = frozenset({"feedline", "numpy", "polars", "pyarrow"})
_MOST_SOURCES = 300  # of one function: each takes some milliseconds to parse
_CHANGED = "it may have changed since it was imported"
_NO_IMPORTS = SourceImports(b"", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCode:
    """What decides what a function computes, besides its parameters and the environment of a job.

    sources: SHA-256 by own module, and the version of an installed distribution that the function comes from. packages:
    versions of Python and of the distributions that are imported, with what these require. obstacle: what else may
    decide it; "" if nothing does. outdated: of that, why the process may run other sources or packages than these.
    """

    sources: tuple[tuple[str, str], ...]
    packages: tuple[tuple[str, str], ...]
    obstacle: str
    outdated: str = ""

    @property
    def source(self) -> str:
        """The digest of the sources: of one, its SHA-256; empty without any."""
        if len(self.sources) < 2:
            return self.sources[0][1] if self.sources else ""
        return hashlib.sha256(json.dumps(self.sources).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Located:
    """A module's file, none for a namespace package, and whether it is a package."""

    file: str
    is_package: bool


@dataclass(frozen=True, slots=True)
class _OwnSource:
    """An own module as it was when it was digested first. spec: another one after a reload."""

    spec: object
    sha256: str
    imports: SourceImports
    obstacle: str


_sources: dict[str, _OwnSource] = {}  # by module
_imported_ns: dict[str, tuple[object, int]] = {}  # by module, with its spec: a time before its import
_codes: dict[tuple[str, str], tuple[dict[str, object], FunctionCode]] = {}  # with the specs of all modules


@contextmanager
def noting_imports(name: str) -> Iterator[None]:
    """Note when an import of that name brings which modules, so that a later change of their files is noticed."""
    if name in sys.modules:
        yield
        return
    before, began_ns = frozenset(sys.modules), time.time_ns()
    yield
    for each in frozenset(sys.modules).difference(before):
        _imported_ns[each] = (_spec_of(each), began_ns)


def forget_code() -> None:
    """Forget all digests, as in a new process."""
    for kept in (_sources, _imported_ns, _codes):
        kept.clear()
    forget_packages()


def code_of_function(module: str, defining: str) -> FunctionCode:
    """The code that a function runs: of the imported module that names it, of the one that defines it, and of those
    that they import."""
    key = (module, defining)
    kept = _codes.get(key)
    if kept is None or any(_spec_of(name) is not spec for name, spec in kept[0].items()):
        if kept is not None:
            forget_packages()
        search = _Search()
        search.begin(module)
        search.add(defining)
        search.follow()
        names = (module, *search.modules, *search.installed)
        kept = _codes[key] = ({name: _spec_of(name) for name in names}, search.code())
    return kept[1]


@dataclass(slots=True)
class _Search:
    """Own modules with their digests, and what else they import, found from some modules on. installed: loaded packages
    (the first parts of names) that are searched for imports of own modules."""

    modules: dict[str, str] = field(default_factory=dict)
    installed: dict[str, None] = field(default_factory=dict)
    _waiting: list[str] = field(default_factory=list)  # own modules whose imports are not followed yet
    _unsearched: list[str] = field(default_factory=list)  # installed packages
    _leads_back: dict[str, bool] = field(default_factory=dict)  # whether a package may hold own modules
    _versions: dict[str, str] = field(default_factory=dict)  # of what the function itself comes from
    _distributions: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)
    _obstacles: list[str] = field(default_factory=list)
    _outdated: list[str] = field(default_factory=list)

    def begin(self, root: str) -> None:
        """Add a module whose source is digested wherever it comes from."""
        located = _locate(root)
        covered, distribution = True, None
        if located is not None:
            covered = _is_covered(root, located.file)
            distribution = None if covered else distribution_of(located.file)
        if not covered and distribution is None:
            self.add(root)
            return
        if located is not None and located.file.endswith(".py"):
            self.modules[root] = _source_of(root, located).sha256
        if distribution is not None:
            self._add_installed(root, distribution)
            self._distributions.add(distribution)
            name, version = package_version(distribution)
            self._versions[f"package {name}"] = version

    def follow(self) -> None:
        """Add whatever own modules import, and own modules that installed ones import."""
        while self._waiting or self._unsearched:
            if len(self.modules) > _MOST_SOURCES:
                self._obstacles.append(f"more than {_MOST_SOURCES} own modules are imported")
                return
            if not self._waiting:
                self._search_package(self._unsearched.pop())
                continue
            imports = _sources[self._waiting.pop()].imports
            for name in (*imports.modules, *imports.perhaps):
                self.add(name)
            for name in imports.stars:
                if name in self.modules and (located := _locate(name)) is not None and located.is_package:
                    self._obstacles.append(f"all names of the package {name} are imported")

    def code(self) -> FunctionCode:
        packages = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
        packages |= required_versions(self._distributions)
        return FunctionCode(
            sources=tuple(sorted((self.modules | self._versions).items())),
            packages=tuple(sorted(packages.items())),
            obstacle=next(iter([*self._outdated, *self._obstacles]), ""),
            outdated=next(iter(self._outdated), ""),
        )

    def add(self, name: str) -> None:
        """Add a module, and the packages that it is in; nothing for a name that is no module."""
        if not name or name in self._seen:
            return
        self._seen.add(name)
        parent = name.rpartition(".")[0]
        self.add(parent)
        if parent and not (parent in self.modules or _is_namespace(parent)):
            return  # in an installed package, which its version covers, or an attribute
        located = _locate(name)
        if located is None or _is_covered(name, located.file) or (located.is_package and not located.file):
            return
        distribution = distribution_of(located.file)
        if distribution is not None:
            self._distributions.add(distribution)
            self._add_installed(name, distribution)
        elif not located.file.endswith(".py"):
            self._obstacles.append(f"{name} is no Python source")
        else:
            source = _source_of(name, located)
            self.modules[name] = source.sha256
            self._waiting.append(name)
            kind = self._outdated if source.obstacle == _CHANGED else self._obstacles
            kind += [f"{name}: {source.obstacle}"] if source.obstacle else []

    def _add_installed(self, name: str, distribution: str) -> None:
        first = name.partition(".")[0]
        if first in self.installed or first not in sys.modules:
            return
        self.installed[first] = None
        self._unsearched.append(first)
        installed_ns = changed_ns(distribution)
        if installed_ns is None or installed_ns > _imported_at(first):
            self._outdated.append(f"{first}: it may have been installed since it was imported")

    def _search_package(self, package: str) -> None:
        """Add the own modules that loaded modules of an installed package import, and loaded packages to search."""
        loaded = [name for name in sys.modules.copy() if name == package or name.startswith(f"{package}.")]
        for name in loaded:
            located = _locate(name)
            if located is None:
                continue
            leading = {each for each in _packages_of(located.file) if self._may_lead_back(each)}
            if not leading:
                continue
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                content = Path(located.file).read_bytes()
                imports = SourceImports(content, name if located.is_package else name.rpartition(".")[0])
                for each in (*imports.modules, *imports.perhaps):
                    if each.partition(".")[0] in leading:
                        self.add(each)

    def _may_lead_back(self, package: str) -> bool:
        """Whether a package may hold own modules; an installed one is added."""
        if package not in self._leads_back:
            # looking for distutils, which is not loaded, would import setuptools
            unused = package in sys.stdlib_module_names and package not in sys.modules
            located = None if unused or package == "__main__" else _locate(package)
            own = located is not None and not _is_covered(package, located.file)
            if own and located is not None:
                distribution = distribution_of(located.file) if located.file else None
                if distribution is not None:
                    self._add_installed(package, distribution)
                own = distribution is None and (bool(located.file) or located.is_package)
            self._leads_back[package] = own
        return self._leads_back[package]


@cache
def _packages_of(file: str) -> frozenset[str]:
    try:
        return frozenset(packages_in(Path(file).read_bytes())) if file.endswith(".py") else frozenset()
    except OSError:
        return frozenset()


def _locate(name: str) -> _Located | None:
    """A module that is loaded, or that an import would find now, without importing it; None without one."""
    if name in sys.modules:
        module = sys.modules[name]
        if module is None:  # whose import somebody has forbidden
            return None
        return _Located(getattr(module, "__file__", None) or "", hasattr(module, "__path__"))
    parent, _, _ = name.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", ()) if parent else None
    for finder in sys.meta_path if parent not in sys.modules or folders else ():
        with contextlib.suppress(ImportError, AttributeError):
            spec = finder.find_spec(name, folders)
            if spec is not None:
                is_package = spec.submodule_search_locations is not None
                return _Located((spec.origin or "") if spec.has_location else "", is_package)
    return None


def _is_namespace(name: str) -> bool:
    located = _locate(name)
    return located is not None and located.is_package and not located.file


def _is_covered(name: str, file: str) -> bool:
    """Whether the environment of a job, or Python's version, names a module."""
    first = name.partition(".")[0]
    if first in _ENVIRONMENT:
        return True
    inside = not file or (file.startswith(_standard_folders()) and "-packages/" not in file)
    return first in sys.stdlib_module_names and inside


@cache
def _standard_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({f"{paths[kind]}/" for kind in ("stdlib", "platstdlib")})


def _source_of(name: str, located: _Located) -> _OwnSource:
    """A module's source, as it was when it was asked for first."""
    spec = _spec_of(name)
    kept = _sources.get(name)
    if kept is None or kept.spec is not spec:
        kept = _sources[name] = _read_source(name, located, spec)
    return kept


def _read_source(name: str, located: _Located, spec: object) -> _OwnSource:
    try:
        content = Path(located.file).read_bytes()
        status = Path(located.file).stat()
    except OSError:
        return _OwnSource(spec, "", _NO_IMPORTS, "its source cannot be read")
    imported_ns = _imported_at(name)
    sha256 = hashlib.sha256(content).hexdigest()
    try:
        imports = SourceImports(content, name if located.is_package else name.rpartition(".")[0])
    except (SyntaxError, ValueError):
        return _OwnSource(spec, sha256, _NO_IMPORTS, "its source cannot be parsed")
    obstacle = f"{imports.obstacle} may load any code" if imports.obstacle else ""
    if name not in sys.modules:
        obstacle = "it is imported when a function runs"
    elif max(status.st_mtime_ns, status.st_ctime_ns) > imported_ns:
        obstacle = _CHANGED
    return _OwnSource(spec, sha256, imports, obstacle)


def _imported_at(name: str) -> int:
    """A time before the import of a module: noted, or the start of the process."""
    spec = _spec_of(name)
    noted_spec, noted_ns = _imported_ns.get(name, (None, 0))
    return noted_ns if noted_spec is spec and spec is not None else _process_start_ns()


def _spec_of(name: str) -> object:
    return getattr(sys.modules.get(name), "__spec__", None)


@cache
def _process_start_ns() -> int:
    import psutil  # noqa: PLC0415 -- 20 ms that most processes do not need

    return int(psutil.Process().create_time() * 1e9)
