"""Measure how well a plan's shuffle mixes, beside two other settings.

    python benchmarks/shuffle_quality.py pipeline.yaml [--world-size 8] [--json]

No rows are read. Some steps of an epoch, evenly spaced, are compared with those of
a true shuffle, in which every order of the selected rows is equally likely. Runs of `shuffle.by` are treated as if
their rows were permuted one by one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from feedline import Pipeline
from feedline.blocks.permutation import permutation
from feedline.commands.plan.report import row_bytes, row_groups_read_twice
from feedline.config.sections import ShuffleSpec
from feedline.errors import PlanError
from feedline.planning.source_plan import SourcePlan

Int64s = NDArray[np.int64]

_PERMUTED_BLOCKS = 1_500  # of all measured steps: a second of work
_MOST_STEPS, _FEWEST_STEPS = 96, 8
_KEPT_BLOCKS = 512
REGIONS = 60  # equal parts of the table, in which a step's rows are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleQuality:
    """How one setting mixes: averages over the measured steps.

    blocks, block_rows, window_rows: how many blocks a lane draws from at once, and their rows, each on average and
    together. rows_held: those of such blocks on one rank; blocks computed ahead come on top. decoded: rows decoded per
    row of the epoch.

    displacement: mean distance between a row's place in the epoch and in the table, 1 for a true shuffle.
    same_row_group: of a lane's rows in a step, the share of pairs that are of one row group; same_row_group_step: of
    all lanes' rows; same_row_group_true: in a true shuffle. spread: standard deviation of the mean place of a lane's
    rows in a step, 1 for a true shuffle; autocorrelation: of these means in consecutive steps.

    regions: [steps][REGIONS], for some steps, the share of a lane's rows from each part of the table.
    """

    name: str
    blocks: int
    block_rows: int
    window_rows: int
    rows_held: int
    decoded: float
    displacement: float
    same_row_group: float
    same_row_group_step: float
    same_row_group_true: float
    autocorrelation: float
    spread: float
    regions: tuple[tuple[float, ...], ...]


def alternatives(plan: SourcePlan) -> list[tuple[str, SourcePlan]]:
    """The plan's own setting, and two others by name: half and twice its window, or two windows if it has none. Raises
    PlanError for a plan with buckets."""
    if plan.lengths is not None:
        raise PlanError(
            "the shuffle is measured for plans whose lanes take any of their rows: got batch.buckets, expected "
            "batch.size. Measure it without buckets, with --set batch.max_tokens=null --set batch.buckets=null"
        )
    shuffle = plan.spec.shuffle
    if shuffle is None or not shuffle.rows:
        present = "shuffle: off" if shuffle is None else "rows: false"
        base = ShuffleSpec(seed=plan.seed)
        windows: list[int | None] = [None, 2 * _with(plan, base).window.rows]
    else:
        present, base = "", shuffle
        windows = [max(1, plan.window.rows // 2), 2 * plan.window.rows]
    others = [_with(plan, base.model_copy(update={"window_rows": rows})) for rows in windows]
    return [(present or _name(plan), plan), *((_name(other), other) for other in others)]


def _with(plan: SourcePlan, shuffle: ShuffleSpec) -> SourcePlan:
    spec = plan.spec.model_copy(update={"shuffle": shuffle})
    return replace(plan, spec=spec, run_window=None, rebase=None)


def _name(plan: SourcePlan) -> str:
    return f"window_rows: {plan.window.rows:,}"


def measure_shuffle(name: str, plan: SourcePlan, *, world_size: int) -> ShuffleQuality:
    """Measure a plan's first epoch."""
    return _Measurement(plan).quality(name, world_size)


