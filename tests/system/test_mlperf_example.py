"""Does the example feed the benchmark's tensors as its rules say, and train the same from late and from fat rows?"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from example_programs import example_programs

from feedline import Pipeline

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        importlib.util.find_spec("torchrec") is None,
        reason="torchrec is not installed: its KeyedJaggedTensor is the example's",
    ),
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "mlperf_dlrm_v4"
LAST_DAY = "2026-01-06"


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, ModuleType]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torchrec's, of parts for GPUs that are absent and of names that are old
        importlib.import_module("torchrec")
    with example_programs(EXAMPLE, threads=1) as programs:
        yield programs


@pytest.fixture(scope="module")
def folder(programs: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example over few users, one of whom has more events than are scanned."""
    from feedline.workbench.generate.generate import generate_listens
    from feedline.workbench.generate.listens import ListenRecipe

    folder = tmp_path_factory.mktemp("mlperf")
    generate_listens(str(folder / "warehouse" / "listens"), ListenRecipe(rows=60_000, users=5, days=6), threads=1)
    programs["prepare"].main([*map(str, (folder / "warehouse/listens", folder / "warehouse/anchors"))])
    return folder


def overrides(folder: Path) -> dict[str, object]:
    """Of pipeline.yaml: the tables of this folder."""
    tables = {"source.table": "anchors", "histories.events.table": "listens"}
    paths: dict[str, object] = {key: str(folder / "warehouse" / name) for key, name in tables.items()}
    return {**paths, "work_dir": str(folder / "work")}


def options_of(values: dict[str, object], option: str = "--set") -> list[str]:
    return [word for key, value in values.items() for word in (option, f"{key}={value}")]


def test_samples_are_listens_with_enough_earlier_events(folder: Path) -> None:
    events = f"read_parquet('{folder}/warehouse/listens/*/*.parquet')"
    expected = duckdb.sql(
        "select event_no from (select *, rank() over (partition by uid order by timestamp) - 1 as earlier "
        f"from {events}) where event_type = 'listen' and earlier >= 64 order by timestamp, event_no"
    ).fetchnumpy()["event_no"]
    files = sorted((folder / "warehouse" / "anchors").rglob("*.parquet"))
    found = pa.concat_tables([pq.ParquetFile(file).read(["event_no"]) for file in files])["event_no"].to_numpy()
    np.testing.assert_array_equal(found, expected)
    assert len(files) == 6


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_batches_hold_what_the_rules_say(
    programs: dict[str, ModuleType], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the last day, where histories are longer than the scan, and pools are full."""
    warehouse = folder / "warehouse"
    events = duckdb.sql(f"select count(*) from read_parquet('{warehouse}/listens/*/*.parquet') group by uid").fetchall()
    assert max(count for (count,) in events) > programs["reference"].SCAN + 5_000
    options = [*options_of(overrides(folder)), "--events", warehouse / "listens"]
    options += ["--anchors", warehouse / "anchors", "--samples", 96, "--day", LAST_DAY, "--stored"]
    programs["reference"].main([*map(str, options)])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("96 samples, ")
    assert int(second.split()[0]) > 20, "events of one time, which every log has"


def test_the_check_finds_what_is_wrong(programs: dict[str, ModuleType], folder: Path) -> None:
    reference = programs["reference"]
    samples = list(reference.islice(reference.rows_of(folder / "warehouse" / "anchors"), 32))
    known = reference.Events(folder / "warehouse" / "listens")
    pipeline = Pipeline.from_yaml(
        EXAMPLE / "pipeline.yaml", {**overrides(folder), "histories.events.tie_break": "item_id"}
    )
    with pytest.raises(SystemExit, match=r"item_id of .* differs: got "):
        reference.check(pipeline, known, samples)


def test_crosses_are_those_of_xxhash(programs: dict[str, ModuleType]) -> None:
    draw = np.random.default_rng(0)
    columns = [draw.integers(-(2**63), 2**63, 50) for _ in range(3)]
    for chosen in (columns[:2], columns):
        expected = [xxhash.xxh64_intdigest(np.array(row).tobytes()) % 999 for row in zip(*chosen, strict=True)]
        np.testing.assert_array_equal(programs["crosses"].cross(*chosen, buckets=999), expected)
    times = np.array([0, 3599, 3600, 86_399, 86_400])
    expected = programs["crosses"].cross(times, np.array([0, 0, 1, 23, 0]), buckets=99)
    np.testing.assert_array_equal(programs["crosses"].cross_hour(times, times, buckets=99), expected)


def test_late_and_fat_rows_train_the_same(programs: dict[str, ModuleType], folder: Path) -> None:
    late = {**overrides(folder), "source.where": f'ds == "{LAST_DAY}" and uid % 2 == 0'}
    target = folder / "warehouse" / "anchors-fat"
    Pipeline.from_yaml(EXAMPLE / "pipeline.yaml", late).materialize(str(target), format="parquet")
    options = options_of(late)
    options += options_of({"source.table": target, "work_dir": folder / "work"}, "--set-fat")
    options += ["--compare", "--steps", 6, "--positions", 32, "--json", folder / "losses.json"]
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        programs["train"].main([*map(str, options)])
    finally:
        torch.use_deterministic_algorithms(deterministic)
    losses = programs["train"].json.loads((folder / "losses.json").read_text())
    assert losses["late"] == losses["fat"]
    assert np.std(losses["late"]) > 1e-3, "nothing was learnt"
