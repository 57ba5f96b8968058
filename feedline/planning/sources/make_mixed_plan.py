"""Make the plan of a pipeline: of its source, or of each of its sources, whose batches must have the same columns.

Runs in: the feeder, the CLI, `Pipeline.batches`. It reads footer facts, artifacts and, to count rows, the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from feedline.artifacts.store import ArtifactSetRef
from feedline.errors import StateError
from feedline.loader.encoding.layout import SlotColumn
from feedline.planning.binding.fitted_artifacts import artifact_set_ref
from feedline.planning.follow.border import Border, load_border, split_border
from feedline.planning.make_plan import make_plan
from feedline.planning.plan import Plan
from feedline.planning.sources.mixed_plan import MixedPlan, RunPlan
from feedline.planning.table_snapshot import as_read
from feedline.spec import PipelineSpec
from feedline.spec.features import FeatureSpec
from feedline.warehouse.rebase.remaining_rows import Rebase, split_name
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.parallel import Map

# What the columns of a batch must have in common, as errors name it.
_COMMON = ("dtype", "unit", "width", "weighted", "num_embeddings", "lookups", "dedup", "arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSource:
    """A source's snapshot, the rest of its pass after a rebase, the border of the epoch that reads it, and its
    selection, where another plan has counted."""

    snapshot: Snapshot
    rebase: Rebase | None = None
    border: Border | None = None
    selection: Selection | None = None

    @classmethod
    def of(cls, plan: Plan) -> FrozenSource:
        """What another plan of the same source is made of."""
        return cls(snapshot=plan.snapshot, rebase=plan.rebase, border=plan.border, selection=plan.selection)


def snapshot_names(spec: PipelineSpec, name: str) -> list[str]:
    """The name of each source's snapshot. Raises StateError where it is the name of another number of sources."""
    names, sources = name.split(","), len(spec.per_source())
    if len(names) != sources:
        raise StateError(
            f"the state belongs to another plan: it has snapshots of {len(names)} sources, pipeline.yaml has "
            f"{sources}. Use the pipeline.yaml and overrides of the run that saved it"
        )
    return names


def load_frozen(spec: PipelineSpec, name: str, taken: Sequence[Snapshot] | None = None) -> list[FrozenSource]:
    """Load what a name stands for, of each source. taken: their snapshots, if these are at hand."""
    frozen = []
    for index, (each, own) in enumerate(zip(spec.per_source(), snapshot_names(spec, name), strict=True)):
        of_border, rest = split_name(own)
        id, border = split_border(of_border)
        snapshot = as_read(each, Snapshot.load(each.work_dir, id)) if taken is None else taken[index]
        frozen.append(
            FrozenSource(
                snapshot=snapshot,
                rebase=None if rest is None else Rebase.load(each.work_dir, rest),
                border=None if border is None else load_border(each.work_dir, border),
            )
        )
    return frozen


def plan_sources(
    spec: PipelineSpec,
    frozen: Sequence[FrozenSource],
    *,
    lanes: int,
    map: Map | None = None,
    artifacts: ArtifactSetRef | None = None,
    exclude: bool = True,
    earlier: Callable[[PipelineSpec, Border | None], Snapshot | None] = lambda spec, border: None,
) -> RunPlan:
    """Resolve a spec against the snapshot of each source. map, artifacts, exclude: as of `make_plan`. earlier: too,
    for a source and a border.

    Raises SpecError, with file, line and path, where pipeline.yaml does not match a table, and where the sources'
    batches would differ.
    """
    plans: list[Plan] = []
    for each, one in zip(spec.per_source(), frozen, strict=True):
        ref = artifacts
        if ref is None and plans and (manifest := plans[0].job.artifacts.manifest) is not None:
            ref = artifact_set_ref(each, manifest)  # a fit may have ended meanwhile
        plans.append(
            make_plan(
                each,
                one.snapshot,
                lanes=lanes,
                map=map,
                rebase=one.rebase,
                artifacts=ref,
                selection=one.selection,
                exclude=exclude,
                border=one.border,
                earlier=partial(earlier, each, one.border),
            )
        )
    if not spec.is_mixed:
        return plans[0]
    for name, plan in zip(spec.sources[1:], plans[1:], strict=True):
        _refuse_differences(spec, plans[0], spec.sources[0].name, plan, name.name)
    return MixedPlan(spec=spec, bound=tuple(plans), lanes=lanes)


def _refuse_differences(spec: PipelineSpec, first: Plan, first_name: str, other: Plan, other_name: str) -> None:
    """Raise SpecError for a feature whose values differ in type, or in what they were learnt from."""
    pairs = zip(first.layout.schema.columns, other.layout.schema.columns, strict=True)
    for index, (one, two) in enumerate(pairs):
        path = _path(spec, other.spec.features, one.name)
        differing = next((key for key in _COMMON if getattr(one, key) != getattr(two, key)), None)
        if differing is not None:
            got, expected = _describe(two, differing), _describe(one, differing)
            message = f"the batches of two sources differ in {one.name!r}: got {got} of source {other_name}, expected "
            raise spec.error(path, f"{message}{expected} as of {first_name}. Change its ops, or the column's type")
        fits, others = first.features.fits_of(index), other.features.fits_of(index)
        if fits != others:
            message = f"{one.name!r} learns from other values in source {other_name} than in {first_name}"
            remedy = "A feature learns once, from all sources: redefine its column or expression, and keep its ops"
            raise spec.error(path, f"{message}: got {two.chain}, expected {one.chain}. {remedy}")


def _path(spec: PipelineSpec, features: Sequence[FeatureSpec], name: str) -> tuple[str | int, ...]:
    return next((feature.path for feature in features if feature.name == name), ("sources",))


def _describe(column: SlotColumn, key: str) -> str:
    """What differs: a type, or how many values or ids there are."""
    if key in ("dtype", "arrow", "unit"):
        return column.arrow or column.dtype
    if key == "width":
        return f"{column.width} values"
    if key == "num_embeddings":
        return "no bound of its ids" if column.num_embeddings is None else f"ids below {column.num_embeddings:,}"
    if key == "dedup":
        return "no deduplicated group" if column.dedup is None else f"the deduplicated group {column.dedup!r}"
    return "weights" if column.weighted else f"no weights, {column.lookups} lookups"
