"""What deduplication saves, from file to training step: every row of the table in README.md, as Markdown.

    python benchmarks/dedup.py                          400,000 rows, 5 rounds; about an hour on two cores
    python benchmarks/dedup.py --only reading,ring      some of the rows
    python benchmarks/dedup.py --tables DIR --prepare   writes the tables there and measures nothing
    python benchmarks/dedup.py --tiny                   4,000 rows, one round: a test that all works

Clicks with S rows per session, in which the six histories and the first half of the 13 dense columns and of the 26 ids
change in the same rows, with probability 1 - d. They are the group `user` of a pipeline with `shuffle: {by:
session_id}`; the work is that of `floor.py`. Three tables hold the same rows, each in the encodings that
`feedline optimize` measures to be its best, for bytes (`--for size`) and for speed (`--for decode`): in log order,
clustered by session, and clustered with the group stored once per run (`--dedup`).

bytes       bytes of files: log order, and clustered, each divided by those of the table that stores runs once.
decode      CPU of decoding the group's columns (and session_id): clustered divided by stored once.
log         rows/s through FeedlineDataset: stored once with the group, divided by log order without it.
loaders     the same, divided by the fastest of other loaders on the clustered table.
reading     rows/s from the clustered table: with the group, divided by without it; and the seconds of each stage.
ring        bytes of the group in slots: expanded divided by deduplicated, compared with S / (1 + (S - 1) (1 - d)).
training    steps/s of the model of examples/clicks (`dedup_training.py`).
unrepeated  S = 1: CPU of blocks, and rows/s, with the group and without.
cut         rows/s of cutting finished blocks into slots: with the group, divided by without it.

Delivery is measured over an epoch of several copies of a table; threads or worker processes compute, whichever are
faster, and both are printed. Medians of interleaved rounds. CPU is that of this process, with one Polars thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from contenders import CONTENDERS
from dedup_delivery import FEEDLINE, Case, deliver
from dedup_stages import block_seconds, cut_rates, decode_seconds, ring_bytes
from measure import measure
from ratios import Row, bytes_below, print_rows, write_rows
from transforms import reborn

from feedline import Pipeline
from feedline.planning.plan import Plan
from feedline.resources.cgroups import available_cores
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

HERE = Path(__file__).resolve().parent
GROUP, KEY = "user", "session_id"
DENSE, IDS, HISTORIES = 13, 26, 6
COLUMNS = (
    *(f"dense_{j}" for j in range(round(DENSE / 2))),
    *(f"id_{k}" for k in range(round(IDS / 2))),
    *(f"hist_{k}" for k in range(HISTORIES)),
)
PLAIN: dict[str, object] = {"dedup": {}}  # an override: no group
LOADERS = ("thread-pool", "grain", "torchdata-nodes")
LOG, CLUSTERED, STORED_ONCE = "log", "clustered", "stored-once"
CLUSTER = ("--cluster-by", KEY, "--sort-by", "ts")
LAYOUTS: dict[str, tuple[str, ...]] = {
    LOG: (),
    CLUSTERED: CLUSTER,
    STORED_ONCE: (*CLUSTER, "--dedup", f"{GROUP}={','.join(COLUMNS)}"),
}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--copies", type=int, default=20, help="of each table's files in a run that delivers rows")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--session-rows", type=float, default=16.5, metavar="S")
    parser.add_argument("--keep", type=float, default=0.95, metavar="D", help="probability that a row repeats the last")
    parser.add_argument("--row-group-rows", type=int, default=65_536)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--tables", type=Path, metavar="DIR", help="keep the tables there")
    parser.add_argument("--prepare", action="store_true", help="write the tables and measure nothing")
    parser.add_argument("--only", default=",".join(MEASURES), help="some of: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there")
    parser.add_argument("--tiny", action="store_true", help="few rows, one round: a test, not a measurement")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rows, options.copies, options.rounds, options.threads = 4_000, 2, 1, 1
        options.row_group_rows, options.batch_size = 1024, 256
    options.only = options.only.split(",")
    unknown = [name for name in options.only if name not in MEASURES]
    if unknown:
        parser.error(f"no row is called {unknown[0]!r}: expected some of {', '.join(MEASURES)}")
    if min(options.rows, options.copies, options.rounds, options.row_group_rows, options.batch_size) < 1:
        parser.error("rows, copies, rounds, row-group rows and batch size are at least 1")
    return options


class Tables:
    """The tables and pipelines that are compared, each written when it is first asked for."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options

    def table(self, layout: str, goal: str) -> Path:
        """A table in its best encodings; goal: size or decode."""
        target = self.folder / f"{layout}-{goal}"
        rows = ("--row-group-rows", self.options.row_group_rows, "--threads", self.options.threads)
        words = ("optimize", self.log, target, "--for", goal, *rows, *LAYOUTS[layout])
        if not (self.folder / f"{layout}-{goal}.done").exists():
            done = measure([sys.executable, "-m", "feedline", *map(str, words)])
            if done.code != 0:
                raise RuntimeError(f"feedline optimize ended with exit code {done.code}:\n{done.stderr[-4000:]}")
            (self.folder / f"{layout}-{goal}.done").touch()
        return target

    @cached_property
    def log(self) -> Path:
        """The generated table, in log order."""
        return self._generate("log", self.options.session_rows, clustered=False)

    @cached_property
    def unrepeated(self) -> Path:
        """A table of sessions of one row."""
        return self._generate("unrepeated", 1, clustered=True)

    def pipeline(self, table: Path) -> Path:
        """The pipeline.yaml over a table, with the group."""
        path = self.folder / f"{table.name}.yaml"
        text = clicks_pipeline(
            str(table),
            batch_size=self.options.batch_size,
            tail="partial",
            work_dir=str(self.folder / "work"),
            shuffle={"by": KEY},
        )
        path.write_text(f"{text}dedup: {{{GROUP}: {{columns: [{', '.join(COLUMNS)}]}}}}\n")
        return path

    def copies(self, table: Path) -> Path:
        """Several copies of a table's files in one table, as links: an epoch that is long enough to measure."""
        target = self.folder / f"{table.name}-copies"
        for copy in range(self.options.copies):
            for file in map(Path, files_of(table)):
                link = target / f"copy={copy}" / file.relative_to(table)
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.hardlink_to(file)
        return target

    def session_rows(self) -> float:
        """Rows per session of the table: the last session of a file is truncated."""
        sessions = np.concatenate(
            [pc.unique(pq.read_table(file, columns=[KEY])[KEY]).to_numpy() for file in files_of(self.log)]
        )
        return self.options.rows / len(np.unique(sessions))

    def _generate(self, name: str, session_rows: float, *, clustered: bool) -> Path:
        folder, options = self.folder / name, self.options
        if not folder.exists():
            recipe = ClickRecipe(
                rows=options.rows,
                days=2,
                sessions_mean=session_rows,
                keep_probability=options.keep,
                joint_changes=True,
                strings=0,
                row_group_rows=options.row_group_rows,
                clustered=clustered,
            )
            generate_clicks(str(folder), recipe, threads=options.threads)
        return folder


