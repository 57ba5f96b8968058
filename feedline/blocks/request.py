"""The arguments and the result of a block's task: the job, the pieces of the block, and its encoded rows.

Runs in: the feeder and Dask workers. Frozen values that travel between processes.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zlib
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.artifacts.store import ArtifactSetRef
from feedline.blocks.environment import Environment
from feedline.config.features import FeatureSpec
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.rebase.recorded_rows import Recording

# Pieces of a block from which on they are packed.
_PACKED_PIECES = 4
# Fields that do not count in a job's name: the name, and where an op or a feature stands in pipeline.yaml.
UNNAMED = frozenset({"digest", "path"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpochs:
    """How often a job reads how many rows: what decides whether a cache pays. epochs: as pipeline.yaml says.
    store_bytes: compressed ones that an epoch reads of a remote table; 0 for a local one."""

    epochs: int
    rows: int
    row_groups: int
    store_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Runs:
    """`shuffle.by`: runs of rows with equal values of a column stay whole, and are permuted."""

    column: str


@dataclass(frozen=True, slots=True)
class Balance:
    """`batch.balance`: each step gets nearly its share of the elements of a list column. cap: the length that longer
    lists count as."""

    column: str
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Buckets:
    """`batch.buckets`: rows are ordered by the bucket of a list column's length, whose largest ones are `bounds`."""

    column: str
    bounds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Draws:
    """`shuffle.weights`: rows are drawn with replacement, in proportion to a column, and permuted."""

    column: str


# How a column decides the order of a block's rows.
RowOrder: TypeAlias = Runs | Balance | Buckets | Draws


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What all tasks of a plan share: features, the table's schema (Arrow IPC), filter, and the required environment.

    It is sent to each worker once; tasks name it by its `digest`, which covers all other fields but `UNNAMED` ones.

    With a sample, the schema may contain the virtual column `sample_weight`. record: where row identities are recorded,
    or None. code: the user's functions that features call. cache: of finished features, which changes no row.
    auto: of a cache that decides for itself whether they are kept. order: None where no column decides.
    """

    features: tuple[FeatureSpec, ...]
    schema: bytes
    where: str | None
    environment: Environment
    artifacts: ArtifactSetRef
    sample: Sample | None = None
    record: Recording | None = None
    code: tuple[RequiredFunction, ...] = ()
    cache: CacheRef | None = None
    auto: ReadEpochs | None = None
    order: RowOrder | None = None
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        content = json.dumps(_named_values(self), sort_keys=True, default=_named_values)
        object.__setattr__(self, "digest", hashlib.blake2b(content.encode(), digest_size=16).hexdigest())

    @property
    def by(self) -> str | None:
        """The column whose runs stay whole."""
        return self.order.column if isinstance(self.order, Runs) else None

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The columns that blocks read besides those of features: that which orders rows, and the row key."""
        order = () if self.order is None else (self.order.column,)
        return (*order, *(() if self.record is None else self.record.identity.key))


def _named_values(value: Any) -> Any:
    """The class of a value and its fields that count, by name; bytes as hexadecimal digits."""
    if isinstance(value, bytes):
        return value.hex()
    names = [each.name for each in fields(value) if each.name not in UNNAMED]
    return {"": type(value).__name__} | {name: getattr(value, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceRequest:
    """`rows` selected rows of some row groups of one file, after the first `skip` selected ones."""

    fragment: Fragment
    skip: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """How many of a block's rows each step gets. first_step: the first that gets any. rows: of it and the next ones, as
    little-endian uint32. phase: of 2^64, where the block is among those from which a step draws at once."""

    first_step: int
    rows: bytes
    phase: int = 0

    @property
    def rows_of_steps(self) -> NDArray[np.int64]:
        """int64 [steps]: the rows that each step gets."""
        return np.frombuffer(self.rows, "<u4").astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRows:
    """A block's rows of each bucket. parts: of pieces that it shares with a neighbouring lane (indices), the ordinals
    [start, stop) of its rows among those of each bucket. shares: of each bucket, where lengths are balanced."""

    rows: tuple[int, ...]
    parts: tuple[tuple[int, tuple[tuple[int, int], ...]], ...] = ()
    shares: tuple[StepShares, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceDraws:
    """`rows` draws from the row groups of a piece, after the first `skip`. groups: how many each row group has."""

    groups: tuple[int, ...]
    skip: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDraws:
    """The draws of a block from the rows of its pieces. key: of all draws of the epoch."""

    key: tuple[int | str, ...]
    pieces: tuple[PieceDraws, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest:
    """One block: its pieces, its rows, and the key of their permutation (None: in plan order). epoch: for a cache that
    decides for itself. shares, buckets, draws: with `Balance`, `Buckets` and `Draws`."""

    pieces: tuple[PieceRequest, ...]
    rows: int
    permutation: tuple[int | str, ...] | None
    nbytes: int  # compressed bytes of the column chunks it reads
    epoch: int = field(default=0, repr=False)  # no key names it: bytes do not depend on it
    shares: StepShares | None = None
    buckets: BucketRows | None = None
    draws: BlockDraws | None = None

    @property
    def read_rows(self) -> int:
        """Rows of the pieces: the block's own, unless its order leaves some out or repeats others."""
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class PackedRequest:
    """A request of many pieces as it travels: a scheduler holds, reads and writes the arguments of every task that is
    in flight. Of 64 small files, the pieces take 9.2 kB one by one, and 3.6 packed, of which 2 are digests of footers.

    pieces: a list per field of fragments, then those of rows to skip and rows to read; pickled and compressed."""

    request: BlockRequest
    pieces: bytes

    def unpack(self) -> BlockRequest:
        *columns, skips, rows = pickle.loads(zlib.decompress(self.pieces))
        fragments = [
            Fragment(**dict(zip(_FRAGMENT_FIELDS, values, strict=True))) for values in zip(*columns, strict=True)
        ]
        pieces = zip(fragments, skips, rows, strict=True)
        return replace(
            self.request,
            pieces=tuple(PieceRequest(fragment=fragment, skip=skip, rows=count) for fragment, skip, count in pieces),
        )


_FRAGMENT_FIELDS = [each.name for each in fields(Fragment)]


def pack_request(request: BlockRequest, travels: bool = True) -> BlockRequest | PackedRequest:
    """The request as it travels between processes: packed, if it has so many pieces that this is worth the time."""
    if not travels or len(request.pieces) < _PACKED_PIECES:
        return request
    columns = [[getattr(piece.fragment, name) for piece in request.pieces] for name in _FRAGMENT_FIELDS]
    columns += [[piece.skip for piece in request.pieces], [piece.rows for piece in request.pieces]]
    return PackedRequest(replace(request, pieces=()), zlib.compress(pickle.dumps(columns), level=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """A block's rows: as `parts` within a process, as an `image` in slot layout between processes.

    cached: what it found in the job's cache; None without one."""

    key: str
    rows: int
    parts: tuple[Rows, ...] | None
    image: pa.Buffer | None
    times: BlockTimes
    nbytes_read: int
    quality: Quality
    cached: CacheCounts | None = None

    @property
    def nbytes(self) -> int:
        return int(self.image.size) if self.image is not None else sum(part.nbytes for part in self.parts or ())

    def __sizeof__(self) -> int:
        return self.nbytes
