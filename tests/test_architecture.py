"""Does the code still have the shape that DESIGN gives it? Read off the syntax trees, without importing anything.

Imports count wherever they stand: at the top, inside a function, under TYPE_CHECKING. The limits are those of the
house rules; an exception would be listed here by name, and there is none.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
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
OUTSIDE = [
    path for folder in ("benchmarks", "examples", "tests", "tools") for path in sorted((ROOT / folder).rglob("*.py"))
]

# Modules of the root that all may import, and that import nothing but each other.
GROUND = {"errors", "hashing", "native", "progress", "resources", "version"}

# The packages and the other modules of the root, floor by floor. Each may import all floors below its own, the ground
# and itself; those of one floor never import each other.
FLOORS = [
    {"expressions", "spec", "modules"},
    {"warehouse", "transforms", "loader"},
    {"artifacts"},
    {"blocks"},
    {"planning"},
    {"service", "serving"},
    {"fitting"},
    {"explain", "materialize", "profiling"},
    {"pipeline"},
    {"commands", "face"},  # the face is feedline/__init__.py
    {"cli"},
    {"__main__"},
]
NEVER = {("fitting", "service")}  # fits are handed their Dask workers

# The same inside the packages that consist of packages.
INSIDE = {
    "warehouse": [
        {"storage"},
        {"cache", "synthetic"},
        {"parquet"},
        {"discovery"},
        {"snapshot"},
        {"reading"},
        {"bad_files"},
        {"selection", "optimize"},
        {"rebase", "dask_frame", "scan"},
        {"table"},
    ],
    "transforms": [{"values"}, {"kernels"}, {"learning"}, {"registry"}, {"ops"}, {"catalogue", "compile"}],
    "loader": [
        {"notebook"},
        {"encoding", "launcher"},
        {"wire"},
        {"limits"},
        {"plan_descriptions", "state", "ring"},
        {"tensors", "rank_agreement", "dataset_stats", "dataset_messages", "followed_epochs"},
        {"batch"},
        {"device_copies", "row_arrays", "data_loaders", "batch_receipts"},
        {"dataset"},
        {"lightning_data"},
    ],
    "service": [
        {"dask_patches", "monitoring", "tls", "verify", "log_lines", "plan_frame", "drain", "worker_cores"},
        {"page"},
        {"scheduler", "worker"},
        {"scaling", "cluster"},
        {"feeder"},
        {"status"},
    ],
}
LOOKED_UP = {"OPS", "bind", "resolve"}  # by `transforms.ops`, which has declared all ops; but for these packages
DECLARING = ("feedline.transforms.registry", "feedline.transforms.ops")

PATCHES = "feedline.service.dask_patches"

MODULES_OF_A_FOLDER = 15  # without __init__
MODULES_OF = {PACKAGE: 8, PACKAGE / "commands": 12}  # at the root with __init__; commands are to come

# The only imports inside functions, beside the commands of `feedline.cli`, each of which imports what it needs: feeders
# shall load neither torch nor Dask's dataframes, and compute their first block before they load the command line and
# Dask; the packages of table formats are extras.
INSIDE_FUNCTIONS = {
    ("feedline.__main__", "feedline.cli"),
    ("feedline.__main__", "feedline.commands.feed"),
    ("feedline.commands.arguments.completions", "feedline.spec"),
    ("feedline.commands.arguments.completions", "feedline.spec.pipeline_spec"),
    ("feedline.commands.cluster.certs", "feedline.service.tls.authority"),
    ("feedline.commands.plan.views", "feedline.commands.plan.save"),
    ("feedline.commands.exit_status", "rich.console"),
    ("feedline.commands.begin.init", "feedline.commands.begin.baseline"),
    ("feedline.commands.explain", "feedline.commands.run"),
    ("feedline.commands.explain", "feedline.service.status.last_runs"),
    ("feedline.commands.feeder_sessions", "feedline.pipeline"),
    ("feedline.commands.feeder_sessions", "feedline.service.cluster.fit_workers"),
    ("feedline.resources.cgroups", "psutil"),
    ("feedline.transforms.registry.function_code", "psutil"),
    ("feedline.warehouse.storage.retry", "tenacity"),
    ("feedline.service.cluster.cluster", "feedline.service.cluster.dask_cluster"),
    ("feedline.service.cluster.cluster", "feedline.service.cluster.provider"),
    ("feedline.service.cluster.attempts", "distributed"),
    ("feedline.service.cluster.worker_checks", "asyncio"),
    ("feedline.artifacts.external", "feedline.artifacts.zarr_array"),
    ("feedline.loader.batch", "feedline.loader.encoding.row_digests"),
    ("feedline.loader.dataset_stats", "feedline.loader.limits.trainer_verdict"),
    ("feedline.loader.row_arrays", "feedline.loader.batch"),
    ("feedline.loader.tensors.torchrec_tensors", "torchrec"),
    ("feedline.service.feeder.in_process", "feedline.loader.batch"),
    ("feedline.pipeline", "feedline.service.plan_frame"),
    ("feedline.service.scheduler.extension", "feedline.service.monitoring.dask_pages"),
    ("feedline.service.worker.worker_process", "feedline.service.monitoring.dask_pages"),
    ("feedline.service.worker.watched_worker", "feedline.service.monitoring.metric_server"),
    ("feedline.service.scheduler.scheduler_process", "feedline.service.monitoring.metric_server"),
    ("feedline.service.worker.worker_process", "feedline.service.monitoring.metric_server"),
    ("feedline.service.monitoring.feeder_watch", "feedline.service.monitoring.metric_server"),
    ("feedline.service.monitoring.feeder_watch", "feedline.service.monitoring.block_spans"),
    ("feedline.pipeline", "feedline.materialize.write_plan"),
    ("feedline.warehouse.table", "feedline.warehouse.dask_frame"),
    ("feedline.warehouse.discovery.delta", "deltalake"),
    ("feedline.warehouse.discovery.iceberg", "pyiceberg.exceptions"),
    ("feedline.warehouse.discovery.iceberg", "pyiceberg.io.pyarrow"),
    ("feedline.warehouse.discovery.iceberg", "pyiceberg.table"),
}

# Libraries that only some packages or modules may import.
FENCES = {
    "torch": (
        "commands.begin.baseline",
        "loader.batch",
        "loader.data_loaders",
        "loader.dataset",
        "loader.tensors.dedup_tensors",
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
    "dask": ("service", "warehouse.dask_frame", "warehouse.synthetic"),
    "distributed": ("service", "warehouse.dask_frame", "warehouse.synthetic"),
    "typer": ("cli", "commands"),
    "rich": ("cli", "commands"),
    "bokeh": ("service.page",),
    "jinja2": ("service.page",),
    "zarr": ("artifacts.zarr_array", "materialize.array_files"),
    "prometheus_client": ("service.monitoring.dask_pages",),
    "opentelemetry": ("service.monitoring.block_spans",),
    "tenacity": ("warehouse.storage",),
    "pickle": (),
    "cloudpickle": (),
}

# Names of drawers, in which things are put that nobody found a place for.
DRAWERS = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc", "tools", "core"}

# Public functions of one name in several modules, with the reason.
DEFINED_TWICE = {
    "main": "an entry point of a process",
    "dask_setup": "the hook that Dask looks for in a preload",
    **dict.fromkeys(("check", "optimize", "rebase"), "typer names a command after its function"),
}

# `eval` of a text, expressions that read files or mix rows, loops over rows.
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_METHODS = {"sql_expr", "map_elements", "iterrows", "itertuples", "iter_rows"}

FILE_LINES, LINES_OUTSIDE, CLASS_LINES, FUNCTION_LINES, NESTING = 420, 500, 250, 60, 5
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.TryStar, ast.Match, ast.AsyncFor, ast.AsyncWith)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


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
    return tuple(imports_within(module, tree(MODULES[module])))


def imports_within(module: str, within: ast.AST) -> Iterator[tuple[str, int]]:
    """The same of a part of the module's tree."""
    path = MODULES[module]
    for node in ast.walk(within):
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
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("feedline.transforms.registry")
        and LOOKED_UP & {alias.name for alias in node.names}
    ]
    assert not wrong


