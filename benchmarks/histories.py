"""What histories stored once save and cost, against fat rows and arrays: every row of the table, as Markdown.

    python benchmarks/histories.py                        2,000,000 events, 5 rounds; about 20 minutes on two cores
    python benchmarks/histories.py --only rate,lookups    some of the rows
    python benchmarks/histories.py --tables DIR           keeps the tables there
    python benchmarks/histories.py --tiny                 few events, one round: a test that all works

Events of a music service, users by a heavy tail (`feedline generate listens`); a share of the listens are samples. Late
rows are samples whose lists are joined while reading; fat rows hold the same lists: items and artists, which are
hashed, and times. Fat rows get their best: of three files (as pyarrow writes them with zstd; optimized for decoding;
for size) each measure takes the one that serves it best.

stored      bytes of files of all samples: fat rows divided by samples and the columns of events that these rows need.
            Fat rows are in the order of time, as a log has them, or clustered by user, where zstd finds the lists that
            overlap.
read        bytes that an epoch reads, fat rows divided by late ones, both clustered by user.
rate        rows/s through FeedlineDataset, late divided by fat; one thread computes blocks.
pooled      samples/s per CPU-second of all processes, three pools of 1,362 and six columns: late rows divided by a
            DataLoader over memory-mapped arrays (`history_samples.py`), and the memory of late rows.
prepare     CPU and peak memory: `optimize --history --memory 256MB` divided by exploding the events to arrays.
coclustered bytes that an epoch reads of events, divided by those of the events that samples see, read once.
projection  bytes of the events read for the last day's samples: 2 columns of the last 64 events, divided by all 10
            columns of the last 4,096.
lookups     the share of a block's CPU that its look-ups take.

Medians of interleaved rounds, and their spread. CPU of blocks is that of this process, with one Polars thread.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from history_samples import ARRAYS, FEEDLINE, LISTS
from history_tables import BY_TIME, CLUSTERED, COLUMNS, KEY, TIE, TIME, Tables
from measure import Measured, measure
from projection import bytes_requested
from ratios import Row, bytes_below, print_rows, write_rows
from transforms import reborn

from feedline import Pipeline, Table
from feedline.blocks.compute import run_block
from feedline.planning.plan import Plan
from feedline.resources.allocators import allocator_environment
from feedline.warehouse.histories import stored_events
from feedline.warehouse.histories.join import HistoryJoin
from feedline.warehouse.histories.stored_events import StoredEvents, events_of
from feedline.warehouse.reading.read import bytes_of

HERE = Path(__file__).resolve().parent
_SAMPLE_S = 0.05  # between two looks at the CPU of all processes, which take a millisecond
_MOST_COPIES = 64  # of the tables' files, in an epoch that is timed
PREPARE_MEMORY = "256MB"  # exploding needs all of a log: a limit is what a table in files allows
GOALS = ("", "decode", "size")
LENGTHS = {"stored": (512, 4_096), "read": (512, 4_096), "rate": (64, 512, 4_096)}
AIMS = {
    ("stored", 512): "5",
    ("stored", 4_096): "20",
    ("read", 512): "2",
    ("read", 4_096): "3",
    ("rate", 64): "0.8",
    ("rate", 512): "1.2",
    ("rate", 4_096): "2",
}
EVENT_COLUMNS = (
    "item_id", "artist_id", "album_id", "timestamp", "is_organic", "played_ratio_pct", "track_length_seconds",
    "event_type", "event_no", "ingested_at",
)  # fmt: skip


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000, help="one user per 4,763 (default: %(default)s)")
    parser.add_argument("--prepare-events", type=int, default=4_000_000, help="of `prepare` (default: %(default)s)")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--share", type=float, default=0.125, help="of the listens that are samples")
    parser.add_argument("--part", type=int, default=16, metavar="N", help="samples of every N-th user are read")
    parser.add_argument("--values", type=int, default=200_000_000, help="of a list column in an epoch that is timed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--tables", type=Path, metavar="DIR", help="keep the tables there")
    parser.add_argument("--only", default=",".join(MEASURES), help="some of: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--tiny", action="store_true", help="few events, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.events, options.prepare_events, options.rounds, options.part = 3_000, 3_000, 1, 1
        options.share, options.values, options.batch_size = 0.1, 1, 16
    options.only = options.only.split(",")
    unknown = [name for name in options.only if name not in MEASURES]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}: expected some of {', '.join(MEASURES)}")
    if min(options.events, options.prepare_events, options.days, options.values, options.rounds, options.part) < 1:
        parser.error("events, days, part, values and rounds are at least 1")
    return options


def stored_bytes(tables: Tables) -> list[Row]:
    """Bytes of files of all samples, from those of a part."""
    options = tables.options
    listens = int((tables.sorted_events["event_type"] == "listen").sum())
    events = _needed_file_bytes(tables.stored)
    rows = []
    for last in LENGTHS["stored"]:
        for order, words in ((BY_TIME, "in the order of time"), (CLUSTERED, "clustered by user")):
            part = tables.scattered if order == BY_TIME else tables.of_users
            scale = options.share * listens / part.rows.height
            samples = bytes_below(tables.samples()) * options.share * listens / tables.of_users.rows.height
            sizes = {goal: scale * bytes_below(tables.fat(last, order, goal)) for goal in GOALS}
            figures = (
                f"{_listed(sizes, 1e6, 'MB')}; samples {samples / 1e6:.2f} MB, events {events / 1e6:.2f} MB; from "
                f"{part.rows.height:,} rows of {np.minimum(part.stops - part.starts, last).mean():,.0f} events"
            )
            about = f"stored bytes, fat rows {words} / samples + events, {last:,}"
            rows.append(Row(about, min(sizes.values()) / (samples + events), AIMS["stored", last], figures))
    return rows


def read_bytes(tables: Tables) -> list[Row]:
    """Bytes that an epoch reads."""
    rows = []
    for last in LENGTHS["read"]:
        late = _epoch_bytes(_plan(tables.late(tables.samples(), last)))
        fat = {goal: _epoch_bytes(_plan(tables.read_fat(tables.fat(last, CLUSTERED, goal), last))) for goal in GOALS}
        about = f"read bytes per epoch, fat rows / late, {last:,}"
        figures = f"late {late / 1e6:.2f} MB; {_listed(fat, 1e6, 'MB')}"
        rows.append(Row(about, min(fat.values()) / late, AIMS["read", last], figures))
    return rows


def rates(tables: Tables) -> list[Row]:
    """Rows per second through datasets, and CPU of blocks."""
    rows = []
    for last in LENGTHS["rate"]:
        fat = {goal: tables.fat(last, CLUSTERED, goal) for goal in GOALS}
        cpu = _alternate({goal: _plan(tables.read_fat(table, last)) for goal, table in fat.items()}, 1)
        best = min(fat, key=lambda goal: cpu[goal][0])
        plans = {"late": _plan(tables.late(tables.samples(), last)), "fat": _plan(tables.read_fat(fat[best], last))}
        seconds = {
            name: statistics.median(several) for name, several in _alternate(plans, tables.options.rounds).items()
        }
        mean = np.minimum(tables.of_users.stops - tables.of_users.starts, last).sum()
        copies = min(_MOST_COPIES, max(1, round(tables.options.values / mean)))
        cases = {
            "late": {"pipeline": str(tables.late(tables.copies(tables.samples(), copies), last))},
            "fat": {"pipeline": str(tables.read_fat(tables.copies(fat[best], copies), last))},
        }
        runs = _deliver(tables, {name: {"loader": FEEDLINE, **case} for name, case in cases.items()})
        ratios = [late["rows_per_s"] / fat["rows_per_s"] for late, fat in zip(*runs.values(), strict=True)]
        figures = (
            f"{_spread(ratios)}; late {_median(runs['late'], 'rows_per_s'):,.0f}, fat (best: {best or 'as written'}) "
            f"{_median(runs['fat'], 'rows_per_s'):,.0f} rows/s; per CPU-second of all processes "
            f"{_median(runs['late'], 'rows_per_cpu_s') / _median(runs['fat'], 'rows_per_cpu_s'):.2f}; CPU of blocks "
            f"{seconds['late']:.3f} and {seconds['fat']:.3f} s, {seconds['fat'] / seconds['late']:.2f}; "
            f"of each file of fat rows {_listed({goal: each[0] for goal, each in cpu.items()}, 1.0, 's')}"
        )
        rows.append(Row(f"rows/s, late / fat rows, {last:,}", statistics.median(ratios), AIMS["rate", last], figures))
    return rows


def pooled(tables: Tables) -> list[Row]:
    """The benchmark's samples, from events and from arrays."""
    arrays, places = tables.folder / "arrays", tables.folder / "places.npy"
    if not arrays.exists():
        _explode(tables.events, arrays)
    np.save(places, np.stack([tables.of_users.starts, tables.of_users.stops]))
    in_order = {"pipeline": str(_in_order(tables.pooled(_source(tables))))}
    mapped = {"arrays": str(arrays), "places": str(places)}
    cases: dict[str, dict[str, Any]] = {FEEDLINE: in_order, LISTS: mapped, ARRAYS: mapped}
    cases = {name: {"loader": name, **case} for name, case in cases.items()}
    checked = {name: _run(tables, {**case, "sums": True}) for name, case in cases.items()}
    found = {name: (result["rows"], result["sums"]) for name, (result, _) in checked.items()}
    if len({str(each) for each in found.values()}) != 1:
        raise AssertionError(f"loaders deliver other samples: got rows and sums {found}, expected the same")
    runs = _deliver(tables, cases)
    figures = ", ".join(
        f"{name} {_median(several, 'rows_per_cpu_s'):,.0f} per CPU-second and {_median(several, 'rows_per_s'):,.0f} "
        "per second"
        for name, several in runs.items()
    )
    rows = []
    for style, aim in ((LISTS, "3"), (ARRAYS, "-")):
        pairs = zip(runs[FEEDLINE], runs[style], strict=True)
        ratios = [late["rows_per_cpu_s"] / theirs["rows_per_cpu_s"] for late, theirs in pairs]
        about = f"the benchmark's samples/s per core, late rows / memory-mapped arrays ({style})"
        rows.append(Row(about, statistics.median(ratios), aim, f"{_spread(ratios)}; {figures}"))
    peaks = {name: done.peak_pss_bytes for name, (_, done) in checked.items()}
    about = "memory of feeder and trainer, the ring included, GB"
    return [*rows, Row(about, peaks[FEEDLINE] / 1e9, "at most 2", _listed(peaks, 1e9, "GB"))]