def files_of(table: Path) -> list[str]:
    """The table's Parquet files."""
    return sorted(str(file) for file in table.rglob("*.parquet"))


def stored_bytes(tables: Tables) -> list[Row]:
    """Bytes of files."""
    sizes = {layout: bytes_below(tables.table(layout, "size")) for layout in LAYOUTS}
    of_group = {layout: group_bytes(tables.table(layout, "size")) for layout in LAYOUTS}
    ours = sizes[STORED_ONCE]
    figures = ", ".join(
        f"{name} {size / 1e6:,.2f} MB ({of_group[name] / 1e6:,.2f} MB of it the group)" for name, size in sizes.items()
    )
    return [
        Row("stored bytes, log order / stored once", sizes[LOG] / ours, "5.0", figures),
        Row("stored bytes, clustered / stored once", sizes[CLUSTERED] / ours, "1.1", figures),
        Row("stored bytes of the group, log order / stored once", of_group[LOG] / of_group[STORED_ONCE], "-", figures),
    ]


def group_bytes(table: Path) -> int:
    """Bytes of the column chunks of the group, its flag included."""
    total = 0
    for file in files_of(table):
        footer = pq.read_metadata(file)
        chunks = (
            footer.row_group(r).column(c) for r in range(footer.num_row_groups) for c in range(footer.num_columns)
        )
        named = ((chunk.path_in_schema.split(".")[0], chunk.total_compressed_size) for chunk in chunks)
        total += sum(size for name, size in named if name in COLUMNS or name == f"__run_{GROUP}")
    return total


