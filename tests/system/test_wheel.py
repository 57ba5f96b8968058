"""The wheel that `python -m build` makes works where there is no checkout: commands, a drained run, a training."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from minimal_pipeline import OF_CLICKS

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
TRAINING = """\
from feedline import FeedlineDataset
with FeedlineDataset("pipeline.yaml") as dataset:
    print(sum(len(batch.labels) for batch in dataset))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a source distribution of a copy: building leaves files beside its sources."""
    source = tmp_path_factory.mktemp("source") / "feedline"
    source.mkdir()
    shutil.copytree(ROOT / "feedline", source / "feedline", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", source / "dist", cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = (source / "dist").glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and what this interpreter has installed, editable checkouts apart."""
    folder = tmp_path_factory.mktemp("venv") / "v"
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    python = folder / "bin" / "python"
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "bin"


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120, cwd=cwd, env=environment)


def test_the_wheel_holds_the_whole_package(wheel: Path):
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "feedline").rglob("*.py")} | {"feedline/py.typed"}
    sources |= {f"feedline/service/page/{name}" for name in ("page.html", "page.css", "parts.html", "parts.css")}
    sources.add("feedline/workbench/begin/train.py.txt")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    kernel = (
        {f"feedline/native/{name}.abi3.so" for name in ("_rows", "_ring", "_parquet")} if shutil.which("cc") else set()
    )
    assert {name for name in names if ".dist-info/" not in name} == sources | kernel
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_commands_and_a_training_without_the_checkout(installed: Path, tmp_path: Path):
    where = run(installed / "python", "-c", "import feedline; print(feedline.__file__)", cwd=tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(installed.parent), where.stderr
    (tmp_path / "pipeline.yaml").write_text(OF_CLICKS)
    said = []
    for words in (
        ("feedline", "--help"),
        ("feedline", "generate", "clicks", "clicks", "--rows", "2000", "--days", "2"),
        ("feedline", "run", "pipeline.yaml", "--sink", "null"),
        ("python", "-W", "error", "-c", TRAINING),
    ):
        done = run(installed / words[0], *words[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    assert all(command in said[0] for command in ("generate", "plan", "run", "fit"))
    assert re.search("1,792 rows in 7 batches", said[2])
    assert said[3] == "1792\n"