def preparation(tables: Tables) -> list[Row]:
    """CPU and memory of preparing events."""
    events = tables.generated(tables.options.prepare_events)
    arrays: list[Measured] = []
    ours: list[Measured] = []
    words = ("--history", KEY, "--sort-by", f"{TIME},{TIE}", "--threads", "1", "--memory", PREPARE_MEMORY)
    for _ in range(tables.options.rounds):
        with tempfile.TemporaryDirectory(dir=tables.folder) as scratch:
            arrays.append(_explode(events, Path(scratch) / "arrays"))
            ours.append(_program("-m", "feedline", "optimize", str(events), f"{scratch}/stored", *words))
    rows = []
    for about, aim, key, unit, scale in (
        ("preparation: CPU of optimize --history / exploding to arrays", "at most 0.5", "cpu_s", "CPU-s", 1.0),
        ("… peak memory", "at most 0.1", "peak_pss_bytes", "MB", 1e6),
    ):
        values = [statistics.median(getattr(each, key) for each in side) for side in (ours, arrays)]
        figures = " and ".join(f"{value / scale:,.1f} {unit}" for value in values)
        rows.append(Row(about, values[0] / values[1], aim, f"{figures}; {tables.options.prepare_events:,} events"))
    return rows


def coclustered(tables: Tables) -> list[Row]:
    """Bytes of events that an epoch reads, of those it needs."""
    snapshot = Table(tables.stored).snapshot()
    rows = []
    for last in LENGTHS["read"]:
        read = _event_bytes(_plan(tables.late(tables.samples(), last)))
        share = tables.of_users.seen(last) / snapshot.rows
        needed = bytes_of(snapshot, None, COLUMNS) * share
        figures = (
            f"{read / 1e6:.2f} of {needed / 1e6:.2f} MB, which hold the {share:.0%} of the events that samples see"
        )
        rows.append(Row(f"bytes of events, read / needed, {last:,}", read / needed, "at most 1.3", figures))
    return rows


