"""The programs of docs/coming-from: Feedline's run, and others' where they are installed, over the same rows."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from fences import FENCE

from feedline import Pipeline
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "coming-from").glob("*.md"))}
# The page, the packages that its program imports, and the one whose version the page names.
PEERS = {
    "petastorm": ("petastorm", ["petastorm"]),
    "torchdata": ("torchdata", ["torchdata"]),
    "hf-datasets": ("datasets", ["datasets"]),
    "ray-data": ("ray", ["ray"]),
    "mosaic-streaming": ("mosaicml-streaming", ["streaming"]),
    "fuxictr": ("fuxictr", ["fuxictr", "ray"]),
}
ROWS, PROGRAM_S = 8000, 170


def files(page: str) -> dict[str, tuple[str, str]]:
    """The files that a page shows, by the name in the paragraph before: language and content."""
    text, found = PAGES[page], {}
    for match in FENCE.finditer(text):
        paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
        [name] = re.findall(r"`([\w.]+\.(?:py|yaml))`", paragraph)
        found[name] = (match[1], match[2])
    return found


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of all pages, in small: four days, of row groups of 500 rows."""
    folder = tmp_path_factory.mktemp("coming-from") / "warehouse"
    recipe = ClickRecipe(rows=ROWS, days=4, dense=2, ids=1, strings=0, histories=1, row_group_rows=500)
    generate_clicks(str(folder / "clicks"), recipe)
    return folder


@pytest.fixture(scope="module")
def truth(warehouse: Path) -> dict[str, int]:
    """What the programs count, by DuckDB."""
    scan = f"read_parquet('{warehouse}/clicks/*/*.parquet', hive_partitioning = true)"
    counts = "count(*), sum(clicked), sum(least(len(hist_0), 20))"
    [row] = duckdb.sql(f"select {counts} from {scan} where ds < '2026-01-04'").fetchall()
    return dict(zip(("rows", "clicks", "ids"), map(int, row), strict=True))


@pytest.fixture
def folder(warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the table, which is the current one."""
    (tmp_path / "warehouse").symlink_to(warehouse)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def save(page: str, folder: Path) -> None:
    for name, (_, content) in files(page).items():
        (folder / name).write_text(content, encoding="utf-8")


def counted(printed: str) -> dict[str, int]:
    """The counts in the last line of a program's output."""
    return {name: int(number) for number, name in re.findall(r"(\d+) (\w+)", printed.splitlines()[-1])}


def run_here(name: str) -> None:
    """Run a program of the current folder in this process."""
    names: dict[str, object] = {"__name__": "example"}
    exec(compile(Path(name).read_text(encoding="utf-8"), name, "exec"), names)
    names.clear()
    gc.collect()


def run_program(name: str, folder: Path, package: str) -> str:
    """What a program of a page prints, in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment |= {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, name],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=False,
    )
    assert done.returncode == 0, f"{package}: {done.stderr}"
    return done.stdout


def test_every_page_is_tested():
    assert sorted(PEERS) == sorted(set(PAGES) - {"nvtabular"})
    for page in PEERS:
        assert {"before.py", "after.py", "pipeline.yaml"} <= set(files(page))


@pytest.mark.parametrize("page", sorted(set(PEERS) - {"fuxictr"}))
def test_the_program_of_feedline_sees_the_rows(
    page: str, folder: Path, truth: dict[str, int], capsys: pytest.CaptureFixture[str]
):
    save(page, folder)
    run_here("after.py")
    found = counted(capsys.readouterr().out)
    assert found == {name: truth[name] for name in found}
    assert {"rows", "clicks"} <= set(found)


@pytest.mark.parametrize("page", sorted(set(PEERS) - {"fuxictr"}))
def test_the_program_that_it_replaces_sees_the_same_rows(
    page: str, folder: Path, truth: dict[str, int], capsys: pytest.CaptureFixture[str]
):
    package, modules = PEERS[page]
    if any(importlib.util.find_spec(module) is None for module in modules):
        pytest.skip(f"{package} is not installed")
    save(page, folder)
    if page == "torchdata":  # starts no process, and imports nothing that this one has not
        run_here("before.py")
    else:
        sys.stdout.write(run_program("before.py", folder, package))
    found = counted(capsys.readouterr().out)
    assert found == {name: truth[name] for name in found}
    assert {"rows", "clicks"} <= set(found)


@pytest.mark.parametrize("page", PEERS)
def test_the_page_names_the_version_that_it_was_written_against(page: str):
    package, _ = PEERS[page]
    [version] = re.findall(r"Written against\s(?:[\w-]+\s)?(\d+(?:\.\d+)+)", PAGES[page])
    if importlib.util.find_spec(PEERS[page][1][0]) is not None:
        assert version == importlib.metadata.version(package)


class FeatureMap:
    """What `describe` needs of fuxictr.features.FeatureMap."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.features: dict[str, dict[str, Any]] = {}
        self.num_fields = 0

    def get_num_fields(self) -> int:
        return len(self.features)

    def set_column_index(self) -> None:
        self.indexed = True


def test_batches_have_the_form_of_fuxictr(folder: Path, truth: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    save("fuxictr", folder)
    names: dict[str, Any] = {}
    exec(files("fuxictr")["feed.py"][1], names)
    loader = names["FeedlineLoader"]("pipeline.yaml", **{"features.extra": ["session_id"]})
    try:
        described = loader.describe(FeatureMap())
        epochs = [list(map(dict, loader)) for _ in range(2)]
        assert [len(batches) for batches in epochs] == [len(loader)] * 2
        assert [sum(len(batch["clicked"]) for batch in batches) for batches in epochs] == [truth["rows"]] * 2
        batch = epochs[0][0]
        assert (described.labels, described.num_fields, described.indexed) == (["clicked"], 5, True)
        assert sorted(batch) == sorted([*described.features, *described.labels])
        kinds = {name: each["type"] for name, each in described.features.items()}
        numbers = {"dense_0": "numeric", "dense_1": "numeric"}
        assert kinds == {**numbers, "id_0": "categorical", "history": "sequence", "session_id": "meta"}
        expected = next(Pipeline.from_yaml("pipeline.yaml").batches())
        history = np.zeros((expected.rows, 20), np.int64)
        for row in range(expected.rows):
            ids = expected.sparse["history"].values[slice(*expected.sparse["history"].offsets[row : row + 2])]
            history[row, : len(ids)] = ids
        np.testing.assert_array_equal(batch["history"], history)
        for name in ("dense_0", "dense_1", "id_0", "clicked"):
            assert batch[name].equal(expected[name])
        for name in ("id_0", "history"):
            assert batch[name].dtype == torch.int64
            assert 0 <= int(batch[name].max()) < described.features[name]["vocab_size"]
    finally:
        loader.dataset.close()


@pytest.mark.parametrize("program", ["before.py", "after.py"])
def test_models_of_fuxictr_train(program: str, folder: Path):
    if any(importlib.util.find_spec(module) is None for module in ("fuxictr", "ray")):
        pytest.skip("fuxictr is not installed")
    save("fuxictr", folder)
    printed = run_program(program, folder, "fuxictr")
    assert re.search(rf"^{ROWS // 4} rows, .*AUC", printed, re.MULTILINE)
