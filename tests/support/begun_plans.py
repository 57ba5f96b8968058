"""What `feedline init` would decide of facts that no file holds."""

from __future__ import annotations

from feedline.workbench.begin.init_plan import Choices, HeldOut, InitPlan
from feedline.workbench.begin.label_choice import choose_label, require_label
from feedline.workbench.begin.plan_pipeline import guess_choices, plan_pipeline
from feedline.workbench.begin.trial import by_hash
from feedline.workbench.profile.table_facts import TableFacts


def planned(
    facts: TableFacts, *, path: str = "warehouse/t", held_out: HeldOut | None = None, **choices: object
) -> InitPlan:
    """The plan of a table. held_out: rows that are held out (default: by a hash)."""
    chosen = guess_choices(facts, Choices(**choices))  # type: ignore[arg-type]
    label = choose_label(facts, require_label(facts, chosen.label))
    return plan_pipeline(facts, chosen, label=label, held_out=held_out or by_hash(facts, None), table=path)
