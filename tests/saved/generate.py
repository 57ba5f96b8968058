"""Write the files that `test_saved` loads: small tables, and what runs and fits on them saved, edition by edition.

Each edition was written once, by the package of one commit and this generator as it was then. A later version must load
it as it is:

    PYTHONPATH=tests python -m saved.generate EDITION

- `0.1.0` (this directory): commit d4b59f9, before the release of 0.1.0.
- `2026-11-22`: commit d8d5505. States name their environment, artifact sets belong to pipelines, fits know which rows
  they have seen, usage is recorded, blocks record row identities with and without `source.row_key`.
- `plan-2`: commit ab67ca3. Plans of version 2: a lane draws its rows from several blocks in turn.
- `plan-3`: commit 23acb0d. Plans of version 3: a default window, and one that bytes chose of a wide table's rows. Which
  limits did is no matter: a state's window is found by its fingerprint.

All with Polars 2.1.0, pyarrow 26.0.1, numpy 2.4.6. Editions are not written again to please a change: a state or fit
that a change makes the package refuse is what the tests are for. Where a change has to refuse some of them, take those
out and say so in the changelog. What changes in the format later becomes another edition.

Snapshots, fits and golden vectors record where the table lies and snapshots digest its files' times, so an edition has
a fixed directory below /tmp, and files of the table get their times from `set_times`. No op of the pipelines computes
anything that processors round differently, so checksums hold everywhere.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from saved.facts import (
    first_batches,
    op_fingerprints,
    plan_json,
    rebase_facts,
    remaining_requests,
    schema_digests,
    served_facts,
    short_digest,
    stream_digest,
)

from feedline import FeedlineDataset, Pipeline
from feedline.loader.state import state_of
from feedline.loader.wire.codec import to_values
from feedline.planning.mixing import MixingWindow
from feedline.serving.golden_check import check
from feedline.spec import load_spec
from feedline.warehouse.optimize.usage import load_uses

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Edition:
    """`files`: where the files and `expected.json` are kept. `place`: where they were written, and are loaded."""

    files: Path
    place: Path


FIRST = Edition(files=HERE, place=Path("/tmp/feedline-saved-0.1.0"))
SECOND = Edition(files=HERE / "2026-11-22", place=Path("/tmp/feedline-saved-2026-11-22"))
THIRD = Edition(files=HERE / "plan-2", place=Path("/tmp/feedline-saved-plan-2"))
FOURTH = Edition(files=HERE / "plan-3", place=Path("/tmp/feedline-saved-plan-3"))
LATER = "ds=2026-01-03"  # the day that came after the states of the first edition's first two
BEFORE, STEP = 3, 5  # steps that were delivered before the first edition's rebase, and before all other states
DAYS = (("2026-01-01", 2), ("2026-01-02", 2), ("2026-01-03", 1))  # and their files
_TIME_NS = 1_767_000_000_000_000_000
_ROWS, _GROUP_ROWS = 120, 40

PLAIN: dict[str, Any] = {
    "version": 1,
    "name": "plain",
    "work_dir": "plain",
    "source": {
        "table": "table",
        "where": 'price >= 5.0 and word != "w3"',
        "sample": {"fraction": 0.5, "where": "clicked == 0", "key": "user", "seed": 7},
        "split_rows": 80,
    },
    "features": {
        "dense": {
            "price": [{"clip": {"min": 6, "max": 90}}],
            "count": [{"fill_null": -1}],
            "weight": {"column": "sample_weight"},
        },
        "categorical": {"user": [{"modulo": 1000}], "word": [{"hash_bucket": 50}, {"fill_null": 0}]},
        "sparse": {"history": [{"first_x": 3}], "words": [{"hash_bucket": 20}]},
        "label": {"clicked": []},
        "extra": ["request", "ts", "ds"],
    },
    "batch": {"size": 16, "tail": "partial"},
    "shuffle": {"seed": 11, "window_rows": 96},
    "cluster": {"threads": 1},
}
FITTED: dict[str, Any] = {
    "version": 1,
    "name": "fitted",
    "work_dir": "fitted",
    "source": {"table": "table", "split_rows": 80},
    "features": {
        "dense": {
            "price": [{"fill_null": 0}, "standardize"],
            "encoded": {
                "op": {"target_encoding": {"target": "clicked", "folds": 3, "fold_by": "request", "smoothing": 4}},
                "inputs": ["item"],
            },
            "cost": {
                "column": "item",
                "ops": [{"join_external": {"table": "items.parquet", "on": "item", "take": "cost", "missing": 0}}],
            },
        },
        "categorical": {
            "item": [{"vocabulary": {"min_count": 2, "oov_buckets": 3, "name": "items"}}],
            "word": [{"vocabulary": {"max_size": 5}}],
            "bucket": {"column": "price", "ops": [{"quantile_bucketize": 4}, {"fill_null": 4}]},
        },
        "sparse": {"history": [{"first_x": 4}, {"vocabulary": {"name": "items", "min_count": 2, "oov_buckets": 3}}]},
        "label": {"clicked": []},
        "extra": ["request"],
    },
    "batch": {"size": 32, "tail": "pad"},
    "shuffle": {"seed": 5, "by": "user"},
    "lanes": 2,
    "cluster": {"threads": 1},
}

# The second edition. Without a row key, identities are made of columns that are read; the filter and sample take part.
KEYLESS: dict[str, Any] = PLAIN | {
    "name": "keyless",
    "work_dir": "keyless",
    "shuffle": {"seed": 11, "window_rows": 96, "by": "user"},
    "lanes": 2,
    "memory": "64MiB",
}
KEYED: dict[str, Any] = KEYLESS | {
    "name": "keyed",
    "work_dir": "keyed",
    "source": {"table": "table", "split_rows": 80, "row_key": "request"},
    "features": PLAIN["features"] | {"dense": {"price": [{"fill_null": 0}], "count": [{"fill_null": -1}]}},
    "shuffle": {"seed": 3, "window_rows": 64},
}
LEARNED: dict[str, Any] = FITTED | {
    "features": FITTED["features"]
    | {
        "dense": FITTED["features"]["dense"]
        | {
            "scaled": {"column": "price", "ops": ["fill_median", "min_max"]},
            "mean": {"column": "count", "ops": ["fill_mean"]},
            "per_word": {
                "op": {"group_statistics": {"of": "price", "stats": ["count", "mean", "max"]}},
                "inputs": ["word"],
                "ops": [{"fill_null": 0}],
            },
        }
    },
    "fit": {"where": "price < 80"},
    "memory": "64MiB",
}
SHARED: dict[str, Any] = {
    "version": 1,
    "name": "shared",
    "work_dir": "shared",
    "source": {"table": "elsewhere"},
    "features": {"categorical": {"item": FITTED["features"]["categorical"]["item"]}},
    "fit": {"where": "price < 80"},
    "artifacts": {"folder": "fitted/artifacts", "from": "fitted"},
    "batch": {"size": 8},
}
SKIPPING: dict[str, Any] = {
    "version": 1,
    "name": "skipping",
    "work_dir": "skipping",
    "source": {"table": "damaged", "on_bad_file": "skip"},
    "features": {"dense": {"price": [{"fill_null": 0}]}, "label": {"clicked": []}, "extra": ["request"]},
    "batch": {"size": 16},
    "shuffle": {"seed": 2, "window_rows": 64},
    "cluster": {"threads": 1},
}
# The third edition.
MIXED: dict[str, Any] = PLAIN | {
    "name": "mixed",
    "work_dir": "mixed",
    "batch": {"size": 16, "tail": "pad"},
    "shuffle": {"seed": 21, "window_rows": 96},
    "lanes": 2,
}

# The fourth edition.
NARROW: dict[str, Any] = MIXED | {"name": "narrow", "work_dir": "narrow", "shuffle": {"seed": 31}}
WIDE: dict[str, Any] = MIXED | {"name": "wide", "work_dir": "wide", "shuffle": {"seed": 32, "by": "user"}, "lanes": 4}
WINDOW = MixingWindow(rows=128, blocks=32)


def set_times(place: Path) -> None:
    """Give the files of the tables the times that they had."""
    for name in ("table", "damaged"):
        for file in (place / name).rglob("*.parquet"):
            os.utime(file, ns=(_TIME_NS, _TIME_NS))


def rewrite_table(place: Path) -> None:
    """Rewrite the second edition's table: a day merged into one file, a file without its first rows, a new day."""
    for part in (0, 1):
        (place / "table" / "ds=2026-01-01" / f"part-{part}.parquet").unlink()
    for file in (place / "rewritten").rglob("*.parquet"):
        path = place / "table" / file.relative_to(place / "rewritten")
        path.parent.mkdir(exist_ok=True)
        file.replace(path)
        os.utime(path, ns=(_TIME_NS + 1, _TIME_NS + 1))


