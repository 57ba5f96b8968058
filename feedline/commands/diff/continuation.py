"""Decide whether a run of one pipeline may continue with another: as it is, after a rebase, or not.

Runs in: the process of the command. The rule is that of trainers: the other pipeline's plan on the snapshot of the
state must be the state's plan, in one of the versions and with one of the windows that plans may have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from feedline.commands.diff.key_changes import plan_keys
from feedline.errors import FeedlineError
from feedline.planning.plan import Plan, fingerprint_facts
from feedline.planning.rebase import require_comparable
from feedline.planning.resolve import preview_plan, refuse_rebase
from feedline.planning.sources.make_mixed_plan import load_frozen
from feedline.spec import PipelineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """How a state of A continues with B.

    resume: on the state's snapshot; "as it is", "with changed features" (`features="changed"`), or "refused". rebase:
    onto the table as B reads it now; "possible", "refused", or "not needed", as that is the state's snapshot. why: of
    each that is refused, and what the trainer passes to `load_state_dict`.
    """

    resume: Literal["as it is", "with changed features", "refused"]
    rebase: Literal["possible", "refused", "not needed"]
    resume_why: str
    rebase_why: str


def describe_continuation(a: Plan, b: Plan) -> Continuation:
    """Whether a state that a run of `a` saves in mid-epoch can be loaded by a run of `b`."""
    problem = _plan_problem(a, b, b.spec)
    if problem is not None:
        rebase_why = "a rebase keeps which rows come when"
        return Continuation(resume="refused", rebase="refused", resume_why=problem, rebase_why=rebase_why)
    is_same = a.features_fingerprint == b.features_fingerprint
    name = b.spec.source_name
    why = [] if name is None else [f"of source {name} alone: the state of a job has to fit all, and how they are mixed"]
    why += (
        [] if is_same else ['what rows become differs: load_state_dict(state, features="changed") keeps the position']
    )
    rebase: Literal["possible", "refused", "not needed"] = "not needed"
    rebase_why = "both read the same snapshot"
    if a.snapshot.id != b.snapshot.id:
        why.append(f"it continues on the state's snapshot, {a.snapshot.id[:12]}")
        rebase, rebase_why = _rebase(a, b)
    return Continuation(
        resume="as it is" if is_same else "with changed features",
        rebase=rebase,
        resume_why="; ".join(why),
        rebase_why=rebase_why,
    )


def _plan_problem(a: Plan, b: Plan, spec: PipelineSpec) -> str | None:
    """Why the plan of B on the snapshot of A is not the plan of A; None if it is."""
    if spec.lanes is not None and spec.lanes != a.lanes:
        return f"which rows come when differs: lanes are {spec.lanes}, the state's {a.lanes}"
    on_snapshot = b
    if a.snapshot.id != b.snapshot.id or a.lanes != b.lanes:
        try:
            load_frozen(spec, a.snapshot.id)  # where a resumed run looks for it
            found = preview_plan(spec, [a.snapshot], lanes=a.lanes)
        except FeedlineError as error:
            return f"B cannot read the state's snapshot: {error}"
        assert isinstance(found, Plan)
        on_snapshot = found
    matched = on_snapshot.matching(a.fingerprint)
    if matched.fingerprint == a.fingerprint:
        return None
    keys = plan_keys(fingerprint_facts(a), fingerprint_facts(on_snapshot))
    return f"which rows come when differs, by {', '.join(keys)}"


def _rebase(a: Plan, b: Plan) -> tuple[Literal["possible", "refused"], str]:
    try:
        refuse_rebase(b.spec)
        require_comparable(a, b.snapshot)
    except FeedlineError as error:
        return "refused", str(error)
    why = 'load_state_dict(state, snapshot="rebase") continues on the table as it is'
    if b.spec.source.row_key is None:
        why += "; without source.row_key, rewritten files with delivered rows are refused"
    if a.features_fingerprint != b.features_fingerprint:
        why += '. Rebase with A first, then load the new state with features="changed"'
    return "possible", why
