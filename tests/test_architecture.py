"""Who may import whom, read from the syntax trees without importing anything.

Imports count wherever they stand: at the top, inside a function, under TYPE_CHECKING. Each file is parsed once. That
imports stand at the top is held by ruff (PLC0415); here each exception has to say why.
"""

from __future__ import annotations

import ast
import gc
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from dask_access import accesses

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "feedline"
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# Modules of the root that all may import, and that import nothing but each other.
GROUND = {"dataclass", "errors", "extras", "hashing", "native", "progress", "resources", "version"}

# The packages and the other modules of the root, floor by floor. Each may import all floors below its own, the ground
# and itself; those of one floor never import each other.
FLOORS = [
    {"config", "expressions", "modules"},
    {"warehouse", "transforms", "loader"},
    {"artifacts"},
    {"blocks"},
    {"planning"},
    {"service", "serving"},
    {"fitting"},
    {"materialize"},
    {"pipeline"},
    {"commands", "face"},  # the face is feedline/__init__.py
    {"workbench"},  # only the command line imports it
    {"cli"},
    {"__main__"},
]
NEVER = {("fitting", "service")}  # fits are handed their Dask workers

# The same inside the packages that consist of packages.
INSIDE = {
    "warehouse": [
        {"storage"},
        {"cache"},
        {"parquet"},
        {"discovery"},
        {"snapshot"},
        {"reading"},
        {"bad_files"},
        {"selection", "optimize"},
        {"rebase", "dask_frame", "scan", "histories", "columns"},
        {"delete"},
        {"table", "building"},
    ],
    "transforms": [{"values"}, {"learning"}, {"registry"}, {"ops"}, {"catalogue", "compile"}],
    "loader": [
        {"encoding", "launcher"},
        {"wire"},
        {"limits"},
        {"plan_descriptions", "state", "ring"},
        {"tensors", "rank_agreement"},
        {"batch"},
        {"device_copies", "row_arrays", "dataset_stats"},
        {"dataset"},
        {"lightning_data"},
    ],
    "service": [
        {"dask_patches", "monitoring", "certificates", "log_lines", "plan_frame", "drain", "worker_cores"},
        {"certificate_authority", "refused_connection", "autoscale", "scheduler_load", "page"},
        {"scheduler", "worker", "pool"},
        {"worker_demand", "cluster"},
        {"last_runs", "feeder"},
        {"feeder_status"},
    ],
}
LOOKED_UP = {"OPS", "bind", "resolve"}  # by `transforms.ops`, which has declared all ops; but for these packages
DECLARING = ("feedline.transforms.registry", "feedline.transforms.ops")

PATCHES = "feedline.service.dask_patches"

# Libraries that only some packages or modules may import.
FENCES = {
    "torch": (
        "workbench.begin.baseline",
        "loader.batch",
        "loader.dataset",
        "loader.device_copies",
        "loader.rank_agreement",
        "loader.ring.pinning",
        "loader.tensors.device_bytes",
        "loader.tensors.slot_tensors",
        "loader.tensors.torchrec_tensors",
        "modules",
    ),
    "torchrec": ("loader.tensors.torchrec_tensors",),
    "lightning": ("loader.lightning_data",),
    "dask": ("service", "warehouse.dask_frame", "workbench.generate"),
    "distributed": ("service", "warehouse.dask_frame", "workbench.generate"),
    "typer": ("cli", "commands", "workbench"),
    "rich": ("cli", "commands", "workbench"),
    "bokeh": ("service.page",),
    "jinja2": ("service.page",),
    "zarr": ("artifacts.zarr_array", "materialize.arrays_writer"),
    "prometheus_client": ("service.monitoring.prometheus_server",),
    "opentelemetry": ("service.monitoring.block_spans",),
    "tenacity": ("warehouse.storage",),
    "pickle": ("service.pool.block_process", "service.pool.segments"),
    "cloudpickle": (),
}

# `eval` of a text (`feedline.dataclass` compiles `__init__`, as the standard library does), expressions that read files
# or mix rows, loops over rows.
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"sql_expr", "map_elements", "iterrows", "itertuples", "iter_rows"}


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Nobody collects garbage among the 800,000 nodes: that took longer than parsing. Here none is made of them."""
    gc.disable()
    yield
    for each in (tree, nodes, imports):
        each.cache_clear()
    gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """All nodes of a module's tree."""
    return tuple(ast.walk(tree(MODULES[module])))


def part_of(module: str, level: int = 1) -> str:
    """The package or module at a level of a name: the first below `feedline`, or one inside that."""
    words = module.split(".")
    if level == 1:
        return words[1] if len(words) > 1 else "face"
    return words[level] if len(words) > level else ""


def floor_of(part: str, floors: list[set[str]]) -> int:
    """The floor that a part stands on; -1 is the ground."""
    return next((floor for floor, parts in enumerate(floors) if part in parts), -1)


def upward(here: str, there: str, floors: list[set[str]]) -> bool:
    """Whether an import leads to a floor that is not below."""
    return floor_of(there, floors) >= max(0, floor_of(here, floors)) or (here, there) in NEVER


@cache
def imports(module: str) -> tuple[tuple[str, int], ...]:
    """Everything a module imports, with the line: modules of this package by their full names, others by theirs."""
    return tuple(target for node in nodes(module) for target in targets(module, node))


