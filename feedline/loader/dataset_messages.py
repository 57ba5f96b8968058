"""The warnings and lines that a dataset writes, and the error of an iterator that was replaced.

Runs in: the trainer.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from feedline.loader.launcher import RankInfo, describe_ranks
from feedline.loader.plan_descriptions import describe_bad_files, describe_rebase
from feedline.loader.wire.facts import PlanFacts
from feedline.resources.cgroups import available_cores

_printed_ranks: set[RankInfo] = set()

REPLACED = (
    "this iterator was replaced: got next() on an older iter(dataset), expected the newest. A dataset has one stream; "
    "make a second dataset to read twice at once"
)

SHARED = (
    "two threads read one dataset: got next() while another thread waits for a batch, expected one thread at a time. "
    "Read in one thread, which hands batches to the others through a queue"
)


def warn_of_plan(facts: PlanFacts, last: PlanFacts | None) -> None:
    """Warn of bad files and of nulls, unless the last plan had the same."""
    if facts.bad_files and (last is None or facts.bad_files != last.bad_files):
        warnings.warn(describe_bad_files(facts.bad_files), UserWarning, stacklevel=4)
    for warning in facts.nulls if last is None or facts.nulls != last.nulls else ():
        warnings.warn(warning, UserWarning, stacklevel=4)


def print_ranks(ranks: RankInfo) -> None:
    """Print once which rank this process found itself to be."""
    if ranks not in _printed_ranks:
        _printed_ranks.add(ranks)
        print(describe_ranks(ranks, available_cores()), file=sys.stderr)


def print_rebase(ranks: RankInfo, facts: PlanFacts, state: Mapping[str, Any]) -> None:
    """Print on rank 0 what a rebase has changed."""
    if ranks.global_rank == 0:
        rest = facts.rest if facts.snapshot != state["snapshot"] else None
        outcome = "the table has not changed" if rest is None else describe_rebase(rest)
        print("\n".join(f"feedline: rebase: {line}" for line in outcome.splitlines()), file=sys.stderr)
