"""What a block's task is asked and what it answers: the job, the pieces of the block, and the encoded rows.

Runs in: the feeder, which asks, and Dask workers, which answer. Frozen values that travel between processes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pyarrow as pa

from feedline.artifacts.store import ArtifactSetRef
from feedline.blocks.environment import Environment
from feedline.loader.encoding.encode import EncodedRows
from feedline.loader.encoding.quality import Quality
from feedline.spec.features import FeatureSpec
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.rebase.recorded_rows import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every task of a pipeline needs: features, the table's schema (Arrow IPC), filter, versions it must meet.

    Workers are sent it once; tasks name it by its `digest`, which is of everything else here.

    With a sample the schema may hold the virtual column `sample_weight`. artifacts: what ops know besides their
    parameters. record: where the identities of rows go, if anywhere. code: the user's functions that the features call.
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
    """What blocks read besides their features: the column that keeps runs together, and the row key."""
    by = (job.by,) if job.by is not None else ()
    return (*by, *(job.record.identity.key if job.record is not None else ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRequest:
    """`rows` selected rows of some row groups of one file, after skipping the first `skip` selected ones."""

    fragment: Fragment
    skip: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block: its pieces, how many rows they make, and the key of its permutation (None: as they come)."""

    pieces: tuple[PieceRequest, ...]
    rows: int
    permutation: tuple[int | str, ...] | None
    nbytes: int  # compressed bytes of the column chunks it reads


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """A block's rows, by reference within a process and as one buffer in slot layout between processes."""

    key: str
    rows: int
    parts: tuple[EncodedRows, ...] | None
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