def decoding(tables: Tables) -> list[Row]:
    """CPU of decoding."""
    both = {layout: tables.table(layout, "decode") for layout in (CLUSTERED, STORED_ONCE)}
    seconds = decode_seconds(both, COLUMNS, KEY, tables.options.rounds)
    figures = ", ".join(f"{name} {value / tables.options.rows * 1e9:,.0f} ns/row" for name, value in seconds.items())
    ratio = seconds[CLUSTERED] / seconds[STORED_ONCE]
    return [Row("decoding CPU of the group, clustered / stored once", ratio, "4.0", figures)]


def case(tables: Tables, table: Path, loader: str = FEEDLINE, *, dedup: bool = True) -> Case:
    """A run over copies of a table."""
    options, table = tables.options, tables.copies(table)
    return Case(
        loader=loader,
        pipeline=str(tables.pipeline(table)),
        files=tuple(files_of(table)),
        overrides={} if dedup else PLAIN,
        batch_size=options.batch_size,
        threads=options.threads,
    )


def rates(cases: dict[str, Case], options: argparse.Namespace) -> tuple[dict[str, float], str]:
    """Rows per second of each case, and in words. Feedline computes in threads and in worker processes, as many of
    either: the faster counts."""
    both = {(name, 0): case for name, case in cases.items()}
    both |= {
        (name, 1): replace(case, workers=options.threads) for name, case in cases.items() if case.loader == FEEDLINE
    }
    ways = ("", " in worker processes")
    measured = deliver({f"{name}{ways[way]}": case for (name, way), case in both.items()}, options.rounds)
    found = {name: max(measured[f"{name}{ways[way]}"] for other, way in both if other == name) for name in cases}
    words = ", ".join(f"{name} {rate / 1e3:,.0f} k rows/s" for name, rate in measured.items())
    return found, words


def against_log(tables: Tables) -> list[Row]:
    """Delivery from the table that stores runs once, and from log order without deduplication."""
    ours, theirs = (tables.table(layout, "decode") for layout in (STORED_ONCE, LOG))
    cases = {STORED_ONCE: case(tables, ours), LOG: case(tables, theirs, dedup=False)}
    found, words = rates(cases, tables.options)
    return [Row("rows/s, stored once / log order without dedup", found[STORED_ONCE] / found[LOG], "2.5", words)]


def against_loaders(tables: Tables) -> list[Row]:
    """Delivery from the table that stores runs once, and of other loaders from the clustered one."""
    here = [name for name in LOADERS if all(importlib.util.find_spec(package) for package in CONTENDERS[name].needs)]
    plain = tables.table(CLUSTERED, "decode")
    cases = {STORED_ONCE: case(tables, tables.table(STORED_ONCE, "decode"))}
    cases |= {name: case(tables, plain, name) for name in here}
    found, words = rates(cases, tables.options)
    best = max(here, key=lambda name: found[name])
    return [Row(f"rows/s, stored once / {best} on the clustered table", found[STORED_ONCE] / found[best], "1.8", words)]


def at_reading(tables: Tables) -> list[Row]:
    """Delivery from the clustered table with deduplication and without, and where the time goes."""
    table = tables.table(CLUSTERED, "decode")
    cases = {"dedup": case(tables, table), "plain": case(tables, table, dedup=False)}
    found, words = rates(cases, tables.options)
    row = Row("rows/s, clustered with dedup / without", found["dedup"] / found["plain"], "1.2", words)
    return [row, _blocks(tables, table, "CPU of blocks, clustered without dedup / with", "-", inverted=True)]


def _blocks(tables: Tables, table: Path, measure: str, aim: str, *, inverted: bool) -> Row:
    seconds = block_seconds(plans_of(tables, table), tables.options.rounds)
    figures = "; ".join(
        f"{name}: " + ", ".join(f"{stage} {value / tables.options.rows * 1e9:,.0f}" for stage, value in stages.items())
        for name, stages in seconds.items()
    )
    one, other = ("plain", "dedup") if inverted else ("dedup", "plain")
    return Row(measure, seconds[one]["cpu"] / seconds[other]["cpu"], aim, f"ns/row: {figures}")


def plans_of(tables: Tables, table: Path) -> dict[str, Plan]:
    """The plans with the group and without."""
    path = tables.pipeline(table)
    return {name: Pipeline.from_yaml(path, dict(set)).plan() for name, set in (("dedup", {}), ("plain", PLAIN))}


