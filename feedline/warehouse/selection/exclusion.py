"""An exclusion: bad rows of a snapshot that a plan leaves out, with the reasons, and everything that decided it.

Runs where rows are checked, and where a plan or a fit selects rows. Per row group, the rows that filter and sample keep
are numbered in the file's order, and those left out are bits (see `pack_mask`). An exclusion is named by the digest of
its content, and stored under that name in `work_dir/exclusions`; its file holds the same anywhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.fs as pafs

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, FeedlineError, StateError
from feedline.warehouse.reading.fragment import UNCOUNTED, count_excluded, unpack_mask
from feedline.warehouse.reading.sample import Bools
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, ancestor, below, join, locate, redact

FEW_EVENTS = "min_history"  # what rules of rows that see few events begin with
_VERSION = 1
_FOLDER = "exclusions"
_FAULTS = pa.schema(
    {"row_group": pa.int64(), "feature": pa.string(), "reason": pa.string(), "rows": pa.int64(), "first": pa.int64()}
)

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionOrigin:
    """What decided an exclusion.

    where, sample: of the pipeline. features: the fingerprint of those that were computed; rules: what was expected of
    them. unfitted: features whose fit was missing, which were computed up to the op that learns. types: of the columns
    that were read, and environment: the versions and instructions that computed. rows: how many were checked.
    """

    snapshot: str
    where: str | None
    sample: Mapping[str, Any] | None
    features: str
    rules: str
    environment: str
    unfitted: tuple[str, ...]
    types: Mapping[str, str]
    rows: int

    @property
    def is_planned(self) -> bool:
        """Whether a plan has found the rows itself: they see few events, and no feature refuses them."""
        return self.rules.startswith(FEW_EVENTS)

    @property
    def judgement(self) -> dict[str, Any]:
        """All that decides whether a row of a file is bad, whatever the snapshot."""
        facts = asdict(self)
        return {name: value for name, value in facts.items() if name not in ("snapshot", "rows")}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFault:
    """Why rows of one row group are bad. rows: how many, of which `first` is the first, as an index among the row
    group's kept rows. A row with several faults counts for each."""

    row_group: int
    feature: str
    reason: str
    rows: int
    first: int


@dataclass(frozen=True, kw_only=True, eq=False)
class ExcludedRows:
    """Rows that are left out. excluded: row group (in the table) -> how many of its rows filter and sample keep, and
    the bits of those left out."""

    excluded: Mapping[int, tuple[int, bytes]]

    @cached_property
    def counts(self) -> dict[int, int]:
        """Per row group, how many of its rows are left out."""
        return {row_group: count_excluded(bits) for row_group, (_, bits) in self.excluded.items()}

    @property
    def content(self) -> bytes:
        """What names them in a digest."""
        groups = sorted(self.excluded.items())
        return b"".join(f"{row_group} {kept} ".encode() + bits for row_group, (kept, bits) in groups)

    def bits(self, row_group: int) -> bytes | None:
        """The bits of a row group's rows that are left out; None if none are."""
        return self.excluded.get(row_group, (0, None))[1]

    def mask(self, row_group: int, kept: int) -> Bools:
        """bool [kept]: which of a row group's kept rows are left out."""
        return unpack_mask(self.bits(row_group), kept)

    def refuse_other_rows(self, kept: Int64s, name: str) -> None:
        """Raise StateError unless filter and sample keep as many rows of these row groups (int64 [row groups], or
        UNCOUNTED)."""
        for row_group, (rows, _) in self.excluded.items():
            expected = int(kept[row_group]) if row_group < len(kept) else "no such row group"
            if expected not in (rows, UNCOUNTED):
                raise StateError(
                    f"{name} belongs to another filter or snapshot: got {rows} kept rows of row group {row_group}, "
                    f"expected {expected}"
                )

    def table(self, metadata: Mapping[str, str]) -> pa.Table:
        columns = {
            "row_group": pa.array(self.excluded, pa.int64()),
            "kept": pa.array([kept for kept, _ in self.excluded.values()], pa.int64()),
            "excluded": pa.array([bits for _, bits in self.excluded.values()], pa.binary()),
        }
        return pa.table(columns).replace_schema_metadata(metadata)

    @staticmethod
    def of_table(table: pa.Table) -> dict[int, tuple[int, bytes]]:
        groups = zip(*(table[name].to_pylist() for name in ("row_group", "kept", "excluded")), strict=True)
        return {row_group: (kept, bits) for row_group, kept, bits in groups}