def _table(place: Path, days: tuple[tuple[str, int], ...]) -> None:
    source = np.random.default_rng(26)
    request = 0
    for day, parts in days:
        folder = place / "table" / f"ds={day}"
        folder.mkdir(parents=True)
        for part in range(parts):
            user = np.sort(source.integers(0, 60, _ROWS))
            price = (source.integers(0, 4000, _ROWS) / 40).tolist()
            columns = {
                "request": [f"r{request + row:05d}" for row in range(_ROWS)],
                "user": pa.array(user * 7919),
                "item": pa.array(source.zipf(1.5, _ROWS).clip(max=80)),
                "word": [None if one == 0 else f"w{one}" for one in source.integers(0, 9, _ROWS)],
                "price": [None if row % 13 == 5 else value for row, value in enumerate(price)],
                "count": pa.array([None if row % 11 == 3 else row % 7 for row in range(_ROWS)], pa.int32()),
                "history": pa.array(
                    [source.zipf(1.5, count).clip(max=80).tolist() for count in source.integers(0, 6, _ROWS)],
                    pa.list_(pa.int64()),
                ),
                "words": [
                    [f"w{one}" for one in source.integers(0, 9, count)] if count else None
                    for count in source.integers(0, 4, _ROWS)
                ],
                "ts": [
                    datetime.datetime.fromisoformat(f"{day}T10:00:00") + datetime.timedelta(seconds=7 * row)
                    for row in range(_ROWS)
                ],
                "clicked": pa.array((source.random(_ROWS) < 0.3).astype(np.int8)),
            }
            pq.write_table(
                pa.table(columns), folder / f"part-{part}.parquet", row_group_size=_GROUP_ROWS, compression="zstd"
            )
            request += _ROWS
    items = pa.table({"item": np.arange(1, 60), "cost": np.arange(1, 60) * 0.25})
    pq.write_table(items, place / "items.parquet")


