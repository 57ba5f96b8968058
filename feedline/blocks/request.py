"""The arguments and the result of a block's task: the job, the pieces of the block, and its encoded rows.

Runs in: the feeder and Dask workers. Frozen values that travel between processes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef
from feedline.blocks.environment import Environment
from feedline.blocks.packed_pieces import Packed, pack_pieces, unpack_pieces
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.spec.features import FeatureSpec
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.rebase.recorded_rows import Recording

# Pieces of a block from which on they are packed.
_PACKED_PIECES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks of a plan share: features, the table's schema (Arrow IPC), filter, and the required environment.

    It is sent to each worker once; tasks name it by its `digest`, which covers all other fields.

    With a sample, the schema may contain the virtual column `sample_weight`. record: where row identities are recorded,
    or None. code: the user's functions that features call.
    """

    features: tuple[FeatureSpec, ...]
    schema: bytes
    where: str | None
    by: str | None
    environment: Environment
    artifacts: ArtifactSetRef
    sample: Sample | None = None
    record: Recording | None = None
    code: tuple[RequiredFunction, ...] = ()
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.blake2b(repr(self).encode(), digest_size=16).hexdigest())


def kept_columns(job: Job) -> tuple[str, ...]:
    """The columns that blocks read besides their features: `shuffle.by` and the row key."""
    by = (job.by,) if job.by is not None else ()
    return (*by, *(job.record.identity.key if job.record is not None else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRequest:
    """`rows` selected rows of some row groups of one file, after the first `skip` selected ones."""

    fragment: Fragment
    skip: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block: its pieces, their total rows, and the key of its permutation (None: in plan order)."""

    pieces: tuple[PieceRequest, ...]
    rows: int
    permutation: tuple[int | str, ...] | None
    nbytes: int  # compressed bytes of the column chunks it reads

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, many pieces are packed: every task in flight is held by the scheduler. One or two are not worth the
        time."""
        if len(self.pieces) < _PACKED_PIECES:
            return _request, (self.pieces, self.rows, self.permutation, self.nbytes)
        packed = pack_pieces([(piece.fragment, piece.skip, piece.rows) for piece in self.pieces])
        return _unpacked_request, (packed, self.rows, self.permutation, self.nbytes)


def _request(
    pieces: tuple[PieceRequest, ...], rows: int, permutation: tuple[int | str, ...] | None, nbytes: int
) -> BlockRequest:
    return BlockRequest(pieces=pieces, rows=rows, permutation=permutation, nbytes=nbytes)


def _unpacked_request(
    packed: Packed, rows: int, permutation: tuple[int | str, ...] | None, nbytes: int
) -> BlockRequest:
    pieces = tuple(
        PieceRequest(fragment=fragment, skip=skip, rows=own) for fragment, skip, own in unpack_pieces(packed)
    )
    return _request(pieces, rows, permutation, nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """A block's rows: as `parts` within a process, as an `image` in slot layout between processes."""

    key: str
    rows: int
    parts: tuple[Rows, ...] | None
    image: pa.Buffer | None
    read_s: float
    transform_s: float
    encode_s: float
    nbytes_read: int
    quality: Quality

    @property
    def nbytes(self) -> int:
        return int(self.image.size) if self.image is not None else sum(part.nbytes for part in self.parts or ())

    def __sizeof__(self) -> int:
        return self.nbytes