def through_ring(tables: Tables) -> list[Row]:
    """Bytes of the group in slots."""
    options = tables.options
    pipeline = Pipeline.from_yaml(tables.pipeline(tables.table(CLUSTERED, "decode")))
    found = ring_bytes(pipeline, GROUP, 20)
    mean = tables.session_rows()
    formula = mean / (1 + (mean - 1) * (1 - options.keep))
    ratio = found["expanded_group"] / found["group"]
    figures = (
        f"formula {formula:.2f} (off by {ratio / formula - 1:+.1%}), rows / unique rows "
        f"{found['rows'] / found['unique_rows']:.2f}, {found['expanded_group'] / found['rows']:,.0f} and "
        f"{found['group'] / found['rows']:,.0f} bytes/row; whole batch {found['expanded_batch'] / found['batch']:.2f}"
    )
    return [Row("bytes of the group in slots, expanded / deduplicated", ratio, "within 5 % of the formula", figures)]


def training(tables: Tables) -> list[Row]:
    """Steps per second of the example's model."""
    path = tables.folder / "training.json"
    words = ["--tiny"] if tables.options.tiny else []
    done = measure([sys.executable, str(HERE / "dedup_training.py"), "--json", str(path), *words])
    if done.code != 0:
        raise RuntimeError(f"dedup_training.py ended with exit code {done.code}:\n{done.stderr[-4000:]}")
    found = json.loads(path.read_text())
    return [
        Row(
            f"training steps/s, {model}, deduplicated / expanded",
            one["ratio"],
            "3.0" if "attention" in model else "-",
            f"{one['deduplicated_steps_per_s']:.2f} and {one['expanded_steps_per_s']:.2f} steps/s, "
            f"{one['deduplicated_share']:.0%} of FLOPs in deduplicated encoders; {found['factor']:.1f} rows "
            f"per unique row of its own table",
        )
        for model, one in found["models"].items()
    ]


def nothing_repeats(tables: Tables) -> list[Row]:
    """Costs where S = 1."""
    table = tables.unrepeated
    cases = {"dedup": case(tables, table), "plain": case(tables, table, dedup=False)}
    found, words = rates(cases, tables.options)
    return [
        Row("S = 1: rows/s, without dedup / with", found["plain"] / found["dedup"], "at most 1.05", words),
        _blocks(tables, table, "S = 1: CPU of blocks, with dedup / without", "at most 1.05", inverted=False),
    ]


def cutting(tables: Tables) -> list[Row]:
    """Cutting of batches out of finished blocks."""
    options = tables.options
    plans = plans_of(tables, tables.table(CLUSTERED, "decode"))
    found = cut_rates(plans, options.batch_size, options.rounds, 1 if options.tiny else 10)
    figures = ", ".join(f"{name} {value / 1e6:.2f} M rows/s" for name, value in found.items())
    return [Row("cutting batches, rows/s with dedup / without", found["dedup"] / found["plain"], "1.0", figures)]


MEASURES: dict[str, Callable[[Tables], list[Row]]] = {
    "bytes": stored_bytes,
    "decode": decoding,
    "log": against_log,
    "loaders": against_loaders,
    "reading": at_reading,
    "ring": through_ring,
    "training": training,
    "unrepeated": nothing_repeats,
    "cut": cutting,
}


def prepare(tables: Tables) -> None:
    """Write all tables."""
    for layout in LAYOUTS:
        for goal in ("size", "decode"):
            tables.table(layout, goal)
    print(f"{tables.log}, {tables.unrepeated}: {tables.options.rows:,} rows each")


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        folder = options.tables or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        tables = Tables(folder.resolve(), options)
        if options.prepare:
            prepare(tables)
            return 0
        setting = (
            f"{options.rows:,} rows, batches of {options.batch_size:,}, {options.threads} threads, medians of "
            f"{options.rounds} interleaved rounds; S = {options.session_rows}, d = {options.keep}, "
            f"{options.row_group_rows:,} rows per row group, "
            f"{round(DENSE / 2)} of {DENSE} dense columns, "
            f"{round(IDS / 2)} of {IDS} ids and all {HISTORIES} histories repeat"
        )
        measured = (row for name in options.only for row in MEASURES[name](tables))
        write_rows(options.json, print_rows(setting, measured))
    return 0


if __name__ == "__main__":
    reborn()
    sys.exit(main(sys.argv[1:]))
