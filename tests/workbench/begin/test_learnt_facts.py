"""Facts of columns are those of the rows to learn from; columns of one moment, and ids among integers, are marked."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.workbench.begin.init_plan import Choices, HeldOut
from feedline.workbench.begin.label_choice import choose_label, require_label
from feedline.workbench.begin.learnt_facts import facts_of_learnt
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_facts import ColumnProfile
from feedline.workbench.profile.table_sample import ProfileOptions, sample_table

ROWS = 4_000
RNG = np.random.default_rng(5)


def test_columns_are_described_by_the_rows_to_learn_from(tmp_path: Path):
    day = np.arange(ROWS) // 400
    start = datetime(2026, 1, 1)
    times = [start + timedelta(days=int(each), minutes=index % 600) for index, each in enumerate(day)]
    place = RNG.integers(0, 40, ROWS)
    rate = RNG.permutation(np.repeat([0.1, 0.9], 20))  # of a place: no order of its number tells it
    table = pa.table(
        {
            "label": (RNG.random(ROWS) < rate[place]).astype(np.int64),
            "day": day,
            "at": times,
            "sent": [each + timedelta(minutes=1) for each in times],
            "later": pa.array([1.5 if each == 9 else None for each in day.tolist()]),
            "place": place,
            "size": RNG.integers(0, 40, ROWS),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    options = ProfileOptions(values=True)
    sample = sample_table(str(tmp_path / "t.parquet"), options)
    facts = table_facts_of(sample, options)
    label = choose_label(facts, require_label(facts, "label"))
    held_out = HeldOut(by=("day",), train="day < 9", held_out="day >= 9", reason="the last day")
    learnt = facts_of_learnt(sample, facts, Choices(time="at"), label, held_out)
    columns: dict[str, ColumnProfile] = {each.name: each for each in learnt.columns}
    assert not {each.name: each for each in facts.columns}["later"].all_null
    assert columns["later"].all_null
    assert (columns["at"].same_moment, columns["sent"].same_moment) == (None, "at")
    assert columns["place"].as_ids is not None
    assert columns["size"].as_ids is None
