"""The plan of several sources: a plan of each, on its own snapshot, whose rows every step mixes in fixed numbers.

Runs in: the feeder, the CLI, `Pipeline.batches`. It only computes; `make_mixed_plan` reads. It has what a run needs of
a plan, so that feeders and trainers do not know how many sources there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from feedline.blocks.environment import Environment
from feedline.blocks.request import BlockRequest, Job
from feedline.errors import PlanError
from feedline.loader.state import rebased_state
from feedline.loader.wire.facts import PlanFacts
from feedline.planning.mixing import MixingWindow
from feedline.planning.plan import Plan
from feedline.planning.schedule import Block
from feedline.planning.sources.mixed_facts import mixed_facts
from feedline.planning.sources.mixed_schedule import MixedSchedule, SourceSchedules, split_index
from feedline.planning.sources.mixed_sources import MixedSources
from feedline.spec.expectations import OnExpect
from feedline.spec.features import FeatureSpec


@dataclass(frozen=True, kw_only=True)
class MixedPlan(MixedSources):
    """A resolved pipeline of several sources, independent of epoch and rank."""

    @property
    def name(self) -> str:
        return self.bound[0].name

    def with_window(self, window: MixingWindow | None) -> MixedPlan:
        """This plan with the window of a run that is continued, or of a new run (None)."""
        return self if window in (self.resumed_window, self.window) else replace(self, resumed_window=window)

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

    def in_environment(self, environment: Environment) -> MixedPlan:
        """This plan for workers of another environment."""
        return replace(self, bound=tuple(each.in_environment(environment) for each in self.bound))

    def with_sources(self, sources: tuple[Plan, ...]) -> MixedPlan:
        """The plan of these sources in place of its own, which share its window."""
        return replace(self, bound=sources, resumed_window=self.window)

    def require_fitted(self) -> None:
        """Raise SpecError, with the command that helps, where a feature has no artifact."""
        for each in self.bound:
            each.require_fitted()

    def without_gaps(self) -> MixedPlan:
        """This plan. Raises DataError where the first epoch is certain to meet a null that a feature cannot hold."""
        for index, (each, rows) in enumerate(zip(self.bound, self.dropped(self.whole_steps), strict=True)):
            if each.gaps.nulls and each.rebase is None:
                self.named(index, partial(each.gaps.refuse, rows))
        return self

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
            first_step=self.first_step_of(epoch),
        )

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

    def facts(self) -> PlanFacts:
        """The facts that a trainer needs."""
        return mixed_facts(self)

    def state_after(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state that continues a run on this plan, which `Pipeline.rebase` made from the run's state."""
        return rebased_state(self.facts(), state)


# A plan of one source, or of several.
RunPlan: TypeAlias = Plan | MixedPlan


def require_plain(plan: RunPlan, what: str) -> Plan:
    """The plan of the only source. Raises PlanError where there are several."""
    if isinstance(plan, MixedPlan):
        message = f"{what} reads one table: got the sources {', '.join(plan.names)}"
        raise PlanError(f"{message}. Name one with --source, or Pipeline.of_source")
    return plan
