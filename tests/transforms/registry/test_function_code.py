"""A function's code is named by all own modules that it imports, and by versions of the others."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_modules import own_modules

from feedline.transforms.registry import function_code
from feedline.transforms.registry.function_code import FunctionCode
from feedline.transforms.registry.user_functions import load_function


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with own_modules(tmp_path):
        yield tmp_path


def write(folder: Path, **sources: str) -> None:
    """Write modules; the first `__` in a name ends that of a folder."""
    for name, source in sources.items():
        path = folder / (name.replace("__", "/", 1) + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)


def code(folder: Path, name: str = "mine:f") -> FunctionCode:
    return load_function(name, str(folder)).code


def changed(folder: Path, name: str = "mine:f", **sources: str) -> FunctionCode:
    """The code in a new process, with other sources."""
    write(folder, **sources)
    with own_modules(folder):
        pass
    return code(folder, name)


def test_a_function_without_own_imports_is_named_by_its_file(folder: Path) -> None:
    write(
        folder, mine="import json\nimport numpy as np\nimport polars as pl\nfrom feedline import user_op\ndef f(x): ..."
    )
    found = code(folder)
    assert found.source == hashlib.sha256((folder / "mine.py").read_bytes()).hexdigest()
    assert found.packages == (("python", f"{platform.python_implementation()} {platform.python_version()}"),)
    assert found.obstacle == ""


def test_modules_beside_it_are_named_and_those_that_they_import(folder: Path) -> None:
    write(folder, mine="import helper\ndef f(x): ...", helper="from deep import *", deep="A = 1", unrelated="A = 1")
    first = code(folder)
    assert [name for name, _ in first.sources] == ["deep", "helper", "mine"]
    assert changed(folder, unrelated="A = 2") == first
    digests = {first.source, changed(folder, deep="A = 2").source, changed(folder, helper="from deep import A").source}
    assert len(digests) == 3
    assert changed(folder, deep="A = 1", helper="from deep import *") == first


def test_packages_are_named_by_their_modules_that_are_imported(folder: Path) -> None:
    write(
        folder,
        pack____init__="from . import one\nimport pack.two",
        pack__one="from .three import x",
        pack__two="",
        pack__three="x = 1",
        pack__four="",
        pack__mine="import pack\ndef f(x): return pack.four.x, pack.one.three.x",
        pack__unused="",
        space__inner="",
        outer="import space.inner\nimport pack.mine\nf = pack.mine.f",
    )
    (folder / "pack" / "four.py").write_text("")
    importlib.invalidate_caches()
    found = code(folder, "outer:f")
    names = {name for name, _ in found.sources}
    assert names == {
        "outer",
        "space.inner",
        "pack",
        *(f"pack.{each}" for each in ("one", "two", "three", "four", "mine")),
    }
    assert found.obstacle == "pack.four: it is imported when a function runs"


def test_functions_that_another_module_defines_are_named_by_both(folder: Path) -> None:
    write(
        folder,
        mine="import functools\nfrom helper import g, wrap\nf = functools.partial(g, by=2)\n@wrap\ndef h(x): return x",
        helper="def g(x, by): ...\ndef wrap(function):\n    return lambda x: function(x)",
    )
    for name in ("mine:f", "mine:h", "mine:g"):
        first = code(folder, name)
        assert {each for each, _ in first.sources} == {"helper", "mine"}
        source = (folder / "mine.py").read_text()
        assert changed(folder, name, mine=source + "\n").source != first.source


def test_installed_packages_are_named_by_version(folder: Path) -> None:
    write(folder, mine="import pydantic\nfrom yaml import safe_load\ndef f(x): ...")
    found = dict(code(folder).packages)
    assert found["pydantic"] == importlib.metadata.version("pydantic")
    assert found["pyyaml"] == importlib.metadata.version("pyyaml")
    assert "annotated-types" in found  # of pydantic
    assert [name for name, _ in code(folder).sources] == ["mine"]


@pytest.mark.parametrize("name", ["math:sqrt", "json:loads", "numpy:log1p", "functools:partial"])
def test_functions_of_python_and_of_the_environment_have_no_obstacle(folder: Path, name: str) -> None:
    found = code(folder, name)
    assert found.obstacle == ""
    assert [name for name, _ in found.packages] == ["python"]


def test_functions_of_an_installed_package_are_named_by_its_version(folder: Path) -> None:
    found = code(folder, "yaml:safe_load")
    assert dict(found.sources)["package pyyaml"] == importlib.metadata.version("pyyaml")
    assert found.obstacle == ""


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        ({"mine": "import importlib\ndef f(x): ..."}, "mine: importlib in line 1 may load any code"),
        ({"mine": "import helper\ndef f(x): ...", "helper": "X = eval('1')"}, "helper: eval in line 1"),
        ({"mine": "def f(x):\n    import helper", "helper": ""}, "helper: it is imported when a function runs"),
        ({"mine": "from pack import *\ndef f(x): ...", "pack____init__": ""}, "all names of the package pack are"),
    ],
)
def test_code_that_cannot_be_followed_is_an_obstacle(folder: Path, sources: dict[str, str], words: str) -> None:
    write(folder, **sources)
    assert words in code(folder).obstacle


def test_modules_without_source_are_obstacles(folder: Path) -> None:
    write(folder, mine="import made\ndef f(x): ...")
    sys.modules["made"] = type(sys)("made")
    try:
        assert code(folder).obstacle == "made is no Python source"
    finally:
        del sys.modules["made"]


def test_a_file_that_changed_after_its_import_is_an_obstacle(folder: Path) -> None:
    write(folder, mine="import helper\ndef f(x): ...", helper="A = 1")
    sys.path.append(str(folder))
    try:
        importlib.import_module("helper")
    finally:
        sys.path.remove(str(folder))
    write(folder, helper="A = 2")
    later_ns = time.time_ns() + 10**9
    os.utime(folder / "helper.py", ns=(later_ns, later_ns))
    assert code(folder).obstacle == "helper: it may have changed since it was imported"


def test_later_changes_of_an_imported_file_are_not_those_of_the_process(folder: Path) -> None:
    write(folder, mine="import helper\ndef f(x): ...", other="import helper\ndef f(x): ...", helper="A = 1")
    first = code(folder)
    write(folder, helper="A = 2")
    assert code(folder) == first
    assert dict(code(folder, "other:f").sources)["helper"] == dict(first.sources)["helper"]


def test_a_reloaded_module_is_digested_again(folder: Path) -> None:
    write(folder, mine="import helper\ndef f(x): ...", helper="A = 1")
    first = code(folder)
    write(folder, helper="A = 22")
    os.utime(folder / "helper.py", ns=(1, 1))  # Python compiles it again
    sys.path.append(str(folder))
    try:
        importlib.reload(sys.modules["helper"])
    finally:
        sys.path.remove(str(folder))
    again = code(folder)
    assert again.source != first.source
    assert again.obstacle == "helper: it may have changed since it was imported"


def test_large_programs_are_an_obstacle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_code, "_MOST_SOURCES", 5)
    write(folder, mine="import m0\ndef f(x): ...", **{f"m{i}": f"import m{i + 1}" for i in range(9)}, m9="")
    assert code(folder).obstacle == "more than 5 own modules are imported"


def install(site: Path, name: str, version: str, requires: str = "", origin: object = None, **sources: str) -> None:
    """Install a distribution of modules."""
    facts = site / f"{name}-{version}.dist-info"
    facts.mkdir(parents=True)
    for module, source in sources.items():
        (site / f"{module}.py").write_text(source)
    required = f"Requires-Dist: {requires}\n" if requires else ""
    (facts / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n{required}")
    (facts / "RECORD").write_text("".join(f"{module}.py,,\n" for module in sources))
    if origin is not None:
        (facts / "direct_url.json").write_text(json.dumps(origin))


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions, beside one of sources that are installed in place."""
    for name in ("site", "sources"):
        (folder / name).mkdir()
        monkeypatch.syspath_prepend(str(folder / name))
    return folder / "site"


