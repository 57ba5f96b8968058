"""What a plain installation lacks is named, with the extra that brings it; nothing else needs the packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from minimal_pipeline import OF_CLICKS

from feedline.errors import ClusterError, SpecError
from feedline.extras import extra

# In a sitecustomize.py on PYTHONPATH: the process, and those that it starts, do not find the packages.
HIDE = """\
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, path=None, target=None: None if name in {hidden!r} else find(name, path, target)
"""
EXTRAS = {
    "dashboard": ("bokeh",),
    "dataframe": ("pandas", "dask.dataframe"),
    "zarr": ("zarr", "numcodecs"),
    "delta": ("deltalake",),
    "iceberg": ("pyiceberg",),
    "tls": ("cryptography",),
    "otel": ("opentelemetry",),
}
HIDDEN = [name for names in EXTRAS.values() for name in names]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A Python process of a plain installation."""
    path = os.pathsep.join([str(folder / "hide"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *words]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, cwd=folder, env=environment
    )


def test_a_missing_package_becomes_an_error_that_names_the_extra():
    with (
        pytest.raises(ClusterError, match=r"a part needs a package .*: No module named 'no_such'.*'feedline\[tls\]'"),
        extra("tls", "a part", ClusterError),
    ):
        import no_such  # noqa: F401
    with (
        pytest.raises(
            SpecError, match=r"cannot be imported: cannot import name 'none' .*--force-reinstall 'feedline\[tls\]'"
        ),
        extra("tls", "a part"),
    ):
        from zlib import none  # type: ignore[attr-defined]  # noqa: F401 -- as from a package of another version
    with pytest.raises(ValueError, match="mine"), extra("tls", "a part"):
        raise ValueError("mine")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(HIDE.format(hidden=HIDDEN))
    (folder / "pipeline.yaml").write_text(OF_CLICKS)
    done = run(folder, "-m", "feedline", "generate", "clicks", "clicks", "--rows", "2000", "--days", "2")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["plan pipeline.yaml", "materialize pipeline.yaml out --format parquet", "run pipeline.yaml --sink null"],
)
def test_commands_without_any_extra(place: Path, words: str):
    done = run(place, "-m", "feedline", *words.split())
    assert done.returncode == 0, done.stderr
    assert "live page" not in done.stdout


PARTS = [
    ("Table('clicks').to_dask()", "Table.to_dask", "dataframe"),
    ("Pipeline.from_yaml('pipeline.yaml').to_dask()", "Pipeline.to_dask", "dataframe"),
    ("Pipeline.from_yaml('pipeline.yaml').materialize('x')", "--format zarr", "zarr"),
    ("_import_pages()", "the dashboard", "dashboard"),
]
# One line per part: what it raises.
RAISE = """\
from feedline import Pipeline, Table
from feedline.service.page.dashboard import _import_pages
for act in (lambda: {}):
    try:
        act()
    except Exception as error:
        print(f"{{type(error).__name__}}: {{error}}")
    else:
        print("nothing")
"""


@pytest.mark.slow
def test_parts_that_need_an_extra_name_it(place: Path):
    done = run(place, "-c", RAISE.format(", lambda: ".join(code for code, _, _ in PARTS)))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line, (_, what, name) in zip(lines, PARTS, strict=True):
        assert line.startswith(f"{SpecError.__name__}: {what} needs a package that is not installed: ")
        assert line.endswith(f"Run: pip install 'feedline[{name}]'")
