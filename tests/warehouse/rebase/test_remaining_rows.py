"""The rest of an epoch: rows that were delivered are excluded, on every host alike."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.errors import CorruptFileError, StateError
from feedline.warehouse.reading.fragment import pack_mask
from feedline.warehouse.rebase.remaining_rows import Rebase, make_rebase, split_name
from feedline.warehouse.selection.exclusion import Exclusion, ExclusionOrigin
from feedline.warehouse.selection.pruning_report import SelectionReport, Share, Verdicts
from feedline.warehouse.selection.select import Selection

MASKS = {3: np.array([True, False, True, False, False]), 1: np.array([False, False]), 7: np.ones(9, np.bool_)}


def made(**changes: Any) -> Rebase:
    facts: dict[str, Any] = {
        "snapshot": "s",
        "epoch": 2,
        "first_step": 10,
        "excluded": MASKS,
        "changes": {"files": 3, "rows": 11},
    }
    return make_rebase(**{**facts, **changes})


def test_excluded_rows_are_counted_per_row_group():
    rebase = made()
    assert list(rebase.excluded) == [3, 7]  # in order, without those that exclude nothing
    assert rebase.counts == {3: 2, 7: 9}
    assert rebase.mask(3, 5).tolist() == MASKS[3].tolist()
    assert rebase.mask(1, 2).tolist() == [False, False]
    assert rebase.bits(1) is None


def selected(kept: list[int], exclusion: Exclusion | None = None) -> Selection:
    rows, nothing = np.array(kept), Share(row_groups=0, rows=0)
    shares = {field.name: nothing for field in fields(SelectionReport)}
    report = SelectionReport(**{**shares, "counted_bytes": 0, "bloom_bytes": 0, "cached": False})
    verdicts = Verdicts(
        fate=np.zeros(len(kept), np.int8), proofs=np.zeros(len(kept), np.uint8), rows=rows, matched=rows
    )
    return Selection(rows=rows, where=None, sample=None, verdicts=verdicts, report=report).without(exclusion)


def test_remaining_rows_are_those_kept_without_the_excluded():
    selection = selected([4, 2, 4, 5, 1, 1, 1, 9])
    assert made().remaining(selection).tolist() == [4, 2, 4, 3, 1, 1, 1, 0]
    assert selection.rows[3] == 5


def test_rows_that_are_both_delivered_and_bad_are_left_out_once():
    origin = ExclusionOrigin(
        snapshot="s",
        where=None,
        sample=None,
        features="f",
        rules="r",
        environment="e",
        unfitted=(),
        types={},
        rows=27,
    )
    bad = {0: np.array([True, False, False, False]), 3: np.array([True, True, False, False, False])}
    excluded = {group: (len(mask), pack_mask(mask)) for group, mask in bad.items()}
    selection = selected([4, 2, 4, 5, 1, 1, 1, 9], Exclusion(origin=origin, excluded=excluded, faults=()))
    assert selection.rows.tolist() == [3, 2, 4, 3, 1, 1, 1, 9]
    assert made().remaining(selection).tolist() == [3, 2, 4, 2, 1, 1, 1, 0]  # of group 3, row 0 is both


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([4, 2, 4, 6, 1, 1, 1, 9], "got 5 kept rows of row group 3, expected 6"),
        ([4, 2], "got 5 kept rows of row group 3, expected no such row group"),
    ],
)
def test_counts_of_another_selection_are_refused(kept: list[int], message: str):
    with pytest.raises(StateError, match=f"belongs to another filter or snapshot: {message}"):
        made().remaining(selected(kept))


def test_the_id_is_that_of_the_content():
    assert made().id == made(excluded={**MASKS, 9: np.zeros(3, np.bool_)}).id
    assert made().id == made(changes={"rows": 11, "files": 3}).id
    others = [
        made(snapshot="t"),
        made(epoch=3),
        made(first_step=11),
        made(changes={}),
        made(excluded={3: MASKS[3]}),
        made(excluded={**MASKS, 3: ~MASKS[3]}),
    ]
    assert len({made().id, *(other.id for other in others)}) == 7


def test_a_saved_rebase_is_loaded_by_its_id(tmp_path: Path):
    rebase = made()
    assert rebase.save(str(tmp_path)) == rebase.id
    loaded = Rebase.load(str(tmp_path), rebase.id)
    for name in ("id", "snapshot", "epoch", "first_step", "excluded", "changes", "counts"):
        assert getattr(loaded, name) == getattr(rebase, name)


def test_missing_damaged_and_malformed_ids_are_errors(tmp_path: Path):
    with pytest.raises(StateError, match=r"rebase 0{32} is not in .*: expected the file rebases/0{32}\.arrow"):
        Rebase.load(str(tmp_path), "0" * 32)
    for id in ("../secret", "0" * 31, "G" * 32):
        with pytest.raises(StateError, match=r"rebase id is not one: got .*, expected 32 hexadecimal digits"):
            Rebase.load(str(tmp_path), id)
    id = made().save(str(tmp_path))
    [file] = tmp_path.glob("rebases/*")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptFileError):
        Rebase.load(str(tmp_path), id)


def test_a_state_names_its_snapshot_and_its_rebase():
    assert split_name("abc") == ("abc", None)
    assert split_name("abc+def") == ("abc", "def")
    assert split_name("abc+") == ("abc", None)