class _Measurement:
    def __init__(self, plan: SourcePlan) -> None:
        self._plan = plan
        self._schedule = plan.schedule(0)
        self._ends = np.cumsum(plan.selection.rows, dtype=np.int64)  # of row groups, in the table's order
        self._split_starts = np.cumsum(plan.split_rows) - plan.split_rows
        self._block_places = lru_cache(_KEPT_BLOCKS)(self._places_of_block)

    def quality(self, name: str, world_size: int) -> ShuffleQuality:
        schedule, lanes = self._schedule, self._schedule.lanes
        full = max(1, schedule.rows // lanes // schedule.batch_size)  # steps in which every lane has a whole batch
        lane = schedule.lane(0)
        open_blocks = len(lane.strands)
        block_rows = lane.borders[-1] - lane.borders[0]
        count = int(np.clip(_PERMUTED_BLOCKS // (2 * open_blocks * lanes), _FEWEST_STEPS, _MOST_STEPS))
        steps = np.unique(np.linspace(0, max(full - 2, 0), count).astype(int)).tolist()
        pairs, whole_pairs, moved, means, following, shown = [], [], [], [], [], []
        for step in steps:
            places = [self._places(each, step) for each in range(lanes)]
            everything = np.concatenate(places)
            whole_pairs.append(self._same_row_group(everything))
            pairs += [self._same_row_group(each) for each in places]
            moved.append(self._displacement(step, places))
            means.append(places[0].mean())
            following.append(self._places(0, min(step + 1, full - 1)).mean())
            shown.append(np.bincount(places[0] * REGIONS // schedule.rows, minlength=REGIONS) / len(places[0]))
        blocks = len(lane.borders) - 1
        ranks_lanes = range(max(1, lanes // world_size))
        held = sum(len(schedule.lane(each).strands) * _mean_rows(schedule.lane(each).borders) for each in ranks_lanes)
        sizes = np.diff(self._ends, prepend=0)
        return ShuffleQuality(
            name=name,
            blocks=open_blocks,
            block_rows=int(block_rows // blocks),
            window_rows=int(open_blocks * block_rows // blocks),
            rows_held=int(held),
            decoded=self.decoded(),
            displacement=float(np.mean(moved)) * 3,
            same_row_group=float(np.mean(pairs)),
            same_row_group_step=float(np.mean(whole_pairs)),
            same_row_group_true=_share_of_pairs(sizes),
            autocorrelation=_correlation(np.array(means), np.array(following)),
            spread=float(np.sqrt(np.mean((np.array(means) / schedule.rows - 0.5) ** 2) * 12 * schedule.batch_size)),
            regions=tuple(tuple(row.tolist()) for row in shown[:: max(1, len(shown) // 4)][:4]),
        )

    def decoded(self) -> float:
        """Rows decoded per row delivered: row groups that lanes share are decoded by each."""
        rows = self._plan.selection.rows
        twice = sum(int(rows[group]) for group in row_groups_read_twice(self._plan, self._schedule))
        return 1 + twice / self._schedule.rows

    def _places(self, lane: int, step: int) -> Int64s:
        """The places in the table, among its selected rows, of a lane's rows in a step."""
        cuts = (cut for cut in self._schedule.cuts(lane, step) if not cut.padding)
        found = [self._block_places(lane, cut.block)[cut.start : cut.stop] for cut in cuts]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _places_of_block(self, lane: int, index: int) -> Int64s:
        schedule, shuffle = self._schedule, self._plan.spec.shuffle
        block = schedule.block(lane, index)
        places = np.concatenate(
            [self._split_starts[each.split] + np.arange(each.start, each.stop) for each in block.pieces]
        )
        if shuffle is None or not shuffle.rows:
            return places
        found: Int64s = places[permutation(block.rows, "rows", schedule.seed, schedule.epoch, lane, index)]
        return found

    def _same_row_group(self, places: Int64s) -> float:
        return _share_of_pairs(np.bincount(np.searchsorted(self._ends, places, side="right")))

    def _displacement(self, step: int, places: list[Int64s]) -> float:
        """The mean distance of the step's rows from their places in the table, as a share of the epoch."""
        here = (step + 0.5) * self._schedule.batch_size * self._schedule.lanes
        return float(np.abs(np.concatenate(places) - here).mean() / self._schedule.rows)


def _mean_rows(borders: Int64s) -> float:
    return float(borders[-1] - borders[0]) / (len(borders) - 1)


def _share_of_pairs(counts: Int64s) -> float:
    """The share of pairs of rows that are of one group, of which there are so many rows each."""
    counts = counts.astype(np.float64)
    total = counts.sum()
    return float((counts * (counts - 1)).sum() / (total * (total - 1))) if total > 1 else 1.0


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    if len(first) < 3 or not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def heat_strip(shares: tuple[float, ...]) -> str:
    """Shares of the regions of a table as characters, darker where there are more rows; a true shuffle is all `▒`."""
    levels = np.array([0.1, 0.5, 1.5, 3.0]) / REGIONS
    return "".join(" ░▒▓█"[int(np.searchsorted(levels, share, side="right"))] for share in shares)


def describe_shuffle(plan: SourcePlan, *, world_size: int) -> dict[str, Any]:
    """Describe the quality of the plan's shuffle and of two other settings, as plain values."""
    if plan.weights is not None:
        raise plan.spec.error(
            ("shuffle", "weights"),
            "draws rows, so that there is no true shuffle to compare with. Measure without it: "
            "the windows mix draws as they mix rows",
        )
    settings = [asdict(measure_shuffle(name, each, world_size=world_size)) for name, each in alternatives(plan)]
    width = row_bytes(plan)
    return {
        "lanes": plan.lanes,
        "world_size": world_size,
        "batch_size": plan.spec.batch.size,
        "regions": REGIONS,
        "settings": [{**setting, "bytes_held": setting["rows_held"] * width} for setting in settings],
    }


def shuffle_table(facts: dict[str, Any]) -> Group:
    """Render the facts: a column per setting, then where the rows of some batches come from."""
    settings = facts["settings"]
    title = f"how the shuffle mixes: lanes: {facts['lanes']}, batch size: {facts['batch_size']:,}"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for setting in settings:
        table.add_column(setting["name"].replace(": ", ":\n"), justify="right")
    table.add_column("true shuffle", justify="right")
    columns = [{**setting, "megabytes": setting["bytes_held"] / 1e6} for setting in settings]
    true_pairs = f"{settings[0]['same_row_group_true']:.2%}"
    for title, key, form, true in (
        ("blocks mixed", "blocks", ",", ""),
        ("rows of a block", "block_rows", ",", ""),
        ("pairs of one row group", "same_row_group", ".2%", true_pairs),
        ("… in a step of all lanes", "same_row_group_step", ".2%", true_pairs),
        ("displacement of rows", "displacement", ".2f", "1.00"),
        ("spread of batches", "spread", ",.1f", "1.0"),
        ("autocorrelation", "autocorrelation", "+.2f", "0.00"),
        ("decoded per row", "decoded", ".3f", ""),
        ("rows held per rank", "rows_held", ",", "all"),
        ("… estimated MB", "megabytes", ",.0f", ""),
    ):
        table.add_row(title, *(format(setting[key], form) for setting in columns), true)
    return Group(table, _picture(settings))


def _picture(settings: list[dict[str, Any]]) -> Text:
    lines = ["the places of a batch's rows in the table, a line per batch:"]
    for setting in settings:
        lines.append(f"{setting['name']}")
        lines += [f"  |{heat_strip(tuple(row))}|" for row in setting["regions"]]
    lines += ["true shuffle", f"  |{'▒' * REGIONS}|"]
    return Text("\n".join(lines), no_wrap=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline", type=Path)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plan = Pipeline.from_yaml(arguments.pipeline).plan(world_size=arguments.world_size).source
    facts = describe_shuffle(plan, world_size=arguments.world_size)
    if arguments.json:
        print(json.dumps(facts))
    else:
        Console().print(shuffle_table(facts))


if __name__ == "__main__":
    main()