def _run(path: Path, state: dict[str, Any]) -> dict[str, Any]:
    """A run's fingerprints, its state after some steps, its first batches from the beginning and from the state on."""
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.plan_for(state)
    return {
        "plan": plan.fingerprint,
        "features": plan.features.fingerprint,
        "snapshot": plan.snapshot.id,
        "rows": int(plan.selection.rows.sum()),
        "state": state,
        "first": first_batches(pipeline, plan, 0),
        "after": first_batches(pipeline, plan, state["step"]),
    }


def _state(path: Path, step: int) -> dict[str, Any]:
    """A state of the first edition: it does not name its environment."""
    facts = to_values(Pipeline.from_yaml(path).plan().facts())
    named = {key: facts[key] for key in ("snapshot", "plan", "features", "seed", "lanes", "batch_size")}
    return {"version": 1, **named, "epoch": 0, "step": step}


def _train(path: Path) -> dict[str, Any]:
    """A state that a dataset gives after some steps."""
    with FeedlineDataset(path) as dataset:
        for _ in islice(dataset, STEP):
            pass
        return dataset.state_dict()


def _rebase(path: Path, before: dict[str, Any]) -> dict[str, Any]:
    """A state, rebased on the table as it is now."""
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.rebase(before)
    state = plan.state_after(before)
    return {
        "plan": plan.fingerprint,
        "snapshot": plan.snapshot_name,
        "state": state,
        "after": first_batches(pipeline, plan, state["step"]),
    }


def _begin(edition: Edition, *documents: dict[str, Any]) -> Path:
    place = edition.place
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for document in documents:
        (place / f"{document['name']}.yaml").write_text(json.dumps(document, indent=1))
    return place


