"""`feedline audit` prints what differs, as a table and as JSON, and ends with 1 only with --strict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import ended_here
from schedulers import local_cluster

from feedline.commands.audit import audit_tables
from feedline.commands.consoles import console_on

EVENTS = pa.table({"user": [1, 1, 1, 2], "ts": [1, 2, 3, 1], "item": [10, 20, 30, 40]})
ROWS = pa.table(
    {
        "user": [1, 1, 2, 3],
        "ts": [3, 3, 5, 5],
        "day": ["a", "b", "b", None],
        "items": pa.array([[10, 20], [10, 20, 30], [40], None], pa.list_(pa.int64())),
        "times": pa.array([[1, 2], [1, 2, 3], [1], []], pa.list_(pa.int64())),
    }
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    for name, table in (("rows", ROWS), ("events", EVENTS)):
        (folder / name).mkdir()
        pq.write_table(table, folder / name / "part.parquet", row_group_size=2)
    document = {
        "version": 1,
        "name": "audit",
        "work_dir": "work",
        "source": {"table": "rows"},
        "histories": {"events": {"table": "events", "key": "user", "time": "ts"}},
        "features": {"sparse": {"items": {"history": "events", "column": "item", "at": "ts", "last": 5}}},
        "batch": {"size": 2},
    }
    (folder / "p.yaml").write_text(json.dumps(document))
    return folder / "p.yaml"


def test_what_differs_is_printed_by_day(path: Path):
    done = ended_here("audit", path, "--compare", "items = items", "--by", "day", "--times", "times")
    assert done.returncode == 0, done.stderr
    assert "compared 4 rows" in done.stdout
    assert "items, rebuilt by items from history events" in done.stdout
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if "│" in line]
    place = "part.parquet, row group 0, row 1"
    assert lines == [
        ["a", "1", "1", "0", "0", "0", "0", ""],
        ["b", "2", "1", "0", "1", "0", "1", place],
        ["null", "1", "1", "0", "0", "0", "0", ""],
        ["all rows", "4", "3", "0", "1", "0", "1", place],
    ]
    assert f"{place}:\n  the table has 3 events: [10, 20, 30]\n  rebuilt are   2 events: [10, 20]\n" in done.stdout


@pytest.fixture(params=["threads", "workers"])
def cluster(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """The section of a pipeline that compares in threads, or on workers: here those of this process."""
    if request.param == "threads":
        yield {}
        return
    with local_cluster(workers=1) as workers:
        yield {"scheduler": workers.scheduler_address}


def test_strict_ends_with_1_if_anything_differs(path: Path, cluster: dict[str, object]):
    own = path.with_name(f"{len(cluster)}.yaml")
    own.write_text(json.dumps({**json.loads(path.read_text()), "cluster": cluster}))
    done = ended_here("audit", own, "--compare", "items=items", "--strict", "--json")
    assert done.returncode == 1, done.stderr
    facts = json.loads(done.stdout)
    [column] = facts["columns"]
    assert (facts["clean"], facts["by"], column["total"]["extra"], column["total"]["leaks"]) == (False, None, 1, None)
    assert column["total"]["first"]["stored"] == {"length": 3, "last": [10, 20, 30]}
    done = ended_here("audit", own, "--compare", "items=items", "--strict", "--set", "source.where=user > 1")
    assert done.returncode == 0, done.stderr
    assert "nothing differs" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "got no pair, expected FEATURE=COLUMN"),
        (("--compare", "items"), "--compare must be FEATURE=COLUMN: got 'items'"),
        (
            ("--compare", "items=items", "--compare", "items=times"),
            "names feature 'items' twice: got 'items' and 'times'",
        ),
        (("--compare", "items=day"), "--compare needs a column of lists"),
        (("--compare", "items=items", "--rows", "0"), "should be greater than or equal to 1"),
    ],
)
def test_wrong_arguments_end_with_2(path: Path, flags: tuple[str, ...], message: str):
    done = ended_here("audit", path, *flags)
    assert done.returncode == 2, done.stdout
    assert message in " ".join(done.stderr.split())


def test_of_many_values_those_that_differ_are_shown(capsys: pytest.CaptureFixture[str]):
    counts = {"rows": 1, "missing": 0, "extra": 0, "out_of_order": 0, "leaks": None}
    end = {"length": 9, "last": [1, None, "x"]}
    first = {"file": "f", "row_group": 0, "row": 3, "stored": end, "rebuilt": {"length": 0, "last": []}}
    groups = [{**counts, "value": value, "equal": 1, "first": None} for value in range(99)]
    groups.append({**counts, "value": 99, "equal": 0, "first": first})
    total = {**counts, "rows": 100, "equal": 99, "first": first}
    column = {"feature": "f", "column": "c", "history": "h", "total": total, "groups": groups}
    facts = {"table": "t", "rows": 100, "selected": 200, "seconds": 1.0, "clean": False, "by": "v", "columns": [column]}
    console_on().print(audit_tables(facts), highlight=False)
    shown = capsys.readouterr().out
    assert "compared 100 of 200 rows in 1.0 s: lists differ" in shown
    assert "│ 99 " in shown
    assert "│ 98 " not in shown
    assert "… 99 more" in shown
    assert "the table has 9 events: [… 1, null, x]\n  rebuilt are   0 events: []" in shown