def test_own_modules_behind_an_installed_package_are_named(folder: Path, site: Path) -> None:
    origin = {"url": f"file://{folder}/sources", "dir_info": {"editable": True}}
    install(site, "b", "0.1", origin=origin)
    install(site, "a", "1.0", "b", a="if True:\n    from b import h, k\ndef g(x):\n    import settings, json")
    write(folder, mine="import a, settings\ndef f(x): ...", settings="K = 1")
    write(folder / "sources", b="import inner\ndef h(x): ...\nk = 1", inner="A = 1")
    first = code(folder)
    assert [name for name, _ in first.sources] == ["b", "inner", "mine", "settings"]
    assert dict(first.packages)["a"] == "1.0"
    assert first.obstacle == ""
    with own_modules(folder):
        write(folder / "sources", inner="A = 2")
    assert code(folder).source != first.source


def test_own_modules_that_an_installed_package_imports_later_are_an_obstacle(folder: Path, site: Path) -> None:
    install(site, "a", "1.0", a="def g(x):\n    import settings")
    write(folder, mine="import a\ndef f(x): ...", settings="K = 1")
    assert code(folder).obstacle == "settings: it is imported when a function runs"


def test_installed_packages_behind_others_are_searched(folder: Path, site: Path) -> None:
    install(site, "c", "1.0", c="import settings  # not named by a's metadata")
    install(site, "a", "1.0", a="'''\nimport absent\n'''\nimport c")
    write(folder, mine="from a import c\ndef f(x): ...", settings="K = 1")
    assert [name for name, _ in code(folder).sources] == ["mine", "settings"]
    assert dict(code(folder, "a:c.settings.K.bit_count").sources).keys() == {"a", "package a", "settings"}


def test_builds_of_one_version_behind_a_package_are_told_apart(folder: Path, site: Path) -> None:
    install(site, "a", "1.0", "b", a="import b")
    install(site, "b", "0.1", origin={"url": "https://host/b", "vcs_info": {"vcs": "git", "commit_id": "01ff"}}, b="")
    write(folder, mine="import a\ndef f(x): ...")
    assert dict(code(folder).packages)["b"] == '0.1 "01ff"'


def test_a_package_that_was_installed_after_its_import_is_an_obstacle(folder: Path, site: Path) -> None:
    install(site, "b", "0.1", b="def h(x): ...")
    write(folder, mine="import b\ndef f(x): ...")
    first = code(folder)
    assert (first.obstacle, dict(first.packages)["b"]) == ("", "0.1")
    shutil.rmtree(site / "b-0.1.dist-info")
    install(site, "b", "0.2", b="def h(x): return x")
    assert code(folder) == first  # what is loaded
    with own_modules(folder):
        pass
    importlib.import_module("b")
    shutil.rmtree(site / "b-0.2.dist-info")
    install(site, "b", "0.3", b="def h(x): return -x")
    found = code(folder)
    assert found.outdated == found.obstacle == "b: it may have been installed since it was imported"
    sys.modules["b"].__spec__ = None  # as after a reload
    assert dict(code(folder).packages)["b"] == "0.3"
