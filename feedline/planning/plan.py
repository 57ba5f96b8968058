"""A plan: what a pipeline delivers from the snapshots of its sources, as schedules and block requests.

Runs in: the feeder, the CLI, `Pipeline.batches`. It only computes; `make_plan` reads. Every step has a fixed number of
rows of each source, and a plan of one source is the case of one. Of its two fingerprints, `plan` covers which rows come
when, `features` what a row becomes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

from feedline.blocks.environment import Environment, environment_text
from feedline.blocks.request import BlockRequest, Job
from feedline.config import PipelineSpec
from feedline.config.features import FeatureSpec, OnExpect
from feedline.dataclass import dataclass
from feedline.errors import DataError, PlanError
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.state import PLAN_VERSION, rebased_state
from feedline.loader.wire.codec import from_values
from feedline.loader.wire.facts import (
    BadFileFacts,
    BucketFacts,
    ColumnGroup,
    PlanFacts,
    RebaseChanges,
    RestFacts,
    SourceFacts,
)
from feedline.planning.bucket_schedule import BucketSchedule
from feedline.planning.epoch_schedule import (
    EpochSchedule,
    Passes,
    PassPlace,
    RestOfPass,
    SourceSchedules,
    Stop,
    epoch_steps,
    passes_of,
    split_index,
)
from feedline.planning.mixing import MixingWindow, RowBytes, choose_window
from feedline.planning.schedule import Block
from feedline.planning.source_plan import SourcePlan, group_name

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A resolved pipeline, independent of epoch and rank. sources: the plan of each. window: the rows that a lane mixes
    of all of them together."""

    spec: PipelineSpec
    sources: tuple[SourcePlan, ...]
    window: MixingWindow

    @classmethod
    def of(cls, spec: PipelineSpec, sources: Sequence[SourcePlan], window: MixingWindow | None = None) -> Plan:
        """The plan of these sources. window: of the run that is continued (None: of a new run, which bytes choose)."""
        window = window or choose_window(spec.shuffle, _row_bytes(sources), sources[0].lanes)
        return cls(spec=spec, sources=tuple(each.with_window(window) for each in sources), window=window)

    def with_window(self, window: MixingWindow | None) -> Plan:
        """This plan with the window of a run that is continued, or of a new run (None)."""
        other = Plan.of(self.spec, self.sources, window)
        return self if other.window == self.window else other

    def with_sources(self, sources: Sequence[SourcePlan]) -> Plan:
        """The plan of these sources in place of its own, with its window."""
        return Plan.of(self.spec, sources, self.window)

    def in_environment(self, environment: Environment) -> Plan:
        """This plan for workers of another environment."""
        return replace(self, sources=tuple(each.in_environment(environment) for each in self.sources))

    @property
    def source(self) -> SourcePlan:
        """The plan of the only source. Raises PlanError where there are several."""
        return self.source_for("this")

    def source_for(self, what: str) -> SourcePlan:
        """The same. what: reads one table, as errors name it."""
        if len(self.sources) > 1:
            message = f"{what} reads one table: got the sources {', '.join(self.names)}"
            raise PlanError(f"{message}. Name one with --source, or Pipeline.of_source")
        return self.sources[0]

    # -- what decides rows and features -------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return "".join(character if character.isalnum() else "_" for character in self.spec.name)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources' names; empty of a pipeline with one `source`."""
        return tuple(source.name for source in self.spec.sources)

    @property
    def lanes(self) -> int:
        return self.sources[0].lanes

    @property
    def layout(self) -> SlotLayout:
        """That of every source."""
        return self.sources[0].layout

    @property
    def seed(self) -> int:
        return self.sources[0].seed

    @cached_property
    def fingerprint(self) -> str:
        """A digest of everything that decides which rows come when."""
        if not self.names:
            return self.sources[0].fingerprint
        sources = [[name, each.fingerprint] for name, each in zip(self.names, self.sources, strict=True)]
        return _digest({"version": PLAN_VERSION, "stop": self.stop, "sources": sources})

    @property
    def features_fingerprint(self) -> str:
        """A digest of everything that decides what a row becomes, in all features of the pipeline."""
        prints = [each.features_fingerprint for each in self.sources]
        return _digest(prints) if self.names else prints[0]

    @property
    def snapshot_name(self) -> str:
        """The snapshots' names in a state, in the order of the sources."""
        return ",".join(each.snapshot_name for each in self.sources)

    @property
    def needs_artifacts(self) -> bool:
        """Whether features use what a fit, a file or an array holds: another artifact set would make another plan."""
        return any(each.needs_artifacts for each in self.sources)

    @property
    def is_fitted(self) -> bool:
        """Whether no fit is missing."""
        return all(not each.features.missing_fits for each in self.sources)

    def require_fitted(self) -> None:
        """Raise SpecError, with the command that helps, where a feature has no artifact."""
        for each in self.sources:
            each.require_fitted()

    @property
    def feature_specs(self) -> tuple[FeatureSpec, ...]:
        """The features, with their expectations."""
        return self.sources[0].job.features

    @property
    def on_expect(self) -> OnExpect:
        return self.spec.on_expect

    # -- epochs -------------------------------------------------------------------------------------------------------

    @property
    def stop(self) -> Stop:
        """Where an epoch ends."""
        return "first" if self.spec.mix is None else self.spec.mix.stop

    @property
    def epoch(self) -> int | None:
        """The only epoch that the plan is of, where a table is followed."""
        return next((each.border.epoch for each in self.sources if each.border is not None), None)

    @property
    def positions(self) -> Stop:
        """What decides positions: passes do not go on into an epoch that reads other snapshots."""
        return self.stop if self.epoch is None or isinstance(self.stop, str) else "all"

    @cached_property
    def pass_steps(self) -> tuple[int, ...]:
        """The steps of a whole pass through each source. Raises PlanError for a source that has less than one."""
        return tuple(self._named(index, partial(_pass_steps, each)) for index, each in enumerate(self.sources))

    @cached_property
    def rests(self) -> tuple[RestOfPass | None, ...]:
        """The pass of each source that a rebase has shortened."""
        return tuple(_rest_of(each) for each in self.sources)

    @cached_property
    def rest(self) -> tuple[int, int] | None:
        """Epoch and step from which on the last rebase delivers its rest."""
        return max((rest.position(self.positions) for rest in self.rests if rest is not None), default=None)

    @cached_property
    def whole_steps(self) -> int:
        """The steps of an epoch that no rebase shortened."""
        return epoch_steps(self.stop, [passes_of(self.positions, 0, own) for own in self.pass_steps])

    def passes(self, epoch: int) -> tuple[Passes, ...]:
        """The passes of each source in an epoch."""
        return tuple(self._passes_of(source, epoch) for source in range(len(self.sources)))

    def _passes_of(self, source: int, epoch: int) -> Passes:
        return passes_of(self.positions, epoch, self.pass_steps[source], self.rests[source])

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
        return tuple(int(each.selection.rows.sum()) for each in self.sources)

    def dropped(self, steps: int) -> list[int]:
        """The rows of each source that the first steps of a whole pass do not deliver."""
        return [
            each.whole_schedule.rows_dropped if steps >= own else rows - steps * self.lanes * each.spec.batch.size
            for rows, own, each in zip(self.source_rows, self.pass_steps, self.sources, strict=True)
        ]

    def schedule(self, epoch: int) -> EpochSchedule:
        """The epoch's schedule. Raises PlanError where it has no step."""
        return EpochSchedule(
            sources=[
                SourceSchedules(passes, each.schedule)
                for passes, each in zip(self.passes(epoch), self.sources, strict=True)
            ],
            lanes=self.lanes,
            batch_size=self.spec.batch.size,
            steps=self.steps_of(epoch),
            first_step=self.first_step_of(epoch),
        )

    # -- blocks -------------------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What the tasks of blocks share: each block is of one."""
        return tuple(each.job for each in self.sources)

    def job_of(self, block: Block) -> Job:
        """The job of a block."""
        return self.sources[split_index(block.index, len(self.sources))[1]].job

    def request(self, block: Block, epoch: int) -> BlockRequest:
        """What the block's task reads and how it permutes."""
        pass_index, source, index = split_index(block.index, len(self.sources))
        number = self._passes_of(source, epoch).number_of(pass_index)
        own = block if index == block.index else replace(block, index=index)
        request = self.sources[source].request(own, number)
        return request if number == epoch else replace(request, epoch=epoch)

    # -- facts --------------------------------------------------------------------------------------------------------

    def facts(self) -> PlanFacts:
        """The facts that a trainer needs; `steps` and rows are those of a whole epoch."""
        steps = self.whole_steps
        return PlanFacts(
            snapshot=self.snapshot_name,
            plan=self.fingerprint,
            features=self.features_fingerprint,
            environment=environment_text(self.sources[0].job.environment),
            seed=self.seed,
            lanes=self.lanes,
            batch_size=self.spec.batch.size,
            window_rows=self.window.rows,
            window_blocks=self.window.blocks,
            steps=steps,
            rows=sum(self.source_rows),
            rows_dropped=sum(self.dropped(steps)),
            bad_files=self.bad_files(),
            nulls=tuple(self.null_warnings()),
            absent=tuple(self._with_names([each.gaps.notes() for each in self.sources])),
            schema=self.layout.schema,
            rest=_rest_facts(self),
            sources=source_facts(self) if self.names else (),
            column_group=_column_group_of(self.sources),
            epoch=self.epoch,
            buckets=bucket_facts(self.sources[0]),
        )

    def state_after(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """The state that continues a run on this plan, which `Pipeline.rebase` made from the run's state."""
        return rebased_state(self.facts(), state)

    def bad_files(self) -> tuple[BadFileFacts, ...]:
        return tuple(dict.fromkeys(bad for each in self.sources for bad in each.bad_files()))

    def null_warnings(self) -> list[str]:
        """Of nulls that features cannot hold."""
        return self._with_names([each.gaps.warnings() for each in self.sources])

    def without_gaps(self) -> Plan:
        """This plan. Raises DataError where a whole epoch is certain to meet a null that a feature cannot hold."""
        for index, each in enumerate(self.sources):
            if each.gaps.nulls and each.rebase is None:
                self._named(index, partial(each.gaps.refuse, self.dropped(self.whole_steps)[index]))
        return self

    def _named(self, index: int, ask: Callable[[], T]) -> T:
        """What `ask` answers for a source; errors name the source, if it has a name."""
        try:
            return ask()
        except (PlanError, DataError) as error:
            if not self.names:
                raise
            raise type(error)(f"source {self.names[index]}: {error}") from error

    def _with_names(self, texts: Sequence[Sequence[str]]) -> list[str]:
        """The texts about each source, with its name, if it has one."""
        names = [f"source {name}: " for name in self.names] or [""]
        return [f"{name}{text}" for name, own in zip(names, texts, strict=True) for text in own]


def source_facts(plan: Plan) -> tuple[SourceFacts, ...]:
    """The named sources, with the passes that a whole epoch makes through each."""
    steps, of_source = plan.whole_steps, zip(plan.names, plan.sources, plan.source_rows, plan.pass_steps, strict=True)
    return tuple(
        SourceFacts(name=name, batch_rows=each.spec.batch.size, rows=rows, pass_steps=own, passes=steps / own)
        for name, each, rows, own in of_source
    )


def _row_bytes(sources: Sequence[SourcePlan]) -> RowBytes:
    """The bytes of a row of all sources together, by which their window is chosen: of the widest, and of a mean one."""
    every, total = [(each.whole or each).row_bytes for each in sources], sum(each.share for each in sources)
    stored = [float(each.share / total) * own.stored for each, own in zip(sources, every, strict=True)]
    rows = sum(each.rows for each in every)
    return RowBytes(selected=max(each.selected for each in every), stored=sum(stored), rows=rows)


def _pass_steps(plan: SourcePlan) -> int:
    return plan.whole_schedule.steps


def _rest_of(plan: SourcePlan) -> RestOfPass | None:
    """The pass that a rebase shortened; that of an only source began with its epoch."""
    rebase = plan.rebase
    if rebase is None:
        return None
    steps = plan.schedule(rebase.epoch).steps
    return RestOfPass(number=rebase.epoch, began=rebase.began or 0, first_step=rebase.first_step, steps=steps)


def _rest_facts(plan: Plan) -> RestFacts | None:
    """The epoch that the last rebase shortened, and how the tables have changed. rows: of an only source, those that
    remain, of which some are dropped; of several, those that are delivered."""
    if plan.rest is None:
        return None
    epoch, step = plan.rest
    if not plan.names:
        schedule = plan.sources[0].schedule(epoch)
        rows, dropped = schedule.rows, schedule.rows_dropped
    else:
        rows = (plan.steps_of(epoch) - step) * plan.lanes * plan.spec.batch.size
        dropped = sum(plan.dropped(plan.steps_of(epoch)))
    pairs = zip(plan.sources, plan.rests, strict=True)
    changes = [
        each.rebase.changes
        for each, rest in pairs
        if each.rebase is not None and rest is not None and rest.position(plan.positions) == plan.rest
    ]
    return RestFacts(
        epoch=epoch,
        first_step=step,
        steps=plan.steps_of(epoch),
        rows=rows,
        rows_dropped=dropped,
        changes=from_values(RebaseChanges, {**_sum_of_changes(changes), "epoch": epoch, "step": step}),
    )


def _sum_of_changes(changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The changes of several tables as one: names joined, counts added."""
    total = dict(changes[0])
    for name in ("from", "to"):
        total[name] = ",".join(each[name] for each in changes)
    for name in ("files", "rows"):
        total[name] = {key: sum(each[name][key] for each in changes) for key in total[name]}
    return total


def _column_group_of(plans: Sequence[SourcePlan]) -> ColumnGroup | None:
    if plans[0].whole is None:
        return None
    digests = [plan.features.fingerprint[:32] for plan in plans]
    digest = digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()[:32]
    return ColumnGroup(name=group_name(plans[0]), digest=digest)


def bucket_facts(plan: SourcePlan) -> tuple[BucketFacts, ...]:
    """The buckets of an only source: several have none."""
    schedule = plan.whole_schedule
    if not isinstance(schedule, BucketSchedule):
        return ()
    buckets = zip(plan.spec.batch.buckets or (), schedule.sizes, schedule.bucket_steps.tolist(), strict=True)
    return tuple(BucketFacts(bound=bound, batch_size=size, steps=steps) for bound, size, steps in buckets)


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