def test_folders_are_small():
    folders = Counter(path.parent for path in MODULES.values() if path.name != "__init__.py" or path.parent == PACKAGE)
    wrong = {
        str(folder.relative_to(ROOT)): count
        for folder, count in folders.items()
        if count > MODULES_OF.get(folder, MODULES_OF_A_FOLDER)
    }
    assert not wrong


def test_imports_stand_at_the_top():
    inside = [
        (module, target, line)
        for module, path in MODULES.items()
        if module != "feedline.cli"
        for function in ast.walk(tree(path))
        if isinstance(function, FUNCTIONS)
        for target, line in imports_within(module, function)
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


def test_every_patch_of_dask_has_its_reason_its_guard_and_its_test():
    for module, path in MODULES.items():
        name = path.stem
        if not module.startswith(f"{PATCHES}.") or name in ("versions", "dask_config"):
            continue
        assert accesses(tree(path)), f"{name} patches nothing of Dask"
        text = ast.get_docstring(tree(path)) or ""
        assert any(word in text for word in ("Replaces: ", "Overrides: ", "Reads: ", "Changes: ")), name
        assert "Why: " in text, name
        assert f"{PATCHES}.versions" in {target for target, _ in imports(module)}, name
        assert (ROOT / f"tests/service/dask_patches/test_{name}.py").exists(), name


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
        f"{path.relative_to(ROOT)}: {lines} lines, at most {limit}"
        for paths, limit in ((MODULES.values(), FILE_LINES), (OUTSIDE, LINES_OUTSIDE))
        for path in paths
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > limit
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


def test_a_public_function_name_is_defined_once():
    names = Counter(
        node.name
        for path in MODULES.values()
        for node in tree(path).body
        if isinstance(node, FUNCTIONS) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} <= DEFINED_TWICE.keys()


def test_a_name_stands_for_one_thing():
    classes = Counter(
        node.name for path in MODULES.values() for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)
    )
    modules = Counter(path.stem for path in MODULES.values() if path.stem not in ("__init__", "preload"))
    assert not [name for name, count in (classes + modules).items() if count > 1]


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
        ("feedline.cli", {"torch", "distributed", "dask", "polars", "pyarrow", "numpy", "pydantic"}),
        ("feedline.commands.run", {"torch", "distributed", "dask", "zarr"}),  # `--sink null` drains as a trainer
        ("feedline.commands.feed", {"torch", "zarr", "rich", "typer", "distributed", "dask", "pandas", "asyncio"}),
        ("feedline.commands.explain", {"torch", "distributed", "dask", "polars", "pandas"}),  # beside a run
        ("feedline.commands.plan.views", {"torch", "distributed", "dask", "zarr"}),
        ("feedline.commands.transform", {"torch", "distributed", "dask", "zarr"}),
        ("feedline.service.scheduler.preload", {"torch", "polars", "pyarrow", "numba", "pydantic"}),
        ("feedline.loader.dataset", {"distributed", "dask", "bokeh", "torchrec", "polars", "pandas", "rich"}),
    ],
)
def test_what_an_import_does_not_load(module: str, absent: set[str]):
    code = f"import sys, {module}; print(sorted({absent!r} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout == "[]\n"
