"""The rest of an epoch after a rebase: the kept rows of a snapshot minus those delivered before.

Runs where a plan is made. Stored under `work_dir/rebases`, named by its content: the snapshot, the epoch, the first
step of the rest, and per row group the excluded rows as bits. A `Rebase` is a pure function of the old state and the
new snapshot, so all ranks compute the same one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from feedline.dataclass import dataclass
from feedline.errors import StateError
from feedline.warehouse.reading.fragment import count_excluded, pack_mask
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.selection.exclusion import ExcludedRows, join_bits
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import redact

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{32}")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rebase(ExcludedRows):
    """The rest of `epoch`, from `first_step` on, over the snapshot with the id `snapshot`, without delivered rows.

    `changes`: counts of files and rows. began: of a source of several, the step of the mix at which the shortened pass
    began.
    """

    id: str
    snapshot: str
    epoch: int
    first_step: int
    changes: Mapping[str, Any]
    began: int | None = None

    def remaining(self, selection: Selection) -> Int64s:
        """Return the remaining rows of each row group. Raises StateError if the selection keeps other rows than the
        rebase's counts."""
        self.refuse_other_rows(selection.kept_rows, f"rebase {self.id}")
        remaining = selection.rows.copy()
        for row_group, (rows, bits) in self.excluded.items():
            remaining[row_group] = rows - count_excluded(join_bits((bits, selection.excluded_bits(row_group))))
        return remaining

    def save(self, work_dir: str) -> str:
        """Write the rebase below `work_dir` and return its id, with which any host can `load` it."""
        facts = {"snapshot": self.snapshot, "epoch": self.epoch, "first_step": self.first_step}
        facts |= {} if self.began is None else {"began": self.began}
        metadata = {"facts": json.dumps(facts), "changes": json.dumps(dict(self.changes))}
        content_store.create(work_dir, _name(self.id), [self.table(metadata)])
        return self.id

    @classmethod
    def load(cls, work_dir: str, id: str) -> Rebase:
        """Load the rebase with that id.

        Raises StateError if `work_dir` has none with that id, CorruptFileError if it is damaged.
        """
        try:
            (table,) = content_store.load(work_dir, _name(id), tables=1)
        except FileNotFoundError:
            raise StateError(
                f"rebase {id} is not in {redact(work_dir)}: expected the file {_name(id)}. Name the work_dir in which "
                "the state was rebased"
            ) from None
        facts = json.loads(table.schema.metadata[b"facts"])
        return cls(
            id=id,
            excluded=cls.of_table(table),
            changes=json.loads(table.schema.metadata[b"changes"]),
            **facts,
        )


def make_rebase(
    *,
    snapshot: str,
    epoch: int,
    first_step: int,
    excluded: Mapping[int, Bools],
    changes: Mapping[str, Any],
    began: int | None = None,
) -> Rebase:
    """Build a rebase that excludes the rows where the masks (bool [kept rows] per row group) are true."""
    bits = {row_group: (len(mask), pack_mask(mask)) for row_group, mask in sorted(excluded.items()) if mask.any()}
    rebase = Rebase(
        id="", snapshot=snapshot, epoch=epoch, first_step=first_step, excluded=bits, changes=changes, began=began
    )
    content = [_VERSION, snapshot, epoch, first_step, sorted(changes.items()), *([] if began is None else [began])]
    digest = hashlib.sha256(json.dumps(content).encode() + rebase.content)
    return replace(rebase, id=digest.hexdigest()[:32])


def split_name(name: str) -> tuple[str, str | None]:
    """Split a state's `snapshot` into the snapshot's id and, after a plus sign, the rebase's id or None."""
    snapshot, _, rebase = name.partition("+")
    return snapshot, rebase or None


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise StateError(f"rebase id is not one: got {id[:80]!r}, expected 32 hexadecimal digits")
    return f"rebases/{id}.arrow"