@dataclass(frozen=True, kw_only=True, eq=False)
class Exclusion(ExcludedRows):
    """Bad rows. faults: in the order of the table."""

    origin: ExclusionOrigin
    faults: tuple[RowFault, ...]

    @cached_property
    def id(self) -> str:
        """The digest of the content: 32 hexadecimal digits."""
        digest = hashlib.sha256(json.dumps([_VERSION, asdict(self.origin)], sort_keys=True).encode())
        digest.update(json.dumps([[*asdict(fault).values()] for fault in self.faults]).encode())
        digest.update(self.content)
        return digest.hexdigest()[:32]

    @cached_property
    def rows(self) -> int:
        return sum(self.counts.values())

    def reasons(self) -> dict[tuple[str, str], int]:
        """How many rows have each fault, by feature and reason, most frequent first."""
        totals: dict[tuple[str, str], int] = {}
        for fault in self.faults:
            key = fault.feature, fault.reason
            totals[key] = totals.get(key, 0) + fault.rows
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    def save(self, work_dir: str) -> str:
        """Write it below `work_dir`, unless it is there, and return its path."""
        name = f"{_FOLDER}/{self.id}.arrow"
        location = locate(absolute(work_dir))
        info = location.filesystem.get_file_info(join(location.path, name))
        if info.type == pafs.FileType.NotFound:
            self._write(work_dir, name)
        return below(absolute(work_dir), name)

    def write(self, file: str) -> None:
        self._write(*_split_path(file))

    def _write(self, folder: str, name: str) -> None:
        origin = json.dumps(asdict(self.origin), sort_keys=True)
        rows = self.table({"version": str(_VERSION), "origin": origin})
        faults = pa.Table.from_pylist([asdict(fault) for fault in self.faults], _FAULTS)
        content_store.create(folder, name, [rows, faults])

    @classmethod
    def read(cls, file: str) -> Exclusion:
        """Read a file, a path or URI. Raises FileNotFoundError where there is none, CorruptFileError where it is not
        what was written, or holds something else."""
        return cls._load(*_split_path(file))

    @classmethod
    def _load(cls, folder: str, name: str) -> Exclusion:
        rows, faults = content_store.load(folder, name, tables=2)
        metadata = rows.schema.metadata or {}
        if metadata.get(b"version") != str(_VERSION).encode() or b"origin" not in metadata:
            raise CorruptFileError(f"{redact(join(folder, name))} does not hold an exclusion of version {_VERSION}")
        origin = json.loads(metadata[b"origin"])
        return cls(
            origin=ExclusionOrigin(**{**origin, "unfitted": tuple(origin["unfitted"])}),
            excluded=cls.of_table(rows),
            faults=tuple(RowFault(**fault) for fault in faults.to_pylist()),
        )


def covers(exclusion: Exclusion | None, features: str) -> bool:
    """Whether an exclusion leaves out every row that some features refuse, given their fingerprint."""
    return exclusion is not None and exclusion.origin.features == features and not exclusion.origin.unfitted


def kept_exclusions(work_dir: str, snapshot: str) -> Iterator[Exclusion]:
    """The exclusions of a snapshot below `work_dir`; those that cannot be listed or read are passed over."""
    location = locate(absolute(work_dir))
    names: list[str] = []
    with contextlib.suppress(FeedlineError, OSError):
        infos = location.filesystem.get_file_info(pafs.FileSelector(join(location.path, _FOLDER), allow_not_found=True))
        names = sorted(str(info.base_name) for info in infos if info.base_name.endswith(".arrow"))
    for name in names:
        with contextlib.suppress(FeedlineError, OSError):
            exclusion = Exclusion._load(work_dir, f"{_FOLDER}/{name}")
            if exclusion.origin.snapshot == snapshot:
                yield exclusion


def join_bits(parts: Iterable[bytes | None]) -> bytes | None:
    """The bits of rows that any part leaves out, `01`, None, `10` -> `11`; None if none are. Parts are equally long."""
    arrays = [np.frombuffer(bits, np.uint8) for bits in parts if bits is not None]
    return np.bitwise_or.reduce(arrays).tobytes() if arrays else None


def _split_path(file: str) -> tuple[str, str]:
    uri = absolute(file)
    return ancestor(uri, 1), uri.partition("?")[0].rpartition("/")[2]
