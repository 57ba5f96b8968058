"""`source.explode` gives the rows of the impression table that DuckDB makes of a request table, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from event_tables import event_table, laid_out
from hypothesis import given
from hypothesis import strategies as st
from optimized import rewrite
from pipelines import image
from request_tables import impression_table, write_requests, write_unnested

from feedline import Pipeline, Table
from feedline.blocks.request import pack_pieces, unpack_pieces
from feedline.errors import CorruptFileError, DataError, FeedlineError, SpecError, StateError
from feedline.loader.state import state_of
from feedline.planning.kept_rows import read_kept_rows
from feedline.warehouse.columns.change import add_columns
from feedline.warehouse.columns.values import ExpressionValues
from feedline.warehouse.delete.delete import DeleteRequest, delete_rows
from feedline.warehouse.selection.pruning_report import COUNTED, STATISTICS, WHOLE
from feedline.warehouse.snapshot.snapshot import Snapshot

Documents = tuple[dict[str, Any], dict[str, Any]]  # of the same rows: exploded, and stored as rows

LISTS = ("item", "clicked", "price", "word", "tags")
SCHEMA = pa.schema(
    {
        "request": pa.int64(),
        "age": pa.float32(),
        "country": pa.string(),
        "history": pa.list_(pa.int64()),
        "item": pa.list_(pa.int64()),
        "clicked": pa.list_(pa.int8()),
        "price": pa.list_(pa.float32()),
        "word": pa.list_(pa.string()),
        "tags": pa.list_(pa.list_(pa.int64())),
    }
)
FEATURES: dict[str, Any] = {
    "dense": {"age": [{"fill_null": -1}], "price": [{"fill_null": 0}], "both": {"expr": "coalesce(age, 0) + item"}},
    "categorical": {"item": [{"modulo": 7}], "word": [{"fill_null": "?"}, {"hash_bucket": 50}]},
    "sparse": {"history": [{"first_x": 3}], "tags": []},
    "label": {"clicked": []},
    "extra": ["request", "country"],
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"shuffle": "off"},
    {"source.where": "item % 3 == 1"},
    {"source.where": "age > 20 and price is not None", "shuffle": {"by": "request", "seed": 3}},
    {"source.where": 'country == "b" and ds >= 1'},
    {"source.sample": {"fraction": 0.5, "seed": 4}},
    {"source.sample": {"fraction": 0.5, "key": "item"}, "source.where": "request > 3"},
    {"shuffle": {"by": "request"}, "dedup": {"user": {"columns": ["age", "history", "country"]}}},
    {"shuffle": "off", "dedup": {"user": {"columns": ["history"]}, "own": {"columns": ["item", "tags"]}}},
    {
        "features.extra": [],
        "features.dense": {},
        "features.categorical": {},
        "features.label": {"age": [{"fill_null": 0}]},
    },
]


def request_row(number: int, draw: np.random.Generator, length: int) -> dict[str, Any]:
    null = length == 0 and number % 2 == 0
    words = [None if word == 0 else f"w{word}" for word in draw.integers(0, 5, length).tolist()]
    lists = {
        "item": draw.integers(0, 100, length).tolist(),
        "clicked": draw.integers(0, 2, length).tolist(),
        "price": [None if p < 0.2 else p for p in draw.random(length).tolist()],
        "word": words,
        "tags": [None if n == 3 else list(range(n)) for n in draw.integers(0, 4, length).tolist()],
    }
    return {
        "request": number,
        "age": None if number % 6 == 1 else float(number % 40),
        "country": ["a", "b", None][number // 3 % 3],
        "history": None if number % 7 == 3 else list(range(number // 2 % 5)),
        **(dict.fromkeys(LISTS) if null else lists),
    }


def requests_of(lengths: list[int], files: int, seed: int = 0) -> list[list[dict[str, Any]]]:
    draw = np.random.default_rng(seed)
    rows = [request_row(number, draw, length) for number, length in enumerate(lengths)]
    return [part.tolist() for part in np.array_split(np.array(rows, object), files)]


def both(folder: Path, requests: Path, **document: Any) -> Documents:
    """A pipeline that explodes a request table, and one over the impressions that DuckDB makes of it."""
    rows = write_unnested(requests, folder / "rows", LISTS)
    common = {"version": 1, "name": "t", "features": FEATURES, **document}
    common.setdefault("batch", {"size": 16, "tail": "partial"})
    source = {"split_rows": 40}
    exploded = {"table": str(requests), "explode": list(LISTS), **source}
    return (
        {**common, "work_dir": str(folder / "work1"), "source": exploded},
        {**common, "work_dir": str(folder / "work2"), "source": {"table": str(rows), **source}},
    )


def images(pipeline: Pipeline, world_size: int = 1, step: int = 0, **options: Any) -> list[list[bytes]]:
    return [
        [image(batch) for batch in pipeline.batches(1, rank, world_size, step=step, **options)]
        for rank in range(world_size)
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Documents:
    folder = tmp_path_factory.mktemp("exploded")
    lengths = np.random.default_rng(1).integers(0, 9, 200).tolist()
    requests = write_requests(folder / "requests", requests_of(lengths, 3), SCHEMA, row_group_size=17)
    return both(folder, requests)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, marks=pytest.mark.nightly if number in (1, 4, 6) else (), id=json.dumps(options))
        for number, options in enumerate(OPTIONS)
    ],
)
def test_batches_are_those_of_the_impressions(place: Documents, options: dict[str, Any]):
    exploded, rows = (Pipeline.from_dict(each, set={"lanes": 2, **options}) for each in place)
    one, other = exploded.complete_plan(), rows.complete_plan()
    assert (one.facts().steps, one.facts().rows) == (other.facts().steps, other.facts().rows)
    assert one.fingerprint != other.fingerprint
    expected = images(rows, 2, plan=other)
    assert images(exploded, 2, plan=one) == expected
    assert sum(map(len, expected)) > 4
    assert images(exploded, 2, step=2) == [each[2:] for each in expected]


@examples(30)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=4, max_size=30).filter(lambda each: sum(each) > 4),
    files=st.integers(1, 3),
    size=st.integers(1, 12),
    options=st.sampled_from(OPTIONS),
    lanes=st.sampled_from([1, 2]),
    step=st.integers(0, 2),
)
def test_random_request_tables(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    files: int,
    size: int,
    options: dict[str, Any],
    lanes: int,
    step: int,
):
    folder = tmp_path_factory.mktemp("random")
    requests = write_requests(folder / "requests", requests_of(lengths, files, size), SCHEMA, row_group_size=size)
    documents = both(folder, requests, batch={"size": 3, "tail": "partial"}, lanes=lanes)
    found: list[Any] = []
    for document in documents:
        try:
            pipeline = Pipeline.from_dict(document, set=options)
            plan = pipeline.complete_plan()
            found.append(images(pipeline, lanes, min(step, plan.facts().steps - 1), plan=plan))
        except FeedlineError as error:  # no row is selected, or none makes a step: of both tables
            found.append(type(error))
    assert found[0] == found[1]


def test_row_groups_count_elements_and_statistics_of_requests_prune(place: Documents):
    exploded, rows = (Pipeline.from_dict(each) for each in place)
    one, other = exploded.snapshot(), rows.snapshot()
    assert one.schema.field("item").type == pa.int64()
    counts = one.rows_per_row_group
    assert counts[counts > 0].tolist() == other.rows_per_row_group.tolist()
    assert Snapshot.load(exploded.spec.work_dir, one.id).exploded == one.exploded
    stored = counts > 0
    for where, fate in (("request < 0", STATISTICS), ("item < 0", COUNTED), ("request >= 0", WHOLE)):
        selection = Pipeline.from_dict(place[0], set={"source.where": f"{where} or request == 199"}).plan().sources[0]
        fates = selection.selection.verdicts.fate
        assert (fates[stored][:-1] == fate).all(), where


def test_what_plan_step_shows_is_read_another_way(place: Documents):
    settings = {"source.where": "item % 2 == 0"}
    exploded, rows = (Pipeline.from_dict(each, set=settings).plan().sources[0] for each in place)
    names = ["request", "item", "word", "history", "ds"]
    of_rows = [read_kept_rows(rows, int(group), names) for group in np.flatnonzero(rows.selection.rows)]
    of_lists = [read_kept_rows(exploded, int(group), names) for group in np.flatnonzero(exploded.selection.rows)]
    assert len(of_rows) > 5
    for one, other in zip(of_lists, of_rows, strict=True):
        assert one.rows.tolist() == other.rows.tolist()
        assert one.frame.equals(other.frame)


def test_fragments_keep_their_rows_when_packed(place: Documents):
    plan = Pipeline.from_dict(place[0], set={"source.sample": {"fraction": 0.5}}).plan().sources[0]
    fragment = plan.selection.fragment(plan.snapshot, np.arange(4))
    assert fragment.spans
    assert fragment.exploded is not None
    assert unpack_pieces(pack_pieces([(fragment, 1, 2)])) == [(fragment, 1, 2)]
    assert fragment.alone(2).spans == (fragment.spans[2],)


def test_a_state_continues_and_other_rows_are_refused(place: Documents):
    pipeline = Pipeline.from_dict(place[0], set={"lanes": 2})
    plan = pipeline.complete_plan()
    state = state_of(plan.facts(), 1, 3)
    again = Pipeline.from_dict(place[0], set={"lanes": 2})
    rest = [image(batch) for batch in again.batches(1, step=3, plan=again.plan_for(state))]
    assert rest == images(pipeline)[0][3:]
    for explode in (list(LISTS[:4]), None):
        with pytest.raises(StateError, match="its rows are the elements of item, clicked, price, word, tags"):
            Pipeline.from_dict(place[0], set={"lanes": 2, "source.explode": explode}).plan_for(state)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": "off", "dedup": {"user": {"columns": ["customer", "moment", "age"]}}}],
    ids=["rows", "groups"],
)
def test_impressions_see_the_events_of_their_request(tmp_path: Path, options: dict[str, Any]):
    draw = np.random.default_rng(0)
    lengths = draw.integers(0, 6, 120)
    requests = pa.table(
        {
            "request": np.arange(120),
            "customer": draw.integers(0, 12, 120),
            "moment": draw.integers(0, 60, 120),
            "age": draw.random(120).astype(np.float32),
            "item": pa.array([draw.integers(0, 100, length).tolist() for length in lengths], pa.list_(pa.int64())),
        }
    )
    (tmp_path / "requests").mkdir()
    pq.write_table(requests, tmp_path / "requests" / "0.parquet", row_group_size=17)
    rows = write_unnested(tmp_path / "requests", tmp_path / "rows", ("item",))
    events = laid_out(event_table(700), tmp_path / "events", "ts", "no")
    seen = {"history": "events", "column": "item", "at": "moment", "last": 5, "ops": [{"fill_null": 0}]}
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "histories": {
            "events": {"table": str(events), "key": "user", "on": "customer", "time": "ts", "tie_break": "no"}
        },
        "features": {"dense": {"age": []}, "categorical": {"item": []}, "sparse": {"seen": seen}},
        "batch": {"size": 16, "tail": "partial"},
        **options,
    }
    exploded = {"table": str(tmp_path / "requests"), "explode": ["item"], "split_rows": 40}
    found = images(Pipeline.from_dict({**document, "source": exploded}))
    assert found == images(Pipeline.from_dict({**document, "source": {"table": str(rows), "split_rows": 40}}))
    assert len(found[0]) > 10


def test_a_fit_of_impressions_is_none_of_requests(place: Documents, tmp_path: Path):
    """Which counts a request once, whatever its lists hold."""
    document = {
        **place[0],
        "artifacts": str(tmp_path),
        "features": {"dense": {"age": [{"fill_null": 0}, "standardize"]}},
    }
    Pipeline.from_dict(document).fit()
    assert images(Pipeline.from_dict(document))
    sampled = "the elements of item, clicked, price, word, tags, a sample of fraction 0.5"
    for changes, expected in (
        ({"source.explode": None}, "no sample"),
        ({"source.explode": ["item"]}, "the elements of item"),
        ({"source.sample": {"fraction": 0.5, "seed": 0}}, sampled),
    ):
        with pytest.raises(FeedlineError, match=f"got the elements of item, .*, tags, expected {expected}"):
            images(Pipeline.from_dict(document, set=changes))


def test_a_cache_keeps_impressions_apart_from_requests(place: Documents, tmp_path: Path):
    cache = {"cache": {"dir": str(tmp_path / "cache"), "mode": "features"}}
    document = {**place[0], "features": {**FEATURES, "sparse": {}, "extra": []}}
    expected = images(Pipeline.from_dict(document))
    for _ in range(2):
        assert images(Pipeline.from_dict(document, set=cache)) == expected
    features = {"dense": {"age": [{"fill_null": -1}]}}
    whole = {**place[0], "features": features, "source": {"table": place[0]["source"]["table"]}}
    requests = Pipeline.from_dict(whole, set=cache)
    assert requests.plan().facts().rows == 200
    assert images(requests) == images(Pipeline.from_dict(whole))


def test_a_list_that_a_file_lacks_is_null(tmp_path: Path):
    full = pa.table({"r": [0, 1], "item": [[1, 2], [3]], "score": [[0.5, 1.5], [2.5]]})
    write_requests(tmp_path / "t", [full.to_pylist()], full.schema, row_group_size=9)
    older = full.drop_columns("score")  # of a narrower type, too
    older = older.set_column(1, "item", older["item"].cast(pa.list_(pa.int32())))
    folder = tmp_path / "t" / "ds=1"
    folder.mkdir()
    pq.write_table(older, folder / "0.parquet")
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "t"), "explode": ["item", "score"]},
        "features": {"dense": {"score": [{"fill_null": -1}], "item": []}},
        "batch": {"size": 6},
        "shuffle": "off",
    }
    [batch] = Pipeline.from_dict(document).batches()
    assert batch["score"].tolist() == [0.5, 1.5, 2.5, -1, -1, -1]
    assert batch["item"].tolist() == [1, 2, 3, 1, 2, 3]


def test_groups_that_a_request_table_stores_once_stay_groups(place: Documents, tmp_path: Path):
    """A request's columns that repeat from request to request, in the files, and then from row to row."""
    dedup = {"user": {"columns": ["age", "history", "country"]}}
    table = place[0]["source"]["table"]
    groups = (("a", ("age", "country")), ("b", ("history",)))
    rewrite(Path(table), tmp_path / "stored", dedup=groups, row_group_rows=17)
    stored = {
        **place[0],
        "work_dir": str(tmp_path / "work"),
        "source": {**place[0]["source"], "table": str(tmp_path / "stored")},
    }
    for options in ({}, {"shuffle": "off", "dedup": dedup}, {"source.where": "item % 3 == 1 and age > 3"}):
        expected = images(Pipeline.from_dict(place[0], set=options))
        assert images(Pipeline.from_dict(stored, set=options)) == expected
        assert len(expected[0]) > 4


