"""A run continues on a table whose columns were added, replaced or dropped: each row of the epoch is delivered once."""

from __future__ import annotations

from pathlib import Path

import pytest
from rewritten import FEATURES, Rewritten, state_at, steps

from feedline.errors import StateError
from feedline.warehouse.columns.change import add_columns, drop_columns
from feedline.warehouse.columns.values import ExpressionValues


@pytest.fixture
def place(tmp_path: Path) -> Rewritten:
    place = Rewritten(tmp_path)
    place.fill()
    return place


def add(place: Rewritten, expression: str, name: str, where: str | None = None, *, replaced: bool = False) -> None:
    add_columns(str(place.table), ExpressionValues(expression=expression, name=name), where=where, replaced=replaced)


@pytest.mark.parametrize("row_key", ["id", None])
def test_replaced_values_are_read_from_there_on(place: Rewritten, row_key: str | None):
    """Rows are the same, so that no record of their identities is needed."""
    add(place, "id * 2", "w")
    features = FEATURES | {"dense": {"w": []}}
    pipeline = place.pipeline(features=features, source={"row_key": row_key} if row_key else {"row_key": None})
    plan = pipeline.plan()
    step = plan.schedule(0).steps // 2
    before = steps(pipeline, plan, 0, 0, step)
    add(place, "id * 3", "w", replaced=True)
    add(place, "id", "v")
    drop_columns(str(place.table), ["v"])
    new = pipeline.rebase(state_at(plan, 0, step))
    assert new.source.snapshot.id != plan.source.snapshot.id
    first = new.state_after(state_at(plan, 0, step))["step"]
    rest = [
        (row, value)
        for batch in pipeline.batches(0, step=first, plan=new)
        for row, value, counts in zip(
            batch.extra["id"].tolist(), batch["w"].ravel().tolist(), batch.valid.tolist(), strict=True
        )
        if counts
    ]
    assert sorted([*before, *(row for row, _ in rest)]) == place.ids
    assert all(value == row * 3 for row, value in rest)


def test_a_replaced_column_of_the_filter_rewrites_its_files(place: Rewritten):
    add(place, "id % 5", "kept")
    pipeline = place.pipeline(source={"where": "kept != 0"})
    plan = pipeline.plan()
    step = plan.schedule(0).steps // 2
    before = steps(pipeline, plan, 0, 0, step)
    assert all(row % 5 for row in before)
    add(place, "id % 7", "kept", where="ds < 2", replaced=True)
    state = state_at(plan, 0, step)
    new = pipeline.rebase(state)
    rest = steps(pipeline, new, 0, new.state_after(state)["step"])
    assert not set(before) & set(rest)
    changed = {row for name, rows in place.files.items() if name < "ds=2" for row in rows}
    alive = {row for row in place.ids if (row % 7 if row in changed else row % 5)}
    assert alive - set(before) == set(rest)
    assert len(rest) == len(set(rest))


def test_without_a_row_key_a_replaced_filter_is_refused(place: Rewritten):
    add(place, "id % 5", "kept")
    pipeline = place.pipeline(source={"where": "kept != 0", "row_key": None})
    plan = pipeline.plan()
    step = plan.schedule(0).steps // 2
    steps(pipeline, plan, 0, 0, step)
    add(place, "id % 7", "kept", replaced=True)
    with pytest.raises(StateError, match="rows of rewritten files cannot be matched"):
        pipeline.rebase(state_at(plan, 0, step))
