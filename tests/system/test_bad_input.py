"""Is every kind of bad input said with its place, before the first batch where it can be known, and never delivered?

The command line's errors end with status 2 where the input is wrong and 1 where a job failed; a trainer meets the same
errors from its feeder. Nothing hangs.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import (
    GROUP,
    ROWS,
    delete,
    flip_a_footer,
    flip_a_page,
    replace_by_another,
    replace_by_one_of_the_same_size_and_time,
    truncate,
    write,
)
from pipelines import Place, furnished, image, oracle
from processes import ended_here

from feedline import FeedlineDataset, Pipeline
from feedline.errors import (
    CorruptFileError,
    DataError,
    FeedlineError,
    PlanError,
    RingError,
    SpecError,
    TableChangedError,
    TableError,
    TableNotFoundError,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


FEATURES = {"dense": {"x": []}, "sparse": {"ids": []}, "label": {"y": []}, "extra": ["id"]}


def pipeline_over(place: Place, table: Path, **changes: Any) -> Path:
    changes = {"features": FEATURES, "shuffle": "off", "batch": {"size": 256}, **changes}
    return place.write("b.yaml", **{**changes, "source": {"table": str(table), **changes.get("source", {})}})


# -- the command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"bach": {"size": 1}}, ["b.yaml:", "bach", "Did you mean 'batch'?"]),
        ({"batch": {"size": 256, "tial": "pad"}}, ["b.yaml:", "batch.tial", "'tail'"]),
        ({"features": {"dense": {"x": ["fil_null"]}}}, ["b.yaml:", "features.dense.x[0]", "'fill_null'"]),
        ({"features": {"dense": {"x": [{"clip": {"mim": 0}}]}}}, ["b.yaml:", "features.dense.x[0]", "'min'"]),
        ({"features": {"dense": {"idss": []}}}, ["b.yaml:", "features.dense.idss", "Did you mean `ids`?"]),
        ({"source": {"where": "idss > 3"}}, ["b.yaml:", "source.where", "ids"]),
        ({"source": {"where": "id > "}}, ["b.yaml:", "source.where"]),
        ({"features": {"dense": {"ids": []}}}, ["b.yaml:", "features.dense.ids", "list"]),
        ({"features": {"categorical": {"ids": []}}}, ["b.yaml:", "features.categorical.ids", "list"]),
        ({"source": {"where": "id < 0"}}, ["b.yaml:", "source.where", "the filter keeps no row: got 0 of 16,384 rows"]),
        ({"batch": {"size": 100_000}}, ["fewer rows than one global step: got 16,384 rows, expected at least 100,000"]),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_pipelines(place: Place, table: Path, changes: dict, texts: list[str]):
    path = pipeline_over(place, table, **changes)
    done = ended_here("plan", path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr
    with pytest.raises((SpecError, PlanError)):
        next(Pipeline.from_yaml(path).batches())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("table"))


def test_an_error_of_the_plan_ends_a_run_in_the_same_way(place: Place, table: Path):
    path = pipeline_over(place, table, features={"dense": {"idd": []}})
    typed = "features.dense={idx: []}"
    done = ended_here("run", path, "--sink", "null", "--set", typed)
    assert (done.returncode, "error: --set features.dense: " in done.stderr) == (2, True), done.stderr
    assert "idx" in done.stderr
    with FeedlineDataset(path, set={"features.dense": {"idx": []}}) as dataset, pytest.raises(SpecError) as caught:
        len(dataset)
    assert 'set["features.dense"]' in str(caught.value)
    with FeedlineDataset(path) as dataset:
        for use in (lambda: next(iter(dataset)), lambda: len(dataset)):  # asked again, it says it again
            with pytest.raises(SpecError, match=r"b\.yaml:\d+:\d+: features\.dense\.idd"):
                use()


def test_a_table_that_is_missing_or_empty(place: Place, tmp_path: Path):
    done = ended_here("plan", pipeline_over(place, tmp_path / "nothing"))
    assert (done.returncode, "nothing" in done.stderr) == (2, True), done.stderr
    with FeedlineDataset(pipeline_over(place, tmp_path / "nothing")) as dataset, pytest.raises(TableNotFoundError):
        len(dataset)
    (tmp_path / "empty").mkdir()
    done = ended_here("plan", pipeline_over(place, tmp_path / "empty"))
    assert (done.returncode, "empty" in done.stderr) == (2, True), done.stderr
    bare = tmp_path / "bare"
    bare.mkdir()
    pq.write_table(pq.read_table(next(write(tmp_path / "full", 1).rglob("*.parquet"))).slice(0, 0), bare / "f.parquet")
    done = ended_here("plan", pipeline_over(place, bare, features={"dense": {"x": []}}))
    assert (done.returncode, "the table has no rows: got 1 files without rows" in done.stderr) == (2, True), done.stderr


def test_a_work_dir_that_cannot_be_written(place: Place, table: Path):
    (place.folder / "file").touch()
    path = pipeline_over(place, table, work_dir=str(place.folder / "file" / "x"))
    done = ended_here("plan", path)
    assert (done.returncode, "work_dir: cannot be written" in done.stderr) == (2, True), done.stderr


# -- values -------------------------------------------------------------------------------------------------------


def nulls(at: int) -> pa.Array:
    return pa.array([None if row == at else float(row) for row in range(ROWS)], pa.float32())


@pytest.mark.parametrize(
    ("changes", "feature", "row"),
    [
        ({"x": nulls(3 * GROUP + 5)}, "x", 3 * GROUP + 5),
        ({"y": pa.array([None if row == 3 * GROUP else 1 for row in range(ROWS)], pa.int64())}, "y", 3 * GROUP),
        ({"ids": pa.array([[1, None] if row == 4 * GROUP - 1 else [1] for row in range(ROWS)])}, "ids", 4 * GROUP - 1),
    ],
    ids=["dense", "label", "list element"],
)
def test_a_null_that_is_left_over_names_feature_file_row_group_and_row(
    place: Place, tmp_path: Path, changes: dict, feature: str, row: int
):
    """Of a file whose footer does not count its nulls: others are refused before the first batch."""
    table = write(tmp_path / "t", **changes)
    file = table / "part=2" / "data.parquet"
    pq.write_table(pq.read_table(file, partitioning=None), file, row_group_size=GROUP, write_statistics=False)
    path = pipeline_over(place, table)
    good: list[bytes] = []
    with pytest.raises(DataError) as caught:
        good.extend(image(batch) for batch in Pipeline.from_yaml(path).batches())
    for text in (feature, "null", str(file), f"row group {row // GROUP}, row {row})"):
        assert text in str(caught.value)
    if feature == "ids":
        return
    assert f"Add fill_null to its ops, or `{feature} is not None` to source.where" in str(caught.value)
    if feature == "x":
        seen: list[bytes] = []
        with FeedlineDataset(path) as dataset:
            with pytest.raises(DataError, match=re.escape(str(caught.value))):
                seen.extend(image(batch) for batch in dataset)
            assert seen == good[: len(seen)]
            assert dataset.state_dict()["step"] == len(seen)


# -- files that change --------------------------------------------------------------------------------------------


CHANGES = [
    (delete, TableChangedError, ["is gone"]),
    (truncate, TableChangedError, ["changed after the snapshot"]),
    (replace_by_another, TableChangedError, ["changed after the snapshot"]),
    (replace_by_one_of_the_same_size_and_time, TableChangedError, ["replaced after the snapshot"]),
    (flip_a_footer, (TableChangedError, CorruptFileError), []),
    (flip_a_page, CorruptFileError, ["row group 5"]),
]


@pytest.mark.parametrize(
    ("change", "error", "texts"),
    [
        pytest.param(
            *each, id=each[0].__name__, marks=() if each[0] in (truncate, flip_a_page) else pytest.mark.nightly
        )
        for each in CHANGES
    ],
)
def test_a_file_that_changes_in_mid_run(
    place: Place, tmp_path: Path, change: Callable[[Path], None], error: type[FeedlineError], texts: list[str]
):
    """While the trainer is at the first file; what it gets until it meets the change is what the snapshot held."""
    table = write(tmp_path / "t")
    path = pipeline_over(place, table, source={"split_rows": GROUP}, cluster={"threads": 1, "window": 2})
    expected = oracle(path)
    file = table / "part=3" / "data.parquet"
    seen: list[bytes] = []
    with FeedlineDataset(path) as dataset:
        iterator = iter(dataset)
        seen.append(image(next(iterator)))
        change(file)
        with pytest.raises(error) as caught:
            seen.extend(image(batch) for batch in iterator)
        state = dataset.state_dict()
        with pytest.raises(error):  # asked again, it raises again
            next(iterator)
        assert dataset.state_dict() == state
    assert seen == expected[: len(seen)]
    assert len(seen) >= 2 * ROWS // 256
    for text in [str(file), *texts]:
        assert text in str(caught.value)


@pytest.mark.parametrize(("change", "error", "texts"), CHANGES, ids=[each[0].__name__ for each in CHANGES])
def test_a_file_that_changes_between_save_and_resume(
    place: Place, tmp_path: Path, change: Callable[[Path], None], error: type[FeedlineError], texts: list[str]
):
    """As above, in this process: the snapshot is loaded, and the file is not the one it lists."""
    table = write(tmp_path / "t")
    path = pipeline_over(place, table)
    snapshot = Pipeline.from_yaml(path).snapshot()
    expected = oracle(path)
    file = table / "part=3" / "data.parquet"
    change(file)
    seen: list[bytes] = []
    with pytest.raises(error) as caught:
        seen.extend(image(batch) for batch in Pipeline.from_yaml(path).batches(snapshot=snapshot))
    assert seen == expected[: len(seen)]
    for text in [str(file), *texts]:
        assert text in str(caught.value)


def test_a_corrupt_footer_is_met_before_the_first_batch(place: Place, tmp_path: Path):
    file = write(tmp_path / "t") / "part=1" / "data.parquet"
    path = pipeline_over(place, tmp_path / "t")
    truncate(file)
    done = ended_here("run", path, "--sink", "null")
    assert (done.returncode, str(file) in done.stderr) == (1, True), done.stderr
    shutil.rmtree(tmp_path / "t")
    write(tmp_path / "t")
    flip_a_footer(file)
    with FeedlineDataset(path) as dataset, pytest.raises(TableError, match=r"part=1/data\.parquet"):
        len(dataset)


def test_a_corrupt_page_of_the_filters_column_is_met_while_rows_are_counted(place: Place, tmp_path: Path):
    table = write(tmp_path / "t")
    file = table / "part=1" / "data.parquet"
    flip_a_page(file)
    path = pipeline_over(place, table, source={"where": "x > 0.5"})
    with FeedlineDataset(path) as dataset, pytest.raises(CorruptFileError, match=r"part=1/data\.parquet, row group 5"):
        len(dataset)


def test_a_file_whose_rows_no_longer_match_the_counts(place: Place, tmp_path: Path):
    """Counts belong to their snapshot: another table at the same place has its own."""
    table = write(tmp_path / "t")
    path = pipeline_over(place, table, source={"where": "x > 0.5"}, batch={"size": 256, "tail": "partial"})
    first = oracle(path)
    shutil.rmtree(table)
    write(tmp_path / "t", x=np.zeros(ROWS, np.float32))
    second = oracle(path)
    assert len(second) < len(first)


# -- memory -------------------------------------------------------------------------------------------------------


@contextmanager
def limited(limit: int, soft: int) -> Iterator[None]:
    """A limit that processes started meanwhile inherit."""
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def test_too_few_open_files_end_a_run_at_once(place: Place, table: Path):
    path = pipeline_over(place, table)
    began = time.monotonic()
    script = f"ulimit -n 40; exec {sys.executable} -m feedline run {path} --sink null"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the limit of open files is too low: got 40 (ulimit -n), expected at least 64" in " ".join(
        done.stderr.split()
    )
    assert time.monotonic() - began < 30


def test_no_room_for_the_ring(place: Place, table: Path):
    """The feeder may not make a file of that size: its first allocation fails, as it does without memory."""
    path = pipeline_over(place, table, batch={"size": 8192})
    with limited(resource.RLIMIT_FSIZE, 1 << 18):
        dataset = FeedlineDataset(path)
        dataset.facts  # noqa: B018 -- the feeder runs now
    with dataset:
        began = time.monotonic()
        with pytest.raises(RingError, match=r"no memory for the ring: needed [\d,]+ bytes, available [\d,]+"):
            next(iter(dataset))
        assert time.monotonic() - began < 30


def test_a_batch_larger_than_the_memory_is_delivered_or_refused(place: Place, table: Path):
    """`memory` bounds what is in flight; two slots there must be."""
    path = pipeline_over(place, table, batch={"size": 8192}, memory="64kB")
    with FeedlineDataset(path) as dataset:
        assert [image(batch) for batch in dataset] == oracle(path)