def test_a_file_whose_lists_are_damaged_is_skipped(tmp_path: Path):
    table = write_requests(tmp_path / "t", requests_of([3] * 40, 4), SCHEMA, row_group_size=5)
    damaged = table / "ds=2" / "0.parquet"
    pq.write_table(pq.read_table(damaged, partitioning=None), damaged, row_group_size=5, write_page_checksum=True)
    chunk = pq.read_metadata(damaged).row_group(1).column(4)
    content = bytearray(damaged.read_bytes())
    end = chunk.data_page_offset + chunk.total_compressed_size
    content[end - 3 : end] = bytes(255 - byte for byte in content[end - 3 : end])
    damaged.write_bytes(content)
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(table), "explode": list(LISTS)},
        "features": {"dense": {"item": []}, "extra": ["request"]},
        "batch": {"size": 8, "tail": "partial"},
    }
    with pytest.raises(CorruptFileError, match="ds=2"):
        Pipeline.from_dict(document).plan()
    pipeline = Pipeline.from_dict(document, set={"source.on_bad_file": "skip"})
    plan = pipeline.complete_plan()
    assert [Path(each.path).parent.name for each in plan.facts().bad_files] == ["ds=2"]
    with pytest.warns(UserWarning, match="1 bad file left out"):
        batches = list(pipeline.batches(plan=plan))
    found = {int(row) for batch in batches for row in batch.extra["request"][batch.valid]}
    assert found == {*range(20), *range(30, 40)}


