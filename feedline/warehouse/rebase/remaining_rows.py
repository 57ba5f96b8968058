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
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.errors import StateError
from feedline.warehouse.reading.fragment import count_excluded, pack_mask, unpack_mask
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.selection.exclusion import join_bits
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import redact

_VERSION = 1
_ID = re.compile(r"[0-9a-f]{32}")

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rebase:
    """The rest of `epoch`, from `first_step` on, over the snapshot with the id `snapshot`.

    `excluded`: row group (in the table) -> its number of kept rows, and the bits of the excluded ones. `changes`:
    counts of files and rows. began: of a source of several, the step of the mix at which the shortened pass began.
    """

    id: str
    snapshot: str
    epoch: int
    first_step: int
    excluded: Mapping[int, tuple[int, bytes]]
    changes: Mapping[str, Any]
    began: int | None = None

    @cached_property
    def rows(self) -> dict[int, int]:
        """Per row group, how many of its kept rows are excluded."""
        return {row_group: count_excluded(bits) for row_group, (_, bits) in self.excluded.items()}

    def bits(self, row_group: int) -> bytes | None:
        """Return the bits of a row group's excluded rows; None if none are."""
        found = self.excluded.get(row_group)
        return None if found is None else found[1]

    def mask(self, row_group: int, kept: int) -> Bools:
        """bool [kept]: which rows of a row group are excluded."""
        return unpack_mask(self.bits(row_group), kept)

    def remaining(self, selection: Selection) -> Int64s:
        """Return the remaining rows of each row group. Raises StateError if the selection keeps other rows than the
        rebase's counts."""
        remaining = selection.rows.copy()
        kept_rows = selection.kept_rows
        for row_group, (rows, bits) in self.excluded.items():
            if row_group >= len(kept_rows) or kept_rows[row_group] != rows:
                raise StateError(
                    f"rebase {self.id} belongs to another filter or snapshot: got {rows} kept rows of row group "
                    f"{row_group}, expected "
                    f"{kept_rows[row_group] if row_group < len(kept_rows) else 'no such row group'}"
                )
            left_out = join_bits((bits, selection.excluded_bits(row_group)))
            remaining[row_group] = rows - count_excluded(left_out)
        return remaining

    def save(self, work_dir: str) -> str:
        """Write the rebase below `work_dir` and return its id, with which any host can `load` it."""
        facts = {"snapshot": self.snapshot, "epoch": self.epoch, "first_step": self.first_step}
        facts |= {} if self.began is None else {"began": self.began}
        table = pa.table(
            {
                "row_group": pa.array(list(self.excluded), pa.int64()),
                "kept": pa.array([rows for rows, _ in self.excluded.values()], pa.int64()),
                "excluded": pa.array([bits for _, bits in self.excluded.values()], pa.binary()),
            }
        )
        metadata = {"facts": json.dumps(facts), "changes": json.dumps(dict(self.changes))}
        content_store.create(work_dir, _name(self.id), [table.replace_schema_metadata(metadata)])
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
        rows = zip(*(table[name].to_pylist() for name in ("row_group", "kept", "excluded")), strict=True)
        return cls(
            id=id,
            excluded={row_group: (kept, bits) for row_group, kept, bits in rows},
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
    content = [_VERSION, snapshot, epoch, first_step, sorted(changes.items()), *([] if began is None else [began])]
    digest = hashlib.sha256(json.dumps(content).encode())
    for row_group, (rows, left_out) in bits.items():
        digest.update(f"{row_group} {rows} ".encode() + left_out)
    return Rebase(
        id=digest.hexdigest()[:32],
        snapshot=snapshot,
        epoch=epoch,
        first_step=first_step,
        excluded=bits,
        changes=changes,
        began=began,
    )


def split_name(name: str) -> tuple[str, str | None]:
    """Split a state's `snapshot` into the snapshot's id and, after a plus sign, the rebase's id or None."""
    snapshot, _, rebase = name.partition("+")
    return snapshot, rebase or None


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise StateError(f"rebase id is not one: got {id[:80]!r}, expected 32 hexadecimal digits")
    return f"rebases/{id}.arrow"