def _keep(edition: Edition) -> None:
    """Keep what was saved so far."""
    shutil.rmtree(edition.files / "place", ignore_errors=True)
    shutil.copytree(edition.place, edition.files / "place", ignore=shutil.ignore_patterns("*.lock"))


def _write_expected(edition: Edition, expected: dict[str, Any]) -> None:
    """One line per fact."""
    parts = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(key)}: {json.dumps(fact)}" for key, fact in facts.items())
        for name, facts in expected.items()
    ]
    (edition.files / "expected.json").write_text("{\n" + "\n},\n".join(parts) + "\n}\n}\n")


def write_first() -> None:
    """Write the first edition."""
    place = _begin(FIRST, PLAIN, FITTED)
    plain, fitted = place / "plain.yaml", place / "fitted.yaml"
    _table(place, DAYS)
    shutil.move(place / "table" / LATER, place / LATER)
    set_times(place)
    expected = {"plain": _run(plain, _state(plain, STEP))}
    before = _state(plain, BEFORE)
    shutil.move(place / LATER, place / "table" / LATER)
    set_times(place)
    expected["rebased"] = {"before": before, **_rebase(plain, before)}
    Pipeline.from_yaml(fitted).fit()
    expected["fitted"] = _run(fitted, _state(fitted, STEP))
    assert check(load_spec(fitted, {})).passed
    _keep(FIRST)
    _write_expected(FIRST, expected)
    shutil.rmtree(place)


def write_second() -> None:
    """Write the second edition."""
    place = _begin(SECOND, KEYLESS, KEYED, LEARNED, SHARED, SKIPPING)
    _table(place, (*DAYS, ("2026-01-04", 1)))
    _write_rewritten(place)
    _write_damaged(place)
    set_times(place)
    paths = {name: place / f"{name}.yaml" for name in ("keyless", "keyed", "fitted", "shared", "skipping")}
    report = Pipeline.from_yaml(paths["fitted"]).fit()
    states = {name: _train(paths[name]) for name in ("keyless", "keyed", "fitted")}
    skipping = Pipeline.from_yaml(paths["skipping"]).plan()
    states["skipping"] = state_of(skipping.facts(), 0, 2)
    shutil.rmtree(place / "fitted" / "rows")
    _keep(SECOND)  # now, so that records of rows are only those of what was delivered or about to be

    expected: dict[str, Any] = {name: _run(paths[name], state) for name, state in states.items()}
    for name in ("keyless", "keyed", "fitted"):
        expected[name]["json"] = plan_json(paths[name])
    for name in ("keyless", "keyed"):
        (use,) = load_uses(str(place / name), str(place / "table"))
        expected[name]["usage"] = dataclasses.asdict(use)
    expected["fitted"]["manifest"] = report.manifest
    expected["skipping"]["skipped"] = [[Path(bad.file).name, bad.rows] for bad in skipping.skipped]
    checked = check(load_spec(paths["fitted"], {}))
    assert checked.passed
    expected["fitted"]["golden"] = {"rows": checked.rows, "features": checked.features}
    expected["served"] = {name: served_facts(Pipeline.from_yaml(paths[name])) for name in ("fitted", "shared")}
    expected["schema"] = schema_digests(Pipeline.json_schema())
    with tempfile.TemporaryDirectory() as folder:
        expected["ops"] = op_fingerprints(Path(folder))
    delivered = {name: _delivered(paths[name], states[name]) for name in ("keyless", "keyed")}
    rewrite_table(place)
    for name in ("keyless", "keyed"):
        expected[name]["rebased"] = _rebased(paths[name], states[name], delivered[name])
        for saved in ("snapshots", "rebases"):
            shutil.copytree(place / name / saved, SECOND.files / "place" / name / saved, dirs_exist_ok=True)
    _write_expected(SECOND, expected)
    shutil.rmtree(place)


