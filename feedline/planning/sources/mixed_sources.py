"""Several sources as one: their shared window, what decides their rows, and their positions at every step.

Pure. Runs in: the feeder, the CLI, `Pipeline`. `MixedPlan` adds what feeders need.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar

from feedline.errors import DataError, FeedlineError, PlanError
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.state import PLAN_VERSION
from feedline.loader.wire.facts import BadFileFacts
from feedline.planning.mixing import MixingWindow, RowBytes, choose_window
from feedline.planning.plan import Plan
from feedline.planning.sources.source_passes import Passes, PassPlace, RestOfPass, Stop, epoch_steps, passes_of
from feedline.spec import PipelineSpec

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class MixedSources:
    """The plans of several sources. bound: without the window that they share. resumed_window: of `Plan`."""

    spec: PipelineSpec
    bound: tuple[Plan, ...]
    lanes: int
    resumed_window: MixingWindow | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names."""
        return tuple(source.name for source in self.spec.sources)

    @property
    def stop(self) -> Stop:
        """Where an epoch ends."""
        return "first" if self.spec.mix is None else self.spec.mix.stop

    @property
    def positions(self) -> Stop:
        """What decides positions: passes do not go on into an epoch that reads other snapshots."""
        return self.stop if self.epoch is None or isinstance(self.stop, str) else "all"

    @property
    def layout(self) -> SlotLayout:
        """That of every source."""
        return self.bound[0].layout

    @cached_property
    def window(self) -> MixingWindow:
        """The rows that a lane mixes, of all sources together."""
        every = [(each.whole or each).row_bytes for each in self.bound]
        pairs = zip(self.bound, every, strict=True)
        stored = sum(float(each.share) * row_bytes.stored for each, row_bytes in pairs)
        row_bytes = RowBytes(selected=max(each.selected for each in every), stored=stored)
        return self.resumed_window or choose_window(self.spec.shuffle, row_bytes)

    @cached_property
    def sources(self) -> tuple[Plan, ...]:
        """The plan of each source."""
        return tuple(each.with_window(self.window) for each in self.bound)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides which rows come when."""
        sources = [[name, each.fingerprint] for name, each in zip(self.names, self.sources, strict=True)]
        facts = {"version": PLAN_VERSION, "stop": self.stop, "sources": sources}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def features_fingerprint(self) -> str:
        """A digest of everything that decides what a row becomes."""
        content = json.dumps([each.features_fingerprint for each in self.bound])
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @property
    def snapshot_name(self) -> str:
        """The snapshots' names in a state, in the order of the sources."""
        return ",".join(each.snapshot_name for each in self.bound)

    @property
    def seed(self) -> int:
        return self.bound[0].seed

    @cached_property
    def pass_steps(self) -> tuple[int, ...]:
        """The steps of a whole pass through each source. Raises PlanError for a source that has less than one."""
        return tuple(self.named(index, partial(_pass_steps, each)) for index, each in enumerate(self.bound))

    @cached_property
    def rests(self) -> tuple[RestOfPass | None, ...]:
        """The pass of each source that a rebase has shortened."""
        return tuple(_rest_of(each) for each in self.sources)

    @cached_property
    def whole_steps(self) -> int:
        """The steps of an epoch that no rebase shortened."""
        return epoch_steps(self.stop, [passes_of(self.positions, 0, own) for own in self.pass_steps])

    @cached_property
    def rest(self) -> tuple[int, int] | None:
        """Epoch and step of the mix from which on the last rebase delivers its rest."""
        return max((rest.position(self.positions) for rest in self.rests if rest is not None), default=None)

    @property
    def epoch(self) -> int | None:
        """The only epoch that the plan is of, where a table is followed."""
        return next((each.border.epoch for each in self.bound if each.border is not None), None)

    def passes(self, epoch: int) -> tuple[Passes, ...]:
        """The passes of each source in an epoch."""
        pairs = zip(self.pass_steps, self.rests, strict=True)
        return tuple(passes_of(self.positions, epoch, steps, rest) for steps, rest in pairs)

    def places(self, epoch: int, step: int) -> tuple[PassPlace, ...]:
        """The position of each source before a step."""
        places = []
        start = 0 if isinstance(self.positions, str) else epoch * self.positions
        for each in self.passes(epoch):
            index, own = each.at(step)
            places.append(PassPlace(number=each.number_of(index), step=own, began=start + each.begin_of(index)))
        return tuple(places)

    def steps_of(self, epoch: int) -> int:
        """The steps of an epoch, with those before a rebase."""
        return max(epoch_steps(self.stop, self.passes(epoch)), self.first_step_of(epoch))

    def first_step_of(self, epoch: int) -> int:
        return self.rest[1] if self.rest is not None and self.rest[0] == epoch else 0

    @cached_property
    def source_rows(self) -> tuple[int, ...]:
        """The rows that each source selects."""
        return tuple(int(each.selection.rows.sum()) for each in self.bound)

    def dropped(self, steps: int) -> list[int]:
        """The rows of each source that the first steps of a whole pass do not deliver."""
        return [
            rows - min(steps, own) * self.lanes * each.spec.batch.size
            for rows, own, each in zip(self.source_rows, self.pass_steps, self.bound, strict=True)
        ]

    def null_warnings(self) -> list[str]:
        """Of nulls that features cannot hold."""
        return with_names(self.names, [each.gaps.warnings() for each in self.bound])

    def bad_files(self) -> tuple[BadFileFacts, ...]:
        return tuple(dict.fromkeys(bad for each in self.bound for bad in each.bad_files()))

    def named(self, index: int, ask: Callable[[], T]) -> T:
        """What `ask` answers for a source; errors name the source."""
        try:
            return ask()
        except (PlanError, DataError) as error:
            raise _with_name(error, self.names[index]) from error


def _with_name(error: FeedlineError, name: str) -> FeedlineError:
    return type(error)(f"source {name}: {error}")


def _pass_steps(plan: Plan) -> int:
    return plan.whole_schedule.steps


def _rest_of(plan: Plan) -> RestOfPass | None:
    rebase = plan.rebase
    if rebase is None:
        return None
    assert rebase.began is not None
    steps = plan.schedule(rebase.epoch).steps
    return RestOfPass(number=rebase.epoch, began=rebase.began, first_step=rebase.first_step, steps=steps)


def with_names(names: Sequence[str], texts: Sequence[Sequence[str]]) -> list[str]:
    """The texts about each source, with its name."""
    return [f"source {name}: {text}" for name, own in zip(names, texts, strict=True) for text in own]
