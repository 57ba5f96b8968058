"""Load the Python functions that pipeline.yaml names, and check that every worker has the same source.

Runs in: every process that compiles features, where pipeline.yaml sets `allow_code: true`. A function is named
`module:function`. Its module is imported as usual, with the folder of pipeline.yaml last on the path during the import
only. The digest of its sources is part of the job, so no worker computes with another version of them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from feedline.config.features import FeatureSpec, OpCall
from feedline.dataclass import dataclass
from feedline.errors import ClusterError, SpecError
from feedline.transforms.registry.function_code import FunctionCode, code_of_function, noting_imports

ENTRY_POINTS = "feedline.ops"
PYTHON = "python"  # the op whose parameter is a function

_importing = threading.RLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredFunction:
    """A function that a job calls: its op, `module:function`, the folder of pipeline.yaml, its sources' digest."""

    op: str
    function: str
    folder: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFunction:
    function: Callable[..., Any]
    code: FunctionCode


@functools.cache
def entry_points() -> dict[str, str]:
    """The functions that installed packages provide as ops: `module:function` by the op's name."""
    return {point.name: point.value for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}


def keep_pandas_out(code: Sequence[RequiredFunction]) -> None:
    """Keep pyarrow from importing pandas, which takes 0.25 s, in a process that calls no user's functions.

    pyarrow imports it once, with the first Python value that it converts, to recognise pandas' objects from then on. In
    this process nobody makes any, unless the user's functions do. Conversion to pandas still works.
    """
    if code or "pandas" in sys.modules:
        return
    absence = _Absence()
    sys.meta_path.insert(0, absence)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(absence)


class _Absence(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not looked for", name=fullname)


def load_function(name: str, folder: str) -> LoadedFunction:
    """The function of that name. Raises SpecError if it, or its module, cannot be loaded."""
    module_name, colon, function_name = name.partition(":")
    names = [*module_name.split("."), *function_name.split(".")]
    if not colon or not all(part.isidentifier() for part in names):
        raise SpecError(f"a function is named module:function: got {name!r}, expected such as my_features:scaled")
    with _importing, _last_on_path(folder) as only_now:
        module = _import(module_name, folder, only_now)
        found: Any = module
        for part in function_name.split("."):
            found = getattr(found, part, None)
        if callable(found):
            defining = getattr(inspect.unwrap(found), "__module__", None)
            return LoadedFunction(function=found, code=code_of_function(module_name, str(defining or module_name)))
    file = getattr(module, "__file__", None) or "that module"
    got = "nothing of that name" if found is None else f"a {type(found).__name__}"
    raise SpecError(f"{name} is not a function: got {got} in {file}. Define it there, or correct the name")


_homes: dict[str, str] = {}  # by module imported from a pipeline's folder


def _import(name: str, folder: str, only_now: bool) -> ModuleType:
    first = name.partition(".")[0]
    if (home := _homes.get(first, folder)) != folder:
        raise SpecError(
            f"the module {first!r} was imported from {home}: got another pipeline's folder, {folder}, but a "
            f"process imports one module per name. Rename one of the two, or install it"
        )
    try:
        with noting_imports(name):
            module = importlib.import_module(name)
    except Exception as error:  # whatever the module's own code raises
        raise SpecError(
            f"the module {name!r} cannot be imported: got {type(error).__name__}: {error}. Install it where "
            f"Feedline runs, on every worker too, or put it beside pipeline.yaml ({folder})"
        ) from error
    if only_now and Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
        _homes[first] = folder
    return module


@contextmanager
def _last_on_path(folder: str) -> Iterator[bool]:
    """Append the folder, so that no file beside pipeline.yaml replaces an installed module. Yields False if it was on
    the path already.
    """
    if not folder or folder in sys.path:
        yield False
        return
    sys.path.append(folder)
    importlib.invalidate_caches()
    try:
        yield True
    finally:
        sys.path.remove(folder)


def calls_of(features: Iterable[FeatureSpec]) -> Iterator[OpCall]:
    for feature in features:
        yield from feature.ops
        if feature.op is not None:
            yield feature.op
        for feature_input in feature.inputs:
            yield from feature_input.ops


def check_functions(functions: Sequence[RequiredFunction]) -> None:
    """Raise ClusterError if this worker lacks a function, or has it from another source."""
    for required in functions:
        worker = f"a worker on {platform.node()}"
        if required.op != PYTHON and (provided := entry_points().get(required.op)) != required.function:
            raise ClusterError(
                f"{worker} has no package that provides {required.function} as {required.op!r} (entry points "
                f"{ENTRY_POINTS}): got {provided or 'none'}. Install the package on every worker"
            )
        try:
            found = load_function(required.function, required.folder)
        except SpecError as error:
            raise ClusterError(f"{worker} cannot call {required.function}: {error}") from error
        if (source := found.code.source) != required.source:
            raise ClusterError(
                f"{worker} has another source of {required.function}: got {source[:12] or 'none'}, expected "
                f"{required.source[:12] or 'none'} as in the feeder. Install the same version on every worker, with "
                f"the modules that it imports, and restart workers that imported an older one"
            )
