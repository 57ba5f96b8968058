"""Trainings that torchrun starts end on all ranks after equal steps, with every row once, whatever the files are."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, eventually, furnished
from processes import SUPPORT, DaskCluster, Program, free_port, running
from receipts import audit_receipts

from feedline.pipeline import Pipeline

# Rows per file: uneven ones, a tiny one, one without rows, a partition with nothing else.
FILES = {"day=0": [5_000, 1], "day=1": [0], "day=2": [700, 1_900], "day=3": [0, 0], "day=4": [64, 333]}
WHERE = "id % 97 == 3 or (day == 4 and x > 0.9)"
FEATURES = {
    "dense": {"x": [{"fill_null": 0}], "y": {"expr": "id % 7"}},
    "label": {"clicked": []},
    "extra": ["id"],
}
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    table, random, first = tmp_path_factory.mktemp("t"), np.random.default_rng(0), 0
    for day, files in FILES.items():
        (table / day).mkdir()
        for number, rows in enumerate(files):
            ids = np.arange(first, first + rows)
            data = {
                "id": ids,
                "x": pa.array(random.random(rows), mask=random.random(rows) < 0.1),
                "clicked": random.random(rows) < 0.4,
            }
            pq.write_table(pa.table(data), table / day / f"{number}.parquet", row_group_size=512)
            first += rows
    with furnished(tmp_path_factory.mktemp("d"), table) as place:
        yield place


def written(place: Place, **changes: Any) -> list[Path]:
    """Every row, the last step padded; and few rows, the last step dropped."""
    whole = {"features": FEATURES, "lanes": 4, "batch": {"size": 100, "tail": "pad"}, **changes}
    few = {**whole, "batch": {"size": 8, "tail": "drop"}, "source": {"where": WHERE}}
    return [place.write("whole.yaml", **whole), place.write("few.yaml", **few)]


def selected(place: Place, where: str) -> set[int]:
    query = f"select id from read_parquet('{place.table}/*/*.parquet', hive_partitioning = true) where {where}"
    return {row for (row,) in duckdb.sql(query).fetchall()}


def check(place: Place, folder: Path, ranks: int) -> None:
    outcomes = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    whole, few = (str(place.folder / name) for name in ("whole.yaml", "few.yaml"))
    for path, where in ((whole, "true"), (few, WHERE.replace("==", "="))):
        of_ranks = [outcome[path] for outcome in outcomes]
        expected = selected(place, where)
        ids = [row for each in of_ranks for row in each["ids"]]
        assert len(ids) == len(set(ids)) == len(expected) - of_ranks[0]["dropped"]
        assert set(ids) <= expected
        assert of_ranks[0]["rows"] == len(expected)
        assert of_ranks[0]["dropped"] == (0 if path == whole else len(expected) % 32)
        assert {(each["steps"], each["len"]) for each in of_ranks} == {(of_ranks[0]["steps"],) * 2}
        assert len({json.dumps(each["weights"]) for each in of_ranks}) == 1, "every step was taken by all"
        assert len({json.dumps(each["state"]) for each in of_ranks}) == 1
    check_mesh(whole, [outcome["mesh"] for outcome in outcomes])


def check_mesh(path: str, outcomes: Sequence[dict[str, Any]]) -> None:
    """Two ranks each see the same batches, together all rows, in states that any rank can load."""
    receipts = [receipt for outcome in outcomes for receipt in outcome["receipts"]]
    audit = audit_receipts(Pipeline.from_yaml(path), receipts)
    assert audit.equal, audit
    assert not audit.again
    assert len({json.dumps(outcome["state"]) for outcome in outcomes}) == 1
    digests = [[receipt["digest"] for receipt in outcome["receipts"]] for outcome in outcomes]
    for first in range(0, len(outcomes) - 1, 2):
        assert digests[first] == digests[first + 1]
        assert digests[first] != digests[first - 2] or len(outcomes) < 4
    data_ranks = max(1, len(outcomes) // 2)
    assert {receipt["world_size"] for receipt in receipts} == {data_ranks}
    assert f"mesh dp; trainer 0 of {len(outcomes)}, torch.distributed" in outcomes[0]["source"]


def torchrun(folder: Path, pipelines: Sequence[Path], *options: object, host: Path) -> Any:
    """torchrun on a host, as far as its processes can tell: with runtime and temporary folders of its own."""
    own = {name: str(host / name) for name in ("XDG_RUNTIME_DIR", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR")}
    for path in own.values():
        Path(path).mkdir(parents=True, mode=0o700)
    words = ("--no-python", *options, sys.executable, SUPPORT / "ddp_training.py", folder, *pipelines)
    return running(sys.executable, SUPPORT / "torchrun.py", *words, env={**os.environ, **own})


def left(host: Path) -> list[Path]:
    """What Feedline has left behind on a host."""
    return [*host.glob("TMPDIR/feedline*"), *host.glob("XDG_RUNTIME_DIR/feedline/*")]


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(1, marks=pytest.mark.nightly), pytest.param(4, marks=pytest.mark.nightly)]
)
def test_on_one_host(place: Place, tmp_path: Path, ranks: int):
    host = tmp_path / "host"
    with torchrun(tmp_path, written(place), "--standalone", "--nproc-per-node", ranks, host=host) as program:
        assert program.wait(LIMIT_S) == 0, program.text
    check(place, tmp_path, ranks)
    assert eventually(lambda: not left(host), within_s=10), left(host)


@pytest.mark.nightly
def test_on_two_hosts_with_one_scheduler(place: Place, tmp_path: Path):
    port, hosts = free_port(), [tmp_path / "host0", tmp_path / "host1"]
    programs: list[Program] = []
    with DaskCluster(tmp_path / "dask", workers=2) as dask, contextlib.ExitStack() as stack:
        pipelines = written(place, cluster={"scheduler": dask.address})
        for number, host in enumerate(hosts):
            where = ("--nnodes", 2, "--node-rank", number, "--master-addr", "127.0.0.1", "--master-port", port)
            run = torchrun(tmp_path, pipelines, *where, "--nproc-per-node", 2, host=host)
            programs.append(stack.enter_context(run))
        for program in programs:
            assert program.wait(LIMIT_S) == 0, program.text
    check(place, tmp_path, 4)
    assert eventually(lambda: not any(map(left, hosts)), within_s=10), list(map(left, hosts))
