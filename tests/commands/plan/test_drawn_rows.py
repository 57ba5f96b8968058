"""The line of `feedline plan` about rows that are drawn by weight."""

from __future__ import annotations

from feedline.commands.plan.parts import draws_text


def test_row_groups_that_are_not_drawn_are_counted():
    facts = {"column": "weight", "most_draws_per_row": 12.345, "row_groups_not_drawn": 0, "largest_error": 2.0**-40}
    assert draws_text(facts) == "with replacement, by weight: of a row group, up to 12.3 draws per row"
    facts["row_groups_not_drawn"] = 1200
    assert draws_text(facts).endswith("draws per row; none from 1,200 row groups in epoch 0")


def test_weights_that_are_rounded_are_said():
    facts = {"column": "weight", "most_draws_per_row": 2.0, "row_groups_not_drawn": 0, "largest_error": 2.0**-4}
    text = "; the smallest weights beside their row group's sum are rounded, by up to 6.2% of themselves"
    assert draws_text(facts).endswith(text)