def write_third() -> None:
    """Write the third edition."""
    place = _begin(THIRD, MIXED)
    _table(place, (*DAYS, ("2026-01-04", 3)))
    set_times(place)
    path = place / "mixed.yaml"
    state = _train(path)
    _keep(THIRD)
    expected = _run(path, state)
    pipeline = Pipeline.from_yaml(path)
    plan = pipeline.plan_for(state)
    expected["version"] = plan.version
    expected["streams"] = [stream_digest(pipeline, plan, epoch) for epoch in (0, 1)]
    _write_expected(THIRD, {"mixed": expected})
    shutil.rmtree(place)


def write_fourth() -> None:
    """Write the fourth edition."""
    place = _begin(FOURTH, NARROW, WIDE)
    _table(place, (*DAYS, ("2026-01-04", 3)))
    set_times(place)
    paths = {name: place / f"{name}.yaml" for name in ("narrow", "wide")}
    chosen = Pipeline.from_yaml(paths["wide"]).plan().at(3, WINDOW)
    states = {"narrow": _train(paths["narrow"]), "wide": state_of(chosen.facts(), 0, STEP)}
    _keep(FOURTH)
    expected = {}
    for name, state in states.items():
        pipeline = Pipeline.from_yaml(paths[name])
        plan = pipeline.plan_for(state)
        streams = [stream_digest(pipeline, plan, epoch) for epoch in (0, 1)]
        window = dataclasses.asdict(plan.window)
        expected[name] = {**_run(paths[name], state), "version": plan.version, "window": window, "streams": streams}
    _write_expected(FOURTH, expected)
    shutil.rmtree(place)


def _delivered(path: Path, state: dict[str, Any]) -> set[str]:
    pipeline = Pipeline.from_yaml(path)
    whole, rest = (remaining_requests(pipeline, pipeline.plan_for(state), step) for step in (0, state["step"]))
    return set(whole) - set(rest)


def _rebased(path: Path, state: dict[str, Any], delivered: set[str]) -> dict[str, Any]:
    """A rebase on a rewritten table, and the rows that remain: all that were not delivered before, each once."""
    found, pipeline = _rebase(path, state), Pipeline.from_yaml(path)
    plan = pipeline.plan_for(found["state"])
    remaining = remaining_requests(pipeline, plan, state["step"])
    assert remaining == sorted(set(remaining_requests(pipeline, pipeline.plan(), 0)) - delivered)
    return {**found, **rebase_facts(plan), "remaining": [len(remaining), short_digest("\n".join(remaining))]}


def _write_rewritten(place: Path) -> None:
    """Files that take the place of some of the table's: see `rewrite_table`."""
    table, rewritten = place / "table", place / "rewritten"
    rewritten.mkdir()
    source = np.random.default_rng(4)
    first, second, new = (rewritten / f"ds=2026-01-0{day}" for day in (1, 2, 4))
    merged = pa.concat_tables(
        [pq.read_table(table / first.name / f"part-{part}.parquet", partitioning=None) for part in (0, 1)]
    )
    kept = source.permutation(np.flatnonzero(np.arange(merged.num_rows) % 3 != 1))
    fewer = pq.read_table(table / second.name / "part-0.parquet", partitioning=None)
    added = pq.read_table(table / new.name / "part-0.parquet", partitioning=None)
    shutil.rmtree(table / new.name)
    for folder, name, rows in (
        (first, "merged", merged.take(kept)),
        (second, "part-0", fewer.slice(50)),
        (new, "part-0", added.slice(0, 30)),
    ):
        folder.mkdir()
        pq.write_table(rows, folder / f"{name}.parquet", row_group_size=70, compression="zstd")


def _write_damaged(place: Path) -> None:
    """A table of a good file and a truncated one."""
    (place / "damaged").mkdir()
    rows = pq.read_table(place / "table" / "ds=2026-01-01" / "part-0.parquet", partitioning=None)
    for name in ("good", "truncated"):
        pq.write_table(
            rows.select(["request", "price", "clicked"]),
            place / "damaged" / f"{name}.parquet",
            row_group_size=_GROUP_ROWS,
        )
    os.truncate(place / "damaged" / "truncated.parquet", 1000)


if __name__ == "__main__":
    {"0.1.0": write_first, "2026-11-22": write_second, "plan-2": write_third, "plan-3": write_fourth}[sys.argv[1]]()