@pytest.mark.parametrize("noted", [False, True])
def test_lists_of_unequal_lengths_are_refused_with_their_place(tmp_path: Path, noted: bool):
    table = pa.table({"r": [0, 1, 2], "item": [[1], [1, 2], [3]], "clicked": [[1], [1, 0], [1, 1]]})
    if noted:
        notes = {"feedline.requests": json.dumps({"version": 1, "by": ["r"], "candidates": ["item", "clicked"]})}
        table = table.replace_schema_metadata({**notes, "feedline.requests.rows": "[[2, 3], [1, 1]]"})
    (tmp_path / "t").mkdir()
    pq.write_table(table, tmp_path / "t" / "0.parquet", row_group_size=2)
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "t"), "explode": ["item", "clicked"]},
        "features": {"dense": {"item": []}, "label": {"clicked": []}},
        "batch": {"size": 2},
    }
    with pytest.raises(DataError, match=r"got 1 in 'item' and 2 in 'clicked' \(.*0\.parquet.*row group 1, row 0\)"):
        list(Pipeline.from_dict(document).batches())


@pytest.mark.parametrize(
    ("explode", "message"),
    [
        (["items"], "Did you mean 'item'?"),
        (["age"], "column 'age' has type float, expected a list"),
        (["ds"], "is a partition key"),
        (["item", "item"], "names a column twice"),
    ],
)
def test_columns_that_cannot_be_exploded(place: Documents, explode: list[str], message: str):
    with pytest.raises(SpecError, match=message.replace("?", r"\?")) as caught:
        Pipeline.from_dict(place[0], set={"source.explode": explode}).plan()
    assert "explode" in str(caught.value)


