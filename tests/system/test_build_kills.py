"""Builds that are killed at random moments, over logs whose files arrive in any order, make one table, to the byte."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from forked import forked
from interrupted_build import build

from feedline.workbench.generate.generate import generate_logs
from feedline.workbench.generate.logs import LogRecipe

pytestmark = pytest.mark.nightly

KILLS, SEEDS = 20, 5  # of each layout: 200 kills in all
DAYS = 4
LOGS = {"rows": 8_000, "days": DAYS, "part_rows": 700, "row_group_rows": 256, "users": 60, "items": 300}
FAULTS = {"late": 0.05, "duplicates": 0.05, "orphans": 0.05}
SAMPLES = """
version: 1
impressions: {{table: {logs}/impressions, key: [request_id, item_id], time: ts}}
outcomes:
  click: {{table: {logs}/clicks, key: [request_id, item_id], time: ts, within: 30m,
          label: {{clicked: exists, clicks: count, dwell: sum(dwell_ms)}}}}
  order: {{table: {logs}/orders, key: [user_id, item_id], time: ts, within: 12h,
          label: {{ordered: exists, paid: max(price)}}}}
features: {{user: {{table: {logs}/users, key: user_id, time: ts}}}}
negatives: {{where: not clicked, keep: 0.5, weight: sample_weight}}
late: rebuild
out: {{table: {out}, by: day(ts), {layout}}}
"""
LAYOUTS = {
    "impressions": "cluster_by: session_id, sort_by: ts, dedup: {user: [age, country, hist]}",
    "requests": "rows: request, request: request_id, sort_by: position, candidates: "
    "[item_id, position, price, ts, clicked, clicks, dwell, ordered, paid, sample_weight, age, country, hist]",
}
END = ("--until", "2026-03-01T00:00:00", "--threads", "2")


@dataclass(frozen=True)
class Undisturbed:
    """Logs, and what a build makes of them that nobody disturbs: the content of partitions, and its seconds."""

    logs: Path
    layout: str
    whole: dict[str, list[bytes]]
    seconds: float


def samples(folder: Path, logs: Path, out: Path, layout: str) -> Path:
    path = folder / f"{out.name}.yaml"
    path.write_text(SAMPLES.format(logs=logs, out=out, layout=layout))
    return path


def built(path: Path, *options: str, within_s: float | None = None) -> bool:
    """Build, or kill the build after a time; whether it ended by itself."""
    output = path.with_suffix(".out")
    process = forked(build, str(path), str(output), *options)
    process.join(within_s)
    if process.is_alive():
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
    code = process.exitcode
    process.close()
    assert code in (0, -signal.SIGKILL), output.read_text()
    return code == 0


def partitions(table: Path) -> dict[str, list[bytes]]:
    """The content of the files of each partition, all of which have landed whole."""
    folders = sorted(table.glob("ds=*"))
    assert all((folder / "_SUCCESS").exists() for folder in folders)
    return {folder.name: sorted(file.read_bytes() for file in folder.glob("*.parquet")) for folder in folders}


def hidden(table: Path) -> list[str]:
    """What else is in the table that a reader could take for data."""
    landed = {f"ds=2026-01-0{day}" for day in range(1, DAYS + 1)}
    return [
        entry.name for entry in table.iterdir() if entry.name not in landed and not entry.name.startswith(("_", "."))
    ]


@pytest.fixture(scope="module", params=LAYOUTS)
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder, layout = tmp_path_factory.mktemp("logs"), LAYOUTS[request.param]
    generate_logs(str(folder / "logs"), LogRecipe(**LOGS, **FAULTS), threads=1)
    path = samples(folder, folder / "logs", folder / "whole", layout)
    assert built(path, *END)  # once before: the server of children starts
    shutil.rmtree(folder / "whole")
    began = time.perf_counter()
    assert built(path, *END)
    seconds = time.perf_counter() - began
    whole = partitions(folder / "whole")
    assert len(whole) == DAYS
    column = "unnest(clicked)" if request.param == "requests" else "clicked"
    rows, clicked = duckdb.sql(
        f"select count(*), sum(c::int) from (select {column} as c from read_parquet('{folder}/whole/*/*.parquet'))"
    ).fetchall()[0]
    assert 0 < clicked < rows < LOGS["rows"]
    return Undisturbed(folder / "logs", layout, whole, seconds)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_builds_that_are_killed_make_the_same_table(tmp_path: Path, undisturbed: Undisturbed, seed: int) -> None:
    whole, table = undisturbed.whole, tmp_path / "table"
    path = samples(tmp_path, undisturbed.logs, table, undisturbed.layout)
    moments, kills, partial = random.Random(seed), 0, 0
    while kills < KILLS:
        ended = built(path, *END, within_s=moments.uniform(0, 1.2 * undisturbed.seconds))
        found = partitions(table) if table.exists() else {}
        assert all(files == whole[name] for name, files in found.items())
        kills += not ended
        partial += 0 < len(found) < DAYS
        if ended:
            assert found == whole
            assert not hidden(table)
            shutil.rmtree(table)
    assert built(path, *END)
    assert partitions(table) == whole
    assert partial, "kills come in the middle of tables"


@pytest.mark.parametrize("seed", range(4))
def test_events_in_any_order_of_arrival_make_the_same_table(
    tmp_path: Path, undisturbed: Undisturbed, seed: int
) -> None:
    """Some files arrive, a build runs to its end or is killed, more files arrive, …"""
    source, whole = undisturbed.logs, undisturbed.whole
    arriving, table = tmp_path / "logs", tmp_path / "table"
    draws = random.Random(seed)
    files = sorted(source.rglob("*.parquet"))
    for name in ("impressions", "clicks", "orders", "users"):  # a log has a file, or no schema
        first = next(file for file in files if file.relative_to(source).parts[0] == name)
        files.remove(first)
        files.insert(0, first)
    files[4:] = draws.sample(files[4:], len(files) - 4)
    path, begin, count = samples(tmp_path, arriving, table, undisturbed.layout), 0, 4
    while begin < len(files):
        for file in files[begin : begin + count]:
            target = arriving / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        begin, count = begin + count, draws.randint(1, len(files) // 3)
        within_s = draws.choice([None, draws.uniform(0, undisturbed.seconds)])
        built(path, *draws.choice([END, END[2:]]), within_s=within_s)
    assert built(path, *END)
    assert partitions(table) == whole
    assert not hidden(table)
