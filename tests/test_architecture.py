"""Does the code still have the shape that DESIGN gives it? Read off the syntax trees, without importing anything.

Imports count wherever they stand: at the top, inside a function, under TYPE_CHECKING. The limits are those of the
house rules; an exception would be listed here by name, and there is none.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "feedline"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
OUTSIDE = [path for folder in ("benchmarks", "examples", "tests") for path in sorted((ROOT / folder).rglob("*.py"))]

# The language of specs and expressions and what little everything else stands on. A name that ends in an underscore
# stands for all modules that begin with it. A new module of the package's root has to be put here or into PARTS.
FOUNDATION = {
    *("errors", "version", "resources", "processor", "hashing", "key_hashing", "bad_file_texts"),
    *("predicates", "expressions", "expression_", "row_preservation", "projection", "extraction"),
    *("spec", "sections", "source_section", "column_types", "column_ranges", "features", "user_ops"),
    *("positions", "overrides", "yaml_document", "schema", "expectations"),
}
WORKERS = {"foundation", "warehouse", "transforms", "loader", "service"}

# Which parts a part may import, besides itself: from the lowest to the highest. A part is a folder, or the modules of
# the root that PARTS puts there.
ALLOWED = {
    "foundation": set(),
    "warehouse": {"foundation"},
    "transforms": {"foundation"},
    "loader": {"foundation"},
    "external": {"foundation", "warehouse", "transforms"},
    "artifacts": {"foundation", "warehouse", "transforms", "external"},
    "service": (WORKERS - {"service"}) | {"external", "artifacts"},
    "agreement": {"foundation", "warehouse"},
    "plan": WORKERS | {"external", "artifacts"},
    "sources": {"foundation", "warehouse"},
    "skipping": {"foundation", "warehouse", "sources"},
    "rebasing": WORKERS | {"plan"},
    "passes": WORKERS | {"artifacts", "agreement", "plan"},
    "pipeline": WORKERS | {"external", "artifacts", "agreement", "plan", "passes", "rebasing", "sources", "skipping"},
    "commands": WORKERS | {"artifacts", "agreement", "plan", "passes", "pipeline", "sources", "skipping"},
    "cli": WORKERS | {"agreement", "plan", "pipeline", "sources", "skipping", "commands"},
    "__main__": {"commands", "cli"},
    "face": {"foundation", "warehouse", "loader", "pipeline"},  # feedline/__init__.py
}
PARTS = {
    **dict.fromkeys(("running", "progress", "feeding", "report", "op_report", "part_costs", "checking"), "commands"),
    **dict.fromkeys(("quality_table", "preview", "schema_report"), "commands"),
    **dict.fromkeys(("layout_commands", "layout_report", "fit_commands", "transform_commands", "exits"), "commands"),
    **dict.fromkeys(("needs", "binding", "serving", "serving_types", "row_forms", "transforming"), "plan"),
    **dict.fromkeys(("golden", "golden_files", "golden_rows", "nulls"), "plan"),
    **dict.fromkeys(("type_records", "null_types"), "plan"),
    **dict.fromkeys(("knowing", "fit_report"), "passes"),
    "fit_sets": "artifacts",
    **{name: name for name in ("external", "artifacts", "agreement", "plan", "passes", "rebasing", "sources")},
    **{name: name for name in ("skipping", "pipeline", "cli", "__main__")},
}
FOLDERS = ("warehouse", "transforms", "loader", "service")

# The only imports inside functions: feeders import Pipeline, and shall load neither torch nor Dask's dataframes; the
# packages of table formats are extras; `feedline transform` runs without what the other commands load.
INSIDE_FUNCTIONS = {
    ("feedline.__main__", "feedline.cli"),
    ("feedline.__main__", "feedline.transform_commands"),
    ("feedline.external", "feedline.warehouse.zarr_arrays"),
    ("feedline.loader.row_arrays", "feedline.loader.batch"),
    ("feedline.pipeline", "feedline.loader.batch"),
    ("feedline.pipeline", "feedline.service.frame"),
    ("feedline.warehouse.delta", "deltalake"),
    ("feedline.warehouse.iceberg", "pyiceberg.exceptions"),
    ("feedline.warehouse.iceberg", "pyiceberg.io.pyarrow"),
    ("feedline.warehouse.iceberg", "pyiceberg.table"),
}

# Libraries that only some modules may import; an entry that ends in a dot is a whole part.
ONLY_IN = {
    "torch": ("feedline.loader.batch", "feedline.loader.dataset", "feedline.loader.pinning"),
    "dask": ("feedline.service.", "feedline.warehouse.frame", "feedline.warehouse.synthetic"),
    "distributed": ("feedline.service.", "feedline.warehouse.frame", "feedline.warehouse.synthetic"),
    "typer": ("feedline.cli", "feedline.layout_commands", "feedline.fit_commands", "feedline.transform_commands"),
    "rich": (
        *("feedline.cli", "feedline.progress", "feedline.report", "feedline.op_report", "feedline.running"),
        *("feedline.layout_commands", "feedline.layout_report", "feedline.fit_commands", "feedline.exits"),
        *("feedline.quality_table", "feedline.preview", "feedline.schema_report"),
    ),
    "zarr": ("feedline.warehouse.zarr_arrays",),
    "tenacity": ("feedline.warehouse.retrying",),
    "pickle": (),
    "cloudpickle": (),
}

# Names of drawers, in which things are put that nobody found a place for.
DRAWERS = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc", "tools", "core"}

# `eval` of a text, expressions that read files or mix rows, loops over rows.
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"sql_expr", "map_elements", "iterrows", "itertuples", "iter_rows"}

FILE_LINES, CLASS_LINES, FUNCTION_LINES, NESTING = 500, 250, 60, 5
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.TryStar, ast.Match, ast.AsyncFor, ast.AsyncWith)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def part_of(module: str) -> str:
    """The part of DESIGN §3 that a module belongs to; an empty text for a module of the root that nobody placed."""
    words = module.split(".")
    if len(words) == 1:
        return "face"
    name = words[1]
    if name in FOLDERS:
        return name
    known = name in FOUNDATION or any(stem.endswith("_") and name.startswith(stem) for stem in FOUNDATION)
    return PARTS.get(name, "foundation" if known else "")


def imports(module: str, within: ast.AST | None = None) -> Iterator[tuple[str, int]]:
    """Everything a module imports, with the line: modules of this package by their full names, others by theirs."""
    path = MODULES[module]
    for node in ast.walk(tree(path) if within is None else within):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                words = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                source = ".".join([*words[: len(words) - node.level + 1], *filter(None, [source])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                yield (whole if whole in MODULES else source), node.lineno


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node, by repeated depth-first walks (the graph is small)."""

    def reach(start: str) -> set[str]:
        seen, stack = set(), [start]
        while stack:
            for target in edges[stack.pop()] - seen:
                seen.add(target)
                stack.append(target)
        return seen

    reached = {node: reach(node) for node in edges}
    components = {tuple(sorted(other for other in reached[node] if node in reached[other])) for node in edges}
    return [list(component) for component in sorted(components) if component]