def targets(module: str, node: ast.AST) -> Iterator[tuple[str, int]]:
    """What a node of a module imports, with its line; nothing unless it is an import."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, node.lineno) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        source = node.module or ""
        if node.level:
            words = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
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


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_every_part_has_its_floor():
    parts = {part_of(module) for module in MODULES}
    assert parts == GROUND.union(*FLOORS)
    for package, floors in INSIDE.items():
        inside = {part_of(module, 2) for module in MODULES if part_of(module) == package and module.count(".") > 1}
        assert inside == set().union(*floors), package


def test_imports_lead_down():
    wrong = []
    for module, path in MODULES.items():
        here = part_of(module)
        for target, line in imports(module):
            there = part_of(target)
            if target not in MODULES:
                continue
            if here != there and there not in GROUND and upward(here, there, FLOORS):
                wrong.append(f"{where(path, line)}: {here} imports {target}")
            elif here in GROUND and there not in GROUND:
                wrong.append(f"{where(path, line)}: the ground imports {target}")
            elif here == there and here in INSIDE:
                room, other = part_of(module, 2), part_of(target, 2)
                if room and other and room != other and upward(room, other, INSIDE[here]):
                    wrong.append(f"{where(path, line)}: {room} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_ops_are_looked_up_where_all_are_declared():
    wrong = [
        where(path, node.lineno)
        for module, path in MODULES.items()
        if not module.startswith(DECLARING)
        for node in nodes(module)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("feedline.transforms.registry")
        and LOOKED_UP & {alias.name for alias in node.names}
    ]
    assert not wrong


def test_imports_inside_functions_say_why():
    wrong = []
    for module, path in MODULES.items():
        if module == "feedline.cli":
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        wrong += [
            where(path, node.lineno)
            for node in nodes(module)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            and "PLC0415" in lines[node.lineno - 1]
            and " -- " not in lines[node.lineno - 1]
        ]
    assert not wrong


def test_no_import_cycles():
    edges = {module: {target for target, _ in imports(module) if target in MODULES} for module in MODULES}
    assert not cycles(edges)


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert not cycles({"a": {"b"}, "b": {"c"}, "c": set()})


@pytest.mark.parametrize("library", FENCES)
def test_libraries_stay_where_they_belong(library: str):
    wrong = [
        where(MODULES[module], line)
        for module in MODULES
        for target, line in imports(module)
        if target.split(".")[0] == library
        and not any(f"{module}.".startswith(f"feedline.{place}.") for place in FENCES[library])
    ]
    assert not wrong, f"{library} may be imported in {FENCES[library]} only: {wrong}"


def test_only_patches_reach_into_dask():
    wrong = [
        f"{where(path, line)}: {reason}"
        for module, path in MODULES.items()
        if module.startswith("feedline.service.") and not module.startswith(f"{PATCHES}.")
        for line, reason in accesses(tree(path))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_patch_of_dask_has_its_reason_and_its_guard():
    for module, path in MODULES.items():
        name = path.stem
        if not module.startswith(f"{PATCHES}.") or name in ("versions", "dask_config"):
            continue
        lines = {line for line, _ in accesses(tree(path))}
        assert lines, f"{name} patches nothing of Dask"
        for part in tree(path).body:
            if getattr(part, "name", "_").startswith("_") or not lines & {*range(part.lineno, part.end_lineno + 1)}:
                continue
            text = f"{ast.get_docstring(tree(path))} {ast.get_docstring(part)}"
            assert any(f"{word}: " in text for word in ("Replaces", "Overrides", "Reads", "Changes")), part.name
            assert "Why:" in text, part.name
        assert f"{PATCHES}.versions" in {target for target, _ in imports(module)}, name


def test_forbidden_calls():
    wrong = [
        where(path, node.lineno)
        for module, path in MODULES.items()
        for node in nodes(module)
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS)
        or (isinstance(node, ast.Attribute) and node.attr in FORBIDDEN_METHODS)
        if module != "feedline.dataclass"
    ]
    assert not wrong, wrong


def test_dataclasses_are_made_quickly():
    wrong = [
        where(path, node.lineno)
        for module, path in MODULES.items()
        for node in nodes(module)
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses" and module != "feedline.dataclass"
        if "dataclass" in {alias.name for alias in node.names}
    ]
    assert not wrong, f"import dataclass from feedline.dataclass: {wrong}"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("feedline", {"torch", "distributed", "dask", "bokeh", "polars", "pyarrow", "numpy"}),
        ("feedline.cli", {"torch", "distributed", "dask", "polars", "pyarrow", "numpy", "pydantic"}),
        # `--sink null` drains as a trainer
        (
            "feedline.commands.run, feedline.commands.plan.views, feedline.commands.transform",
            {"torch", "distributed", "dask", "zarr"},
        ),
        ("feedline.commands.feed", {"torch", "zarr", "rich", "typer", "distributed", "dask", "pandas", "asyncio"}),
        ("feedline.workbench.explain.explain", {"torch", "distributed", "dask", "polars", "pandas"}),  # beside a run
        ("feedline.service.scheduler.preload", {"torch", "polars", "pyarrow", "numba", "pydantic"}),
        ("feedline.loader.dataset", {"distributed", "dask", "bokeh", "torchrec", "polars", "pandas", "rich"}),
    ],
)
def test_what_an_import_does_not_load(modules: str, absent: set[str]):
    code = f"import sys, {modules}; print(sorted({absent!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "[]\n"
