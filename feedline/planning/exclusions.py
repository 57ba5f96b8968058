"""Find the exclusion that a pipeline names, or that a run had: bad rows of a snapshot that a plan leaves out.

Runs in: the feeder, the CLI, `Pipeline`. `source.exclude` belongs to one snapshot, filter and sample, and is refused
beside others. Whoever plans with one keeps a copy in `work_dir`, where it is found again for a state: the state's plan
says by its fingerprint which it was.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

from feedline.config import PipelineSpec
from feedline.errors import CorruptFileError, StateError
from feedline.planning.source_plan import SourcePlan
from feedline.planning.table_snapshot import writing_to_work_dir
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.selection.exclusion import Exclusion, kept_exclusions
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import redact

_PATH = ("source", "exclude")
_REMEDY = "Write it again with `feedline check --rows --out FILE`"


def load_exclusion(spec: PipelineSpec) -> Exclusion | None:
    """The exclusion that `source.exclude` names; None without one. Raises SpecError where the file cannot be read."""
    file = spec.source.exclude
    if file is None:
        return None
    try:
        return Exclusion.read(file)
    except FileNotFoundError:
        message = f"{redact(file)} does not exist: expected a file that `feedline check --rows` wrote"
    except (CorruptFileError, OSError) as error:
        message = f"no exclusion can be read from {redact(file)}: {error}"
    raise spec.error(_PATH, f"{message}. {_REMEDY}")


def named_exclusion(spec: PipelineSpec, snapshot: Snapshot) -> Exclusion | None:
    """The same, kept in `work_dir`. Raises SpecError, with both values, where it belongs to another snapshot, filter or
    sample."""
    exclusion = load_exclusion(spec)
    if exclusion is None:
        return None
    for name, theirs, mine in _mismatches(spec, snapshot, exclusion):
        message = f"the exclusion belongs to another {name}: got {theirs}, expected {mine}. {_REMEDY}"
        instead = "name the snapshot that it belongs to in source.snapshot" if name == "snapshot" else "leave it out"
        raise spec.error(_PATH, f"{message}, or {instead}")
    with writing_to_work_dir(spec):
        exclusion.save(spec.work_dir)
    return exclusion


def matching_exclusion(spec: PipelineSpec, snapshot: Snapshot) -> Exclusion | None:
    """As `load_exclusion`; None also for one of another snapshot, filter or sample."""
    exclusion = load_exclusion(spec)
    return None if exclusion is None or any(_mismatches(spec, snapshot, exclusion)) else exclusion


def _mismatches(spec: PipelineSpec, snapshot: Snapshot, exclusion: Exclusion) -> Iterator[tuple[str, object, object]]:
    """What an exclusion belongs to and the pipeline has otherwise: its name, the exclusion's and the pipeline's."""
    origin = exclusion.origin
    for name, theirs, mine in (
        ("snapshot", origin.snapshot, snapshot.id),
        ("source.where", origin.where, spec.source.where),
        ("source.sample", _sample_text(origin.sample), _sample_text(recorded_sample(spec))),
    ):
        if theirs != mine:
            yield name, theirs, mine


def recorded_sample(spec: PipelineSpec) -> dict[str, object] | None:
    """`source.sample` as an exclusion records it."""
    sample = Sample.of(spec.source.sample)
    return None if sample is None else sample.to_json()


def with_exclusion_of(plan: SourcePlan, fingerprint: str) -> SourcePlan:
    """The plan with the exclusion that has this fingerprint; if none has, without an exclusion."""
    for exclusion in _exclusions_of(plan):
        with contextlib.suppress(StateError):  # it was found among other rows
            found = _excluding(plan, exclusion)
            if found.fingerprint == fingerprint:
                return found
    return _excluding(plan, None)


def explain_exclusion(plan: SourcePlan, fingerprint: str) -> str | None:
    """What to do with a state of another plan, if only its exclusion is another; None if more is."""
    found = with_exclusion_of(plan, fingerprint)
    if found.fingerprint != fingerprint:
        return None
    theirs, mine = found.selection.excludes, plan.selection.excludes
    same = "leave source.exclude out" if theirs is None else f"name {theirs.save(plan.spec.work_dir)} in source.exclude"
    return (
        f"Its run had {_name(theirs)} and pipeline.yaml has {_name(mine)} in source.exclude. Load the state with "
        'snapshot="rebase" (or `feedline rebase`) to continue its epoch without the rows that are excluded now, or '
        f"{same} to go on as before"
    )


def _excluding(plan: SourcePlan, exclusion: Exclusion | None) -> SourcePlan:
    return replace(plan, selection=plan.selection.without(exclusion))


def _name(exclusion: Exclusion | None) -> str:
    return "nothing" if exclusion is None else exclusion.id


def _exclusions_of(plan: SourcePlan) -> Iterator[Exclusion | None]:
    """None, and the exclusions that runs of the plan's pipeline on its snapshot may have had."""
    yield None
    spec = plan.spec
    own = (spec.source.where, _sample_text(recorded_sample(spec)))
    for exclusion in kept_exclusions(spec.work_dir, plan.snapshot.id):
        if (exclusion.origin.where, _sample_text(exclusion.origin.sample)) == own:
            yield exclusion


def _sample_text(sample: object) -> str:
    return "none" if sample is None else json.dumps(sample, sort_keys=True)