def test_footers_of_optimize_save_the_counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = impression_table(tmp_path / "in")
    rewrite(source, tmp_path / "requests", rows="request", by=("request_id",), sort_by=("position",))

    def never(*_: Any) -> None:
        raise AssertionError("a list was read")

    monkeypatch.setattr("feedline.warehouse.selection.impressions.batches", never)
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "requests"), "explode": ["item_id", "clicked", "tags"]},
        "features": {"categorical": {"item_id": []}, "label": {"clicked": []}},
        "batch": {"size": 8, "tail": "partial"},
    }
    pipeline = Pipeline.from_dict(document)
    expected = sum(pq.read_metadata(path).num_rows for path in source.rglob("*.parquet"))
    assert sum(int(batch.valid.sum()) for batch in pipeline.batches()) == expected


@pytest.mark.parametrize("how", ["deleted", "written by pyarrow"])
def test_counts_in_footers_are_not_those_of_rows_that_went(tmp_path: Path, how: str):
    """Requests are deleted, with and without the note of counts in the file's metadata; a column is added."""
    source, target = impression_table(tmp_path / "in"), tmp_path / "requests"
    rewrite(source, target, rows="request", by=("request_id",), sort_by=("position",), row_group_rows=100)
    if how == "deleted":
        assert delete_rows(str(target), DeleteRequest(where="request_id % 5 == 2")).rows > 20
        add_columns(str(target), ExpressionValues(expression="age + 1", name="older"))
    else:
        for path in target.rglob("*.parquet"):
            file = pq.ParquetFile(path)
            groups = [file.read_row_group(index) for index in range(file.num_row_groups)]
            with pq.ParquetWriter(path, groups[0].schema) as writer:
                for group in groups:
                    kept = group.filter(pc.not_equal(pc.bit_wise_and(group["request_id"], 3), 2))
                    writer.write_table(kept)
                writer.add_key_value_metadata(file.metadata.metadata)
    table = Table(str(target)).read(["request_id", "age", "item_id"])
    expected = sorted(
        (request, -1.0 if age is None else age, item)
        for request, age, items in zip(*(table[name].to_pylist() for name in table.schema.names), strict=True)
        for item in items
    )
    older = {"older": [{"fill_null": 0}]} if how == "deleted" else {}
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(target), "explode": ["item_id"]},
        "features": {
            "dense": {"age": [{"fill_null": -1}], **older},
            "categorical": {"request_id": [], "item_id": []},
        },
        "batch": {"size": 8, "tail": "partial"},
    }
    found = []
    for batch in Pipeline.from_dict(document).batches():
        valid = int(batch.valid.sum())
        found += zip(*(batch[name].tolist()[:valid] for name in ("request_id", "age", "item_id")), strict=True)
        if older:
            ages, more = batch["age"].tolist()[:valid], batch["older"].tolist()[:valid]
            assert more == [0 if age == -1 else age + 1 for age in ages]
    assert sorted(found) == expected


def test_a_followed_table_counts_only_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def land(day: int) -> None:
        write_requests(tmp_path / "t" / f"part={day}", [requests_of([3, 2, 4], 1, day)[0]], SCHEMA, row_group_size=2)
        (tmp_path / "t" / f"part={day}" / "ds=0" / "_SUCCESS").touch()

    land(0)
    document = {
        "version": 1,
        "name": "t",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "t"), "explode": list(LISTS), "follow": {"landed": "_SUCCESS"}},
        "features": FEATURES,
        "batch": {"size": 3},
    }
    pipeline = Pipeline.from_dict(document)
    plan = pipeline.complete_plan()
    assert plan.facts().rows == 9
    land(1)
    counted: list[str] = []
    from feedline.warehouse.selection import impressions

    counts_of = impressions._counts_of
    monkeypatch.setattr(
        impressions, "_counts_of", lambda fragment, lists: counted.append(fragment.path) or counts_of(fragment, lists)
    )
    later = pipeline.next_plan(plan)
    assert later is not None
    assert later.facts().rows == 18
    assert {path.split("/")[0] for path in counted} == {"part=1"}