def projection(tables: Tables) -> list[Row]:
    """Bytes of a job that needs few of the events and columns."""
    samples = tables.samples("last-day")
    few = _event_bytes(_plan(tables.late(samples, 64, ("item_id", "timestamp"))))
    every = _event_bytes(_plan(tables.late(samples, 4_096, EVENT_COLUMNS)))
    figures = f"{few / 1e3:,.0f} of {every / 1e3:,.0f} kB"
    return [Row("bytes: 64 of 4,096 events and 2 of 10 columns / all", few / every, "at most 0.1", figures)]


def lookups(tables: Tables) -> list[Row]:
    """The share of look-ups in a block's CPU."""
    plan = _plan(tables.late(tables.samples(), 512))
    spent = dict.fromkeys(("join", "find", "read"), 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return function(*arguments)
            finally:
                spent[name] += time.process_time() - began

        return call

    shares, reading = [], []
    with (
        mock.patch.object(HistoryJoin, "join", timed("join", HistoryJoin.join)),
        mock.patch.object(HistoryJoin, "find", timed("find", HistoryJoin.find)),
        mock.patch.object(StoredEvents, "read", timed("read", StoredEvents.read)),
    ):
        for number in range(tables.options.rounds + 1):
            stored_events._events.cache_clear()
            spent.update(dict.fromkeys(spent, 0.0))
            total = _epoch_cpu(plan)
            if number:
                shares.append((spent["join"] + spent["find"]) / total)
                reading.append(spent["read"] / total)
    figures = f"{_spread(shares)}; {statistics.median(reading):.0%} of the CPU reads events"
    return [Row("look-ups' share of block CPU, 512", statistics.median(shares), "at most 0.40", figures)]


MEASURES: dict[str, Callable[[Tables], list[Row]]] = {
    "stored": stored_bytes,
    "read": read_bytes,
    "rate": rates,
    "pooled": pooled,
    "prepare": preparation,
    "coclustered": coclustered,
    "projection": projection,
    "lookups": lookups,
}


def _needed_file_bytes(table: Path) -> int:
    """Bytes of the files of events, without the columns that fat rows do not have."""
    snapshot = Table(table).snapshot()
    needed = (KEY, TIME, TIE, *COLUMNS)
    return bytes_below(table) - bytes_of(snapshot, None, [name for name in snapshot.schema.names if name not in needed])


def _source(tables: Tables) -> Path:
    """Samples in the order of the arrays."""
    tables.samples()
    return tables.folder / "samples-source"


def _in_order(pipeline: Path) -> Path:
    pipeline.write_text(pipeline.read_text().partition("shuffle:")[0] + "shuffle: off\n")
    return pipeline


def _plan(pipeline: Path) -> Plan:
    return Pipeline.from_yaml(pipeline).plan()


def _compute(plan: Plan) -> None:
    for number, block in enumerate(plan.source.schedule(0).blocks_of(range(1), first_step=0)):
        run_block(plan.source.job, plan.request(block, 0), f"block-{number}", packed=False)


def _epoch_cpu(plan: Plan) -> float:
    began = time.process_time()
    _compute(plan)
    return time.process_time() - began


def _epoch_bytes(plan: Plan) -> int:
    """Bytes that the blocks of an epoch request from the kernel, after an epoch that parses footers."""
    _compute(plan)
    stored_events._events.cache_clear()  # with what is kept decoded
    before = bytes_requested()
    _compute(plan)
    return bytes_requested() - before


def _event_bytes(plan: Plan) -> int:
    """Bytes of events that the blocks of an epoch read."""
    block = next(iter(plan.source.schedule(0).blocks_of(range(1), first_step=0)))
    [history] = plan.request(block, 0).pieces[0].fragment.histories
    stored_events._events.cache_clear()
    _compute(plan)
    return events_of(history).bytes_read


def _alternate(plans: Mapping[str, Plan], rounds: int) -> dict[str, list[float]]:
    """CPU-seconds of an epoch's blocks, in turn, after a round that is not counted."""
    found: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(rounds + 1):
        for name in list(plans)[:: 1 if number % 2 else -1]:
            found[name].append(_epoch_cpu(plans[name]))
    return {name: several[1:] for name, several in found.items()}


def _deliver(tables: Tables, cases: Mapping[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Results of the cases, run in turn. Raises AssertionError if their rows differ."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for number in range(tables.options.rounds):
        for name in list(cases)[:: 1 if number % 2 else -1]:
            found[name].append(_run(tables, cases[name])[0])
    rows = {result["rows"] for several in found.values() for result in several}
    if len(rows) != 1:
        raise AssertionError(f"the runs deliver different numbers of rows: got {sorted(rows)}, expected one")
    return found


def _run(tables: Tables, case: Mapping[str, Any]) -> tuple[dict[str, Any], Measured]:
    options = tables.options
    settings = {"batch_size": options.batch_size, "sample_s": 0.0 if options.tiny else _SAMPLE_S}
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        path = Path(scratch) / "case.json"
        path.write_text(json.dumps({**case, **settings}))
        environment = {**os.environ, **allocator_environment(1)}
        environment.pop("POLARS_MAX_THREADS", None)  # that of this process
        done = _program(str(HERE / "history_samples.py"), str(path), env=environment)
    return json.loads(done.stdout.splitlines()[-1]), done


def _explode(events: Path, folder: Path) -> Measured:
    return _program(str(HERE / "history_samples.py"), "explode", str(events), str(folder))


def _program(*words: str, env: Mapping[str, str] | None = None) -> Measured:
    """Run Python with these words. Raises RuntimeError if it fails."""
    done = measure([sys.executable, *words], env=env)
    if done.code != 0:
        raise RuntimeError(f"{' '.join(words)} ended with exit code {done.code}:\n{done.stderr[-4000:]}")
    return done


def _listed(values: Mapping[str, float], scale: float, unit: str) -> str:
    return ", ".join(f"{name or 'as written'} {value / scale:,.2f} {unit}" for name, value in values.items())


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _spread(values: Sequence[float]) -> str:
    return f"{min(values):.2f}-{max(values):.2f}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        folder = options.tables or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        tables = Tables(folder.resolve(), options)
        setting = (
            f"{options.events:,} events, {options.share:.1%} of the listens are samples, of every {options.part}. user "
            f"read; batches of {options.batch_size}, medians of {options.rounds} interleaved rounds"
        )
        measured = (row for name in options.only for row in MEASURES[name](tables))
        write_rows(options.json, print_rows(setting, measured))
    return 0


if __name__ == "__main__":
    reborn()
    sys.exit(main(sys.argv[1:]))
