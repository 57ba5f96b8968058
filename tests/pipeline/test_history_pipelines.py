"""Lists of events in batches are those of DuckDB's range join: of all types of keys and times, in both layouts."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from event_tables import ZURICH, document, event_table, laid_out, lists_of, row_table, seen_by, with_types, write
from hypothesis import given
from hypothesis import strategies as st
from pipelines import image

from feedline import Pipeline
from feedline.errors import DataError
from feedline.warehouse.histories import join
from feedline.warehouse.histories.joined_rows import ListColumns

POOLS: dict[str, Any] = {
    "listened": {"where": "ratio >= 50", "last": 4},
    "liked": {"where": "kind == 'like'", "last": 3},
    "any": {"last": 2},
}
SQL_POOLS = (("ratio >= 50", 4), ("kind = 'like'", 3), ("true", 2))


def of_events(**keys: Any) -> dict[str, Any]:
    return {"history": "events", "at": "at", **({} if "pools" in keys else {"last": 5}), **keys}


def stored(folder: Path, events: pa.Table, layout: str, *sort_by: str) -> Path:
    return laid_out(events, folder / "e", *sort_by) if layout == "laid out" else write(events, folder / "e", files=3)


TYPES: list[tuple[pa.DataType, pa.DataType, pa.DataType, tuple[str, str]]] = [
    (pa.int64(), pa.int64(), pa.int64(), ("3", "- 3")),
    (pa.int32(), pa.int32(), pa.int64(), ("0", "")),
    (pa.string(), pa.timestamp("us"), pa.timestamp("us"), ("3m", "- INTERVAL 3 MINUTE")),
    (pa.date32(), pa.timestamp("ms", "UTC"), pa.timestamp("us", ZURICH), ("90s", "- INTERVAL 90 SECOND")),
    (pa.uint16(), pa.timestamp("ns"), pa.timestamp("s"), ("1ms", "- INTERVAL 1 MILLISECOND")),
    (pa.timestamp("us"), pa.date32(), pa.date32(), ("2d", "- 2")),
    (pa.large_string(), pa.timestamp("s"), pa.timestamp("ns"), ("0", "")),
]
LAYOUTS = ("laid out", "as it is")


def in_turn(number: int, layout: str) -> Any:
    """The marks of a case in a layout: per change the cases have the layouts in turn, the other one is nightly."""
    return () if layout == LAYOUTS[number % 2] else pytest.mark.nightly


@pytest.mark.parametrize(
    ("key", "row_time", "event_time", "lag", "layout"),
    [
        pytest.param(*types, layout, marks=in_turn(number, layout))
        for number, types in enumerate(TYPES)
        for layout in LAYOUTS
    ],
    ids=str,
)
def test_keys_and_times_of_any_type(
    tmp_path: Path, key: pa.DataType, row_time: pa.DataType, event_time: pa.DataType, lag: tuple[str, str], layout: str
):
    rows = with_types(row_table(150), key, {"at": row_time})
    events = with_types(event_table(600), key, {"ts": event_time})
    features = {"extra": {"items": of_events(column="item", lag=int(lag[0]) if lag[0].isdecimal() else lag[0])}}
    path = stored(tmp_path, events, layout, "ts", "no")
    pipeline = Pipeline.from_dict(
        document(write(rows, tmp_path / "r"), path, features, tmp_path / "w", history={"tie_break": "no"})
    )
    expected = seen_by(rows, events, "item", lag=lag[1], tie_break="no")
    assert lists_of(pipeline, "items") == {row: (items,) for row, (items, _) in expected.items()}
    assert sum(len(items) for items, _ in expected.values()) > 200


@pytest.mark.parametrize(
    ("seed", "layout"),
    [
        pytest.param(seed, layout, marks=in_turn(seed, layout) if seed < 2 else pytest.mark.nightly)
        for seed in range(3)
        for layout in LAYOUTS
    ],
)
def test_pools_tags_scans_and_events_known_later(tmp_path: Path, layout: str, seed: int):
    """Several reads of one history, some of whose tie breaks are null."""
    rng = np.random.default_rng(seed)
    rows, events = row_table(200, seed=seed), event_table(700, seed=10 + seed)
    ties = pa.array(rng.integers(0, 4, 700), mask=rng.random(700) < 0.2)
    events = events.set_column(events.column_names.index("no"), "no", ties)
    features = {
        "extra": {
            "seen": of_events(columns=["item", "kind"], tag="pool", scan=20, lag=2, pools=POOLS),
            "likes": of_events(column="item", where="kind == 'like' and ratio < 80"),
            "all": of_events(column="no", last=10_000),
        }
    }
    pipeline = Pipeline.from_dict(
        document(
            write(rows, tmp_path / "r"),
            stored(tmp_path, events, layout, "ts", "no"),
            features,
            tmp_path / "w",
            history={"tie_break": "no", "known_at": "known"},
        )
    )
    found = lists_of(pipeline, "seen.item", "seen.kind", "seen.pool", "likes", "all")
    common: dict[str, Any] = {"known": "known", "tie_break": "no"}
    items = seen_by(rows, events, "item", pools=SQL_POOLS, scan=20, lag="- 2", **common)
    kinds = seen_by(rows, events, "kind", pools=SQL_POOLS, scan=20, lag="- 2", **common)
    likes = seen_by(rows, events, "item", pools=[("kind = 'like' AND ratio < 80", 5)], **common)
    whole = seen_by(rows, events, "no", pools=[("true", 10_000)], **common)
    assert found == {
        row: (items[row][0], kinds[row][0], items[row][1], likes[row][0], whole[row][0])
        for row in rows["id"].to_pylist()
    }
    assert {bits for _, pools in items.values() for bits in pools} == set(range(1, 8))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A folder, rows, and events in the layout of histories."""
    folder = tmp_path_factory.mktemp("histories")
    rows = write(row_table(300), folder / "r", row_group_size=50)
    return folder, rows, laid_out(event_table(900), folder / "e", "ts", "no")


