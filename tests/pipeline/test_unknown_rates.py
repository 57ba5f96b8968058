"""Each lookup of a chain is counted by itself, whatever follows, shares or computes it; checked against numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from combinations import combinations

from feedline import Pipeline
from feedline.errors import DataError

ROWS = 2_000
KNOWN = 40  # of 100 keys, which occur alike: 60 % of them have no match
JOIN = {"join_external": {"table": "items.parquet", "on": "key", "take": "shop"}}
VOCABULARY = {"vocabulary": {"max_size": 30, "oov_buckets": 0}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lookups")
    rng = np.random.default_rng(3)
    pq.write_table(pa.table({"key": range(KNOWN), "shop": [key % 7 for key in range(KNOWN)]}), folder / "items.parquet")
    runs = np.repeat(rng.integers(0, 100, ROWS // 4), 4)
    table = pa.table(
        {
            "id": runs,
            "ids": [[int(value), int(value + 50) % 100] for value in runs],
            "session": np.arange(ROWS) // 8,
            "request": np.arange(ROWS),
            "clicked": rng.integers(0, 2, ROWS),
        }
    )
    (folder / "table").mkdir()
    pq.write_table(table, folder / "table" / "a.parquet", row_group_size=500)
    return folder


def pipeline_of(folder: Path, features: dict[str, Any], *, dedup: bool = False, **settings: Any) -> Pipeline:
    document = {
        "version": 1,
        "name": "lookups",
        "source": {"table": "table"},
        "features": features,
        "batch": {"size": 250},
        "shuffle": {"by": "session"},
        "fit": {"auto": True},
        **({"dedup": {"user": {"columns": ["id", "ids"]}}} if dedup else {}),
        **settings,
    }
    path = folder / f"{abs(hash(json.dumps(document, sort_keys=True)))}.yaml"
    path.write_text(json.dumps(document))
    return Pipeline.from_yaml(path)


def missed(folder: Path) -> dict[str, float]:
    """Shares of unknown values, by column: those that no row of the joined table has."""
    table = pq.read_table(folder / "table" / "a.parquet")
    ids, flat = table["id"].to_numpy(), np.concatenate(table["ids"].to_pylist())
    return {"id": float(np.mean(ids >= KNOWN)), "ids": float(np.mean(flat >= KNOWN))}


AFTER: list[list[Any]] = [
    [],
    [{"hash_bucket": 10}],
    [{"hash_bucket": 1000}, {"modulo": 7}],
    [{"fill_null": 0}],
    [{"fill_null": 0}, {"hash_bucket": 10}],
    [{"fill_null": 3}, {"vocabulary": {"min_count": 1}}],
    [{"modulo": 3}, {"fill_null": 1}],
]


@pytest.mark.parametrize(
    ("after", "place_of_feature", "dedup"), combinations(AFTER, ["alone", "beside others"], [False, True])
)
def test_misses_of_a_join_are_those_of_its_keys(place: Path, after: list[Any], place_of_feature: str, dedup: bool):
    """Before any ops, beside features that share its prefix or not, deduplicated or not."""
    ops = [JOIN, *after] if after else [JOIN, {"fill_null": 0}]
    features: dict[str, Any] = {
        "categorical": {"one": {"column": "id", "ops": ops}},
        "sparse": {"many": {"column": "ids", "ops": ops if {"fill_null": 0} in ops else [*ops, {"fill_null": 0}]}},
    }
    if {"fill_null": 0} not in ops and "vocabulary" not in str(ops):
        features["categorical"]["one"] = {"column": "id", "ops": [*ops, {"fill_null": 0}]}
    if place_of_feature == "beside others":
        features["categorical"] |= {
            "again": {"column": "id", "ops": [JOIN, {"fill_null": 0}]},
            "third": {"column": "id", "ops": [JOIN, {"fill_null": 0}, {"modulo": 5}]},
        }
        features["dense"] = {"plain": {"column": "id", "ops": [JOIN, {"fill_null": 0}]}}
    pipeline = pipeline_of(place, features, dedup=dedup)
    for _ in pipeline.batches():
        pass
    expected = missed(place)
    found = pipeline.quality()
    for name, facts in found.items():
        assert facts["oov_rate"] == expected["ids" if name == "many" else "id"], name
        assert facts["oov"] == round(facts["oov_rate"] * ROWS * (2 if name == "many" else 1))


def test_each_lookup_of_a_chain_is_judged_by_itself(place: Path):
    """The vocabulary after the join knows all that it is asked for: that must not halve the rate of the join."""
    ops = [{**JOIN, "join_external": {**JOIN["join_external"], "missing": 0}}, {"vocabulary": {"min_count": 1}}]
    pipeline = pipeline_of(place, {"categorical": {"shop": {"column": "id", "ops": ops}}})
    list(pipeline.batches())
    assert pipeline.quality()["shop"]["oov_rate"] == missed(place)["id"]
    features = {"categorical": {"shop": {"column": "id", "ops": ops, "expect": {"oov_rate": "<= 0.5"}}}}
    guarded = pipeline_of(place, features, on_expect="error")
    with pytest.raises(DataError, match="oov_rate"):
        list(guarded.batches())


@pytest.mark.parametrize("out_of_fold", [False, True])
def test_unknown_keys_of_an_out_of_fold_encoding_are_counted(place: Path, out_of_fold: bool):
    """Fitted on the rows of some keys: the others are unknown, in rows that the fit has seen and in all others."""
    encoding = {"target_encoding": {"target": "clicked", "folds": 5, "fold_by": "request"}}
    fit = {"auto": True, "where": f"id < {KNOWN}", "out_of_fold": out_of_fold}
    features = {"dense": {"rate": {"column": "id", "ops": [encoding]}}, "label": {"clicked": []}}
    pipeline = pipeline_of(place, features, fit=fit)
    list(pipeline.batches())
    assert pipeline.quality()["rate"]["oov_rate"] == missed(place)["id"]