def depth(node: ast.AST, level: int = 0) -> int:
    """How deep a function's blocks are nested; `elif` is no deeper than its `if`, a function inside starts anew."""
    deepest = level
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (*FUNCTIONS, ast.ClassDef)):
                continue
            is_elif = isinstance(node, ast.If) and field == "orelse" and isinstance(child, ast.If) and len(value) == 1
            deepest = max(deepest, depth(child, level + (isinstance(child, BLOCKS) and not is_elif)))
    return deepest


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_module_has_its_part():
    wrong = [module for module in MODULES if part_of(module) not in ALLOWED]
    assert not wrong, f"in no part of the table above: {wrong}"
    empty = (
        {*FOLDERS, *PARTS, *FOUNDATION}
        - {"expression_"}
        - {module.split(".")[1] for module in MODULES if "." in module}
    )
    assert not empty, f"in the table, and not there: {empty}"


def test_the_table_has_a_direction():
    parts = list(ALLOWED)
    upward = [(part, lower) for part in parts for lower in ALLOWED[part] if parts.index(lower) >= parts.index(part)]
    assert not upward


def test_imports_follow_the_written_direction():
    wrong = []
    for module in MODULES:
        part = part_of(module)
        for target, line in imports(module):
            if target.split(".")[0] == "feedline" and part_of(target) not in ALLOWED[part] | {part}:
                wrong.append(f"{where(MODULES[module], line)}: {part} imports {target}, may import {ALLOWED[part]}")
    assert not wrong, "\n".join(wrong)