SPARSE: dict[str, Any] = {
    "sparse": {
        "items": of_events(column="item", lag=1, ops=[{"fill_null": 0}, {"hash_bucket": 100}]),
        "ratios": of_events(column="ratio", ops=["log1p"]),
        "pools": of_events(tag="pool", pools=POOLS),
    }
}
NAMES = (*SPARSE["sparse"],)


@pytest.fixture(scope="module")
def usual(tables: tuple[Path, Path, Path]) -> dict[int, Any]:
    """What each row sees."""
    return lists_of(pipeline_of(tables), *NAMES)


def pipeline_of(tables: tuple[Path, Path, Path], features: dict[str, Any] = SPARSE, **changes: Any) -> Pipeline:
    folder, rows, events = tables
    history = {"tie_break": "no", "known_at": "known"}
    return Pipeline.from_dict(document(rows, events, features, folder / "w", **{"history": history, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"shuffle": "off"},
        {"shuffle": {"seed": 9, "window_rows": 1000}},
        {"shuffle": {"rows": False}},
        {"lanes": 4, "batch": {"size": 8, "tail": "partial"}},
        {"source": {"split_rows": 1000}},
        {"source": {"where": "at > 20"}},
        {"source": {"decoder": "arrow"}},
        {"histories": {"memory": "1MB"}},
    ],
    ids=str,
)
def test_a_rows_lists_do_not_depend_on_how_it_is_fed(
    tables: tuple[Path, Path, Path], usual: dict[int, Any], changes: dict[str, Any]
):
    document_of = pipeline_of(tables).spec
    history = {"tie_break": "no", "known_at": "known", **changes.pop("histories", {})}
    source = {"table": str(tables[1]), "split_rows": 64, **changes.pop("source", {})}
    changed = pipeline_of(tables, source=source, history=history, **changes)
    assert document_of.features == changed.spec.features
    found = lists_of(changed, *NAMES)
    assert found == {row: lists for row, lists in usual.items() if row in found}
    assert len(found) == (
        300 if source.get("where") is None else sum(at is not None and at > 20 for at in times_of(tables))
    )


