"""The plan of several sources: a plan of each, on its own snapshot, whose rows every step mixes in fixed numbers.

Runs in: the feeder, the CLI, `Pipeline.batches`. It only computes; `make_mixed_plan` reads. It has what a run needs of
a plan, so that feeders and trainers do not know how many sources there are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

from feedline.blocks.environment import Environment
from feedline.blocks.request import BlockRequest, Job
from feedline.errors import DataError, FeedlineError, PlanError
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.state import rebased_state
from feedline.loader.wire.facts import BadFileFacts, PlanFacts
from feedline.planning.mixing import MixingWindow, RowBytes, choose_window, possible_windows
from feedline.planning.plan import Plan
from feedline.planning.plan_version import newest_version
from feedline.planning.schedule import Block
from feedline.planning.sources.mixed_facts import mixed_facts, with_names
from feedline.planning.sources.mixed_schedule import MixedSchedule, SourceSchedules, split_index
from feedline.planning.sources.source_passes import Passes, PassPlace, RestOfPass, Stop, epoch_steps, passes_of
from feedline.spec import PipelineSpec
from feedline.spec.expectations import OnExpect
from feedline.spec.features import FeatureSpec


@dataclass(frozen=True, kw_only=True)
class MixedPlan:
    """A resolved pipeline of several sources. bound: their plans, without the window that they share. version,
    resumed_window: as of `Plan`."""

    spec: PipelineSpec
    bound: tuple[Plan, ...]
    lanes: int
    version: int
    resumed_window: MixingWindow | None = None

    @property
    def name(self) -> str:
        return self.bound[0].name

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names."""
        return tuple(source.name for source in self.spec.sources)

    @property
    def stop(self) -> Stop:
        """Where an epoch ends."""
        return "first" if self.spec.mix is None else self.spec.mix.stop

    @property
    def layout(self) -> SlotLayout:
        """That of every source."""
        return self.bound[0].layout

    @cached_property
    def window(self) -> MixingWindow:
        """The rows that a lane mixes, of all sources together."""
        every = [each.row_bytes for each in self.bound]
        stored = sum(float(each.share) * each.row_bytes.stored for each in self.bound)
        row_bytes = RowBytes(selected=max(each.selected for each in every), stored=stored)
        return self.resumed_window or choose_window(self.spec.shuffle, self.version, row_bytes)

    @cached_property
    def sources(self) -> tuple[Plan, ...]:
        """The plan of each source."""
        return tuple(each.at(self.version, self.window) for each in self.bound)

    def at(self, version: int, window: MixingWindow | None = None) -> MixedPlan:
        """This plan in another version, with a window of its own or one that a run has had."""
        if (version, window) == (self.version, self.resumed_window):
            return self
        return replace(self, version=version, resumed_window=window)

    def matching(self, fingerprint: str | None) -> MixedPlan:
        """This plan with the window that has a fingerprint, and as of a new run where none has."""
        new = self.at(newest_version(self.spec.shuffle))
        others = (self.at(new.version, window) for window in possible_windows(self.spec.shuffle, new.version))
        return next((plan for plan in chain((new,), others) if fingerprint in (None, plan.fingerprint)), new)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides which rows come when."""
        sources = [[name, each.fingerprint] for name, each in zip(self.names, self.sources, strict=True)]
        facts = {"version": self.version, "stop": self.stop, "sources": sources}
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
    def needs_artifacts(self) -> bool:
        """Whether features use what a fit, a file or an array holds: another artifact set would make another plan."""
        return any(each.needs_artifacts for each in self.bound)

    @property
    def is_fitted(self) -> bool:
        """Whether no fit is missing."""
        return all(each.is_fitted for each in self.bound)

    @property
    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """The features, with their expectations."""
        return self.bound[0].feature_specs

    @property
    def on_expect(self) -> OnExpect:
        return self.spec.on_expect

    @property
    def seed(self) -> int:
        return self.bound[0].seed

    def in_environment(self, environment: Environment) -> MixedPlan:
        """This plan for workers of another environment."""
        return replace(self, bound=tuple(each.in_environment(environment) for each in self.bound))

    def require_fitted(self) -> None:
        """Raise SpecError, with the command that helps, where a feature has no artifact."""
        for each in self.bound:
            each.require_fitted()

    # -- schedules --------------------------------------------------------------------------------------------------

    @cached_property
    def pass_steps(self) -> tuple[int, ...]:
        """The steps of a whole pass through each source. Raises PlanError for a source that has less than one."""
        return tuple(self._named(index, lambda each: each.whole_schedule.steps) for index in range(len(self.bound)))

    @cached_property
    def rests(self) -> tuple[RestOfPass | None, ...]:
        """The pass of each source that a rebase has shortened."""
        return tuple(_rest_of(each) for each in self.sources)

    @cached_property
    def whole_steps(self) -> int:
        """The steps of an epoch that no rebase shortened."""
        return epoch_steps(self.stop, [passes_of(self.stop, 0, own) for own in self.pass_steps])

    @cached_property
    def rest(self) -> tuple[int, int] | None:
        """Epoch and step of the mix from which on the last rebase delivers its rest."""
        return max((rest.position(self.stop) for rest in self.rests if rest is not None), default=None)

    def passes(self, epoch: int) -> tuple[Passes, ...]:
        """The passes of each source in an epoch."""
        pairs = zip(self.pass_steps, self.rests, strict=True)
        return tuple(passes_of(self.stop, epoch, steps, rest) for steps, rest in pairs)

    def places(self, epoch: int, step: int) -> tuple[PassPlace, ...]:
        """The position of each source before a step."""
        places = []
        start = 0 if isinstance(self.stop, str) else epoch * self.stop
        for each in self.passes(epoch):
            index, own = each.at(step)
            places.append(PassPlace(number=each.number_of(index), step=own, began=start + each.begin_of(index)))
        return tuple(places)

    def with_sources(self, sources: tuple[Plan, ...]) -> MixedPlan:
        """The plan of these sources in place of its own, which share its window."""
        return replace(self, bound=sources, resumed_window=self.window)

    def steps_of(self, epoch: int) -> int:
        """The steps of an epoch, with those before a rebase."""
        return max(epoch_steps(self.stop, self.passes(epoch)), self._first_step(epoch))

    def _first_step(self, epoch: int) -> int:
        return self.rest[1] if self.rest is not None and self.rest[0] == epoch else 0

    def schedule(self, epoch: int) -> MixedSchedule:
        """The epoch's schedule. Raises PlanError where it has no step."""
        passes, steps = self.passes(epoch), self.steps_of(epoch)
        return MixedSchedule(
            sources=[SourceSchedules(own, each.schedule) for own, each in zip(passes, self.sources, strict=True)],
            lanes=self.lanes,
            batch_size=self.spec.batch.size,
            steps=steps,
            rows=sum(self.source_rows),
            rows_dropped=sum(self.dropped(steps)),
            first_step=self._first_step(epoch),
        )

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

    def _place(self, block: Block, epoch: int) -> tuple[Plan, Block, int]:
        """The plan of a block's source, the block there, and the number of its pass."""
        pass_index, source, index = split_index(block.index, len(self.sources))
        number = self.passes(epoch)[source].number_of(pass_index)
        return self.sources[source], replace(block, index=index), number

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the tasks of blocks share: each block is of one."""
        return tuple(each.job for each in self.bound)

    def job_of(self, block: Block) -> Job:
        """The job of a block."""
        return self.bound[split_index(block.index, len(self.bound))[1]].job

    def request(self, block: Block, epoch: int) -> BlockRequest:
        """What the block's task reads and how it permutes."""
        plan, own, number = self._place(block, epoch)
        return replace(plan.request(own, number), epoch=epoch)

    # -- facts ------------------------------------------------------------------------------------------------------

    def without_gaps(self) -> MixedPlan:
        """This plan. Raises DataError where the first epoch is certain to meet a null that a feature cannot hold."""
        for index, (each, rows) in enumerate(zip(self.bound, self.dropped(self.whole_steps), strict=True)):
            if each.gaps.nulls and each.rebase is None:
                self._named(index, lambda plan, rows=rows: plan.gaps.refuse(rows))
        return self

    def null_warnings(self) -> list[str]:
        """Of nulls that features cannot hold."""
        return with_names(self.names, [each.gaps.warnings() for each in self.bound])

    def bad_files(self) -> tuple[BadFileFacts, ...]:
        return tuple(dict.fromkeys(bad for each in self.bound for bad in each.bad_files()))

    def facts(self) -> PlanFacts:
        """The facts that a trainer needs."""
        return mixed_facts(self)

    def state_after(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state that continues a run on this plan, which `Pipeline.rebase` made from the run's state."""
        return rebased_state(self.facts(), state)

    def _named(self, index: int, ask: Any) -> Any:
        """What a source's plan answers; errors name the source."""
        try:
            return ask(self.bound[index])
        except (PlanError, DataError) as error:
            raise _with_name(error, self.names[index]) from error


# A plan of one source, or of several.
RunPlan: TypeAlias = Plan | MixedPlan


def require_plain(plan: RunPlan, what: str) -> Plan:
    """The plan of the only source. Raises PlanError where there are several."""
    if isinstance(plan, MixedPlan):
        raise PlanError(f"{what} reads one table: got the sources {', '.join(plan.names)}. Name one with --source")
    return plan


def _with_name(error: FeedlineError, name: str) -> FeedlineError:
    return type(error)(f"source {name}: {error}")


def _rest_of(plan: Plan) -> RestOfPass | None:
    rebase = plan.rebase
    if rebase is None:
        return None
    assert rebase.began is not None
    steps = plan.schedule(rebase.epoch).steps
    return RestOfPass(number=rebase.epoch, began=rebase.began, first_step=rebase.first_step, steps=steps)