def test_imports_stand_at_the_top():
    inside = [
        (module, target, line)
        for module, path in MODULES.items()
        for function in ast.walk(tree(path))
        if isinstance(function, FUNCTIONS)
        for target, line in imports(module, function)
    ]
    assert {(module, target) for module, target, _ in inside} <= INSIDE_FUNCTIONS, inside
    for module, _, line in inside:
        code = MODULES[module].read_text(encoding="utf-8").splitlines()[line - 1]
        assert " -- " in code, f"{where(MODULES[module], line)} does not say why"


def test_no_import_cycles():
    edges = {module: {target for target, _ in imports(module) if target in MODULES} for module in MODULES}
    assert not cycles(edges)


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert not cycles({"a": {"b"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("library", ONLY_IN)
def test_libraries_stay_where_they_belong(library: str):
    wrong = [
        where(MODULES[module], line)
        for module in MODULES
        for target, line in imports(module)
        if target.split(".")[0] == library
        and not any(module == place or (place.endswith(".") and module.startswith(place)) for place in ONLY_IN[library])
    ]
    assert not wrong, f"{library} may be imported in {ONLY_IN[library]} only: {wrong}"


def test_every_module_says_what_it_is_for():
    wrong = [
        str(path) for path in (*MODULES.values(), *OUTSIDE) if len((ast.get_docstring(tree(path)) or "").split()) < 5
    ]
    assert not wrong, f"without a docstring: {wrong}"


def test_public_functions_and_classes_have_docstrings():
    wrong = [
        where(path, node.lineno)
        for path in MODULES.values()
        for node in tree(path).body
        if isinstance(node, (*FUNCTIONS, ast.ClassDef))
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not wrong, f"without a docstring: {wrong}"


def test_sizes():
    wrong = [
        f"{path.relative_to(ROOT)}: {lines} lines, at most {FILE_LINES}"
        for path in (*MODULES.values(), *OUTSIDE)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES
    ]
    for path in MODULES.values():
        for node in ast.walk(tree(path)):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                limit = CLASS_LINES if isinstance(node, ast.ClassDef) else FUNCTION_LINES
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > limit:
                    wrong.append(f"{where(path, node.lineno)}: {node.name} has {lines} lines, at most {limit}")
    assert not wrong, "\n".join(wrong)


def test_nesting():
    wrong = [
        f"{where(path, node.lineno)}: {node.name} nests {depth(node)} blocks, at most {NESTING}"
        for path in MODULES.values()
        for node in ast.walk(tree(path))
        if isinstance(node, FUNCTIONS) and depth(node) > NESTING
    ]
    assert not wrong, "\n".join(wrong)


def test_nesting_is_counted():
    function = ast.parse("def f():\n if a:\n  for b in c:\n   pass\n elif d:\n  with e: pass\n else:\n  x = 1\n").body[
        0
    ]
    assert depth(function) == 2


def test_no_drawers():
    wrong = [name for name in MODULES if DRAWERS & set(name.lower().replace("_", ".").split("."))]
    assert not wrong, f"names that say nothing: {wrong}"


def test_forbidden_calls():
    wrong = [
        where(path, node.lineno)
        for path in MODULES.values()
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS)
        or (isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_METHODS)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("feedline", {"torch", "distributed", "dask", "bokeh", "polars", "pyarrow", "numpy"}),
        ("feedline.cli", {"torch", "zarr"}),  # with `feedline feed`, so feeders too
        ("feedline.loader.dataset", {"distributed", "dask", "bokeh"}),
    ],
)
def test_what_an_import_does_not_load(module: str, absent: set[str]):
    code = f"import sys, {module}; print(sorted({absent!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "[]\n"