def lists_by_number(pipeline: Pipeline) -> dict[int, tuple[list[Any], ...]]:
    """Lists of a pipeline without extras, whose blocks are encoded in their final order, by the dense feature `id`."""
    found: dict[int, tuple[list[Any], ...]] = {}
    for batch in pipeline.batches():
        columns = [(batch.sparse[name].values.tolist(), batch.sparse[name].offsets.tolist()) for name in NAMES]
        for index, row in enumerate(batch["id"].tolist()):
            found[int(row)] = tuple(values[ends[index] : ends[index + 1]] for values, ends in columns)
    return found


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({}, 10**9),
        ({"shuffle": "off"}, 10**9),
        ({}, 400),
        pytest.param({"shuffle": "off"}, 400, marks=pytest.mark.nightly),
        pytest.param({}, 1, marks=pytest.mark.nightly),
        pytest.param({"shuffle": "off"}, 1, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_rows_that_see_many_events_are_joined_in_parts(
    tables: tuple[Path, Path, Path],
    usual: dict[int, Any],
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    most: int,
):
    """With one part, a shuffled block's rows are put in order before they get their lists."""
    joined: list[int] = []
    plain = ListColumns.joined

    def counted(self: ListColumns, frame: pl.DataFrame, found: Any) -> Any:
        joined.append(frame.height)
        return plain(self, frame, found)

    monkeypatch.setattr(join, "_MOST_ELEMENTS", most)
    monkeypatch.setattr(ListColumns, "joined", counted)
    folder, rows, events = tables
    features = {**SPARSE, "dense": {"price": [], "id": []}}
    history = {"tie_break": "no", "known_at": "known"}
    whole = document(rows, events, features, folder / "w", history=history, lanes=1, **changes)
    del whole["features"]["extra"]
    assert lists_by_number(Pipeline.from_dict(whole)) == usual
    assert sum(joined) == 300
    assert len(joined) == 1 if most == 10**9 else len(joined) > 10


@pytest.mark.parametrize("most", [10**9, 400])
@pytest.mark.parametrize("shuffle", ["off", {"seed": 5, "window_rows": 1024}], ids=["in order", "shuffled"])
def test_an_error_names_the_row_of_the_file(
    tables: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: Any, most: int
):
    monkeypatch.setattr(join, "_MOST_ELEMENTS", most)
    table = row_table(300)
    prices = np.full(300, 0.5, np.float32)
    prices[137] = np.nan
    rows = write(table.set_column(3, "price", pa.array(prices)), tmp_path / "r", row_group_size=50)
    features = {**SPARSE, "dense": {"price": {"column": "price", "on_nonfinite": "error"}}}
    history = {"tie_break": "no", "known_at": "known"}
    whole = document(rows, tables[2], features, tmp_path / "w", history=history, shuffle=shuffle)
    del whole["features"]["extra"]
    with pytest.raises(DataError, match=r"file .*part-0\.parquet, row group 2, row 137\)"):
        list(Pipeline.from_dict(whole).batches())


def times_of(tables: tuple[Path, Path, Path]) -> list[int | None]:
    return list(pq.read_table(tables[1])["at"].to_pylist())


def test_ranks_together_see_what_one_sees(tables: tuple[Path, Path, Path]):
    one = lists_of(pipeline_of(tables, lanes=4), *NAMES)
    ranks: dict[int, Any] = {}
    for rank in range(2):
        ranks |= lists_of(pipeline_of(tables, lanes=4), *NAMES, rank=rank, world_size=2)
    assert ranks == one
    whole, second = pipeline_of(tables, lanes=4), pipeline_of(tables, lanes=4)
    images = [image(batch) for batch in whole.batches(rank=1, world_size=2)]
    assert [image(batch) for batch in second.batches(rank=1, world_size=2, step=2)] == images[2:]


def test_fat_rows_give_the_same_bits(tables: tuple[Path, Path, Path], tmp_path: Path):
    """Lists that `materialize` wrote into the rows, through the same ops."""
    plain = {
        "extra": {"items": of_events(column="item", lag=1), "ratios": of_events(column="ratio")},
        "dense": {"price": []},
    }
    late = pipeline_of(tables, plain, shuffle="off")
    late.materialize(tmp_path / "fat", format="parquet")
    ops = {"items": [{"fill_null": 0}, {"hash_bucket": 100}], "ratios": ["log1p"]}
    fat = document(tmp_path / "fat", tables[2], {"sparse": ops}, tmp_path / "w", shuffle="off")
    del fat["histories"]
    own = {name: SPARSE["sparse"][name] for name in ops}
    expected = [image(batch) for batch in pipeline_of(tables, {"sparse": own}, shuffle="off").batches()]
    assert [image(batch) for batch in Pipeline.from_dict(fat).batches()] == expected


def changed_events(rng: np.random.Generator, events: pa.Table, cut: int) -> pa.Table:
    """The same events before a time, others from then on: deleted, moved, added, or not known in time."""
    frame = events.to_pandas(integer_object_nulls=True)
    late = frame["ts"].map(lambda time: time is None or time >= cut)
    kept = frame[~late | (rng.random(len(frame)) < 0.5)].copy()
    moved = kept["ts"].map(lambda time: time is not None and time >= cut)
    kept.loc[moved, "ts"] = kept.loc[moved, "ts"].map(lambda time: time + int(rng.integers(0, 50)))
    added = frame.sample(200, random_state=int(rng.integers(1 << 30)))
    unknown = added.assign(known=cut + 1000, no=added["no"] + 10**6)
    later = added.assign(ts=cut + added.index.to_numpy() % 30, no=added["no"] + 2 * 10**6)
    timeless = added.assign(ts=None, no=added["no"] + 3 * 10**6)
    parts = [
        pa.Table.from_pandas(each, events.schema, preserve_index=False) for each in (kept, unknown, later, timeless)
    ]
    return pa.concat_tables(parts)


@pytest.mark.parametrize(
    ("seed", "layout"),
    [pytest.param(seed, layout, marks=in_turn(seed, layout)) for seed in range(2) for layout in LAYOUTS],
)
def test_later_events_and_the_order_of_the_table_change_nothing(tmp_path: Path, layout: str, seed: int):
    """What a row sees follows from the events before its time, less the lag, that were known then."""
    rng, cut = np.random.default_rng(seed), 40
    rows = row_table(150, times=cut + 1, seed=seed)  # times until the cut
    events = event_table(800, seed=seed)
    shuffled = changed_events(rng, events, cut)
    shuffled = shuffled.take(pa.array(rng.permutation(shuffled.num_rows)))
    found = []
    for name, table in (("a", events), ("b", shuffled)):
        path = stored(tmp_path / name, table, layout, "ts", "no")
        history = {"tie_break": "no", "known_at": "known"}
        whole = document(write(rows, tmp_path / name / "r"), path, SPARSE, tmp_path / name / "w", history=history)
        found.append([image(batch) for batch in Pipeline.from_dict(whole).batches()])
    assert found[0] == found[1]


def test_a_time_may_be_shared_by_the_event_and_the_row(tmp_path: Path):
    """At the border an event is not seen: `time < at - lag`; one that becomes known at the row's time is."""
    rows = pa.table({"id": [0, 1, 2], "user": [1, 1, 1], "at": [5, 6, 7], "price": pa.array([0.0] * 3, pa.float32())})
    events = pa.table({"user": [1, 1], "ts": [5, 4], "known": [7, 6], "no": [0, 1], "item": [50, 40]})
    path = laid_out(events, tmp_path / "e", "ts", "no")
    features = {"extra": {"now": of_events(column="item"), "later": of_events(column="item", lag=1)}}
    whole = document(write(rows, tmp_path / "r", files=1), path, features, tmp_path / "w")
    assert lists_of(Pipeline.from_dict(whole), "now", "later") == {
        0: ([40], []),
        1: ([40, 50], [40]),
        2: ([40, 50], [40, 50]),
    }
    whole["histories"]["events"]["known_at"] = "known"
    assert lists_of(Pipeline.from_dict(whole), "now", "later") == {
        0: ([], []),
        1: ([40], [40]),
        2: ([40, 50], [40, 50]),
    }


def test_the_pictures_of_the_page(tmp_path: Path):
    """docs/histories.md: what a row sees, and a tag."""
    hours = ["11:20", "11:30", "11:45", "11:45", "11:48", "11:50", "11:58"]
    known = ["11:21", "11:31", "11:46", "11:46", "12:20", "11:51", "11:58"]

    def minutes(times: list[str]) -> pa.Array:
        numbers = [int(time[:2]) * 60 + int(time[3:]) for time in times]
        return pa.array([number * 60 for number in numbers], pa.int64()).cast(pa.timestamp("s"))

    events = pa.table({"user": [7] * 7, "ts": minutes(hours), "ingested_at": minutes(known), "event_no": range(1, 8)})
    row = pa.table({"id": [0], "user": [7], "at": minutes(["12:00"]), "price": pa.array([0.0], pa.float32())})
    features = {"extra": {"numbers": of_events(column="event_no", lag="10m", last=3)}}
    history = {"known_at": "ingested_at", "tie_break": "event_no"}
    path = laid_out(events, tmp_path / "e", "ts", "event_no")
    given = document(write(row, tmp_path / "r", files=1), path, features, tmp_path / "w", history=history)
    assert lists_of(Pipeline.from_dict(given), "numbers") == {0: ([2, 3, 4],)}

    kinds, ratios = ["listen", "like", "listen", "skip", "listen"], [80, None, 60, 10, 90]
    events = pa.table(
        {"user": [7] * 5, "ts": minutes(hours[:5]), "kind": kinds, "ratio": ratios, "event_no": range(1, 6)}
    )
    pools = {"listened": {"where": "kind == 'listen'", "last": 2}, "liked": {"where": "kind == 'like'", "last": 1}}
    features = {"extra": {"seen": of_events(columns=["event_no"], tag="pool", pools=pools)}}
    path = laid_out(events, tmp_path / "e2", "ts", "event_no")
    given = document(tmp_path / "r", path, features, tmp_path / "w2", history={"tie_break": "event_no"})
    assert lists_of(Pipeline.from_dict(given), "seen.event_no", "seen.pool") == {0: ([2, 3, 5], [2, 1, 1])}


SMALL = st.none() | st.integers(0, 9)
LOGS = st.lists(
    st.fixed_dictionaries(
        {"user": SMALL.map(lambda user: user and user % 3), "ts": SMALL, "known": SMALL, "no": SMALL, "item": SMALL}
    ),
    min_size=1,
    max_size=40,
)
EVENT_SCHEMA = pa.schema([(name, pa.int64()) for name in ("user", "ts", "known", "no", "item")])


@examples(30)
@given(
    LOGS,
    st.lists(st.tuples(SMALL, SMALL), min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from([None, "item > 4", "no < 5"]), st.integers(1, 4)), min_size=1, max_size=3),
    st.integers(0, 2),
    st.none() | st.integers(1, 8),
    st.booleans(),
)
def test_any_events_rows_and_pools(
    log: list[dict[str, Any]],
    own: list[tuple[int | None, int | None]],
    pools: list[tuple[str | None, int]],
    lag: int,
    scan: int | None,
    is_laid_out: bool,
):
    rows = pa.table(
        {
            "id": range(len(own)),
            "user": pa.array([user and user % 4 for user, _ in own], pa.int64()),
            "at": pa.array([at for _, at in own], pa.int64()),
            "price": pa.array([0.0] * len(own), pa.float32()),
        }
    )
    events = pa.Table.from_pylist(log, EVENT_SCHEMA)
    named = {
        f"p{pool}": {"last": last} | ({} if where is None else {"where": where})
        for pool, (where, last) in enumerate(pools)
    }
    feature = of_events(columns=["item"], tag="pool", pools=named, lag=lag, **({} if scan is None else {"scan": scan}))
    history = {"tie_break": "no", "known_at": "known"}
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = stored(folder, events, "laid out" if is_laid_out else "as it is", "ts", "no")
        given = document(write(rows, folder / "r"), path, {"extra": {"seen": feature}}, folder / "w", history=history)
        found = lists_of(Pipeline.from_dict(given), "seen.item", "seen.pool")
    conditions = [(where or "true", last) for where, last in pools]
    common: dict[str, Any] = {"known": "known", "tie_break": "no", "scan": scan, "lag": f"- {lag}", "pools": conditions}
    assert found == seen_by(rows, events, "item", **common)
