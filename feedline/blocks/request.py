"""The arguments and the result of a block's task: the job, the pieces of the block, and its encoded rows.

Runs in: the feeder and Dask workers. Frozen values that travel between processes.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import field, fields
from itertools import accumulate, chain, pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.artifacts.store import ArtifactSetRef
from feedline.blocks.environment import Environment
from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.quality import Quality
from feedline.loader.encoding.shuffled_rows import Rows
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.rebase.recorded_rows import Recording

# --------------------------------------------------------------------------------------------------------------------
# Pack the pieces of a block for the scheduler: columns of numbers instead of an object per piece. Pure; runs in the
# feeder and on workers. A scheduler holds the arguments of every task that is in flight, so that a task must stay
# small, also where a block consists of many small files: pickled one by one, a piece takes about 160 bytes, packed
# about 50, of which 32 are the digest of its file's footer.

# A fragment, its rows to skip and its rows to read.
Piece: TypeAlias = tuple[Fragment, int, int]
Packed: TypeAlias = tuple[Any, ...]

_END = "\0"  # no path or tag holds it


def pack_pieces(pieces: Sequence[Piece]) -> Packed:
    """The pieces as few plain values; `unpack_pieces` returns them."""
    fragments = [fragment for fragment, _, _ in pieces]
    tables = tuple(dict.fromkeys(_shared(fragment) for fragment in fragments))
    keys = {repr(fragment.partition): fragment.partition for fragment in fragments}  # 1 equals True
    table_index = {table: index for index, table in enumerate(tables)}
    key_index = {text: index for index, text in enumerate(keys)}
    numbers = [
        [fragment.bytes for fragment in fragments],
        [fragment.mtime_ns for fragment in fragments],
        [fragment.footer_bytes for fragment in fragments],
        [skip for _, skip, _ in pieces],
        [rows for _, _, rows in pieces],
        [table_index[_shared(fragment)] for fragment in fragments],
        [key_index[repr(fragment.partition)] for fragment in fragments],
        [len(fragment.footer_digest) for fragment in fragments],
        [len(fragment.row_groups) for fragment in fragments],
        [len(fragment.proofs) for fragment in fragments],
        chain.from_iterable(fragment.row_groups for fragment in fragments),
        chain.from_iterable(fragment.expected for fragment in fragments),
        chain.from_iterable(fragment.proofs for fragment in fragments),
    ]
    return (
        len(pieces),
        tables,
        tuple(keys.values()),
        zlib.compress(_END.join([each.path for each in fragments] + [each.tag for each in fragments]).encode()),
        b"".join(fragment.footer_digest for fragment in fragments),
        zlib.compress(np.array(list(chain.from_iterable(numbers)), "<i8").tobytes()),
        tuple(fragment.excluded for fragment in fragments) if any(fragment.excluded for fragment in fragments) else (),
        tuple(fragment.columns for fragment in fragments) if any(fragment.columns for fragment in fragments) else (),
        tuple(fragment.spans for fragment in fragments) if any(fragment.spans for fragment in fragments) else (),
    )


def unpack_pieces(packed: Packed) -> list[Piece]:
    """The pieces that `pack_pieces` packed."""
    count, tables, keys, strings, digests, compressed, excluded, column_files, spans = packed
    texts = zlib.decompress(strings).decode().split(_END)
    values: list[int] = np.frombuffer(zlib.decompress(compressed), "<i8").tolist()
    columns = [values[start : start + count] for start in range(0, 10 * count, count)]
    sizes, mtimes, footers, skips, rows, table_of, key_of, digest_bytes, group_counts, proof_counts = columns
    groups, proofs = sum(group_counts), sum(proof_counts)
    first = 10 * count
    row_groups, expected = values[first : first + groups], values[first + groups : first + 2 * groups]
    proved = values[first + 2 * groups : first + 2 * groups + proofs]
    each = zip(
        texts[:count],
        texts[count:],
        _slices(digests, digest_bytes),
        _slices(row_groups, group_counts),
        _slices(expected, group_counts),
        _slices(proved, proof_counts),
        excluded or ((),) * count,
        spans or ((),) * count,
        strict=True,
    )
    return [
        (
            Fragment(
                table=tables[table_of[index]][0],
                path=path,
                bytes=sizes[index],
                mtime_ns=mtimes[index],
                tag=tag,
                footer_digest=bytes(digest),
                footer_bytes=footers[index],
                row_groups=tuple(own_groups),
                expected=tuple(own_expected),
                partition=keys[key_of[index]],
                proofs=tuple(own_proofs),
                excluded=own_excluded,
                stored_names=tables[table_of[index]][1],
                columns=column_files[index] if column_files else (),
                decoder=tables[table_of[index]][2],
                source_cache=tables[table_of[index]][3],
                histories=tables[table_of[index]][4],
                exploded=tables[table_of[index]][5],
                spans=own_spans,
            ),
            skips[index],
            rows[index],
        )
        for index, (path, tag, digest, own_groups, own_expected, own_proofs, own_excluded, own_spans) in enumerate(each)
    ]


def _shared(fragment: Fragment) -> tuple[Any, ...]:
    own = fragment.source_cache, fragment.histories, fragment.exploded
    return fragment.table, fragment.stored_names, fragment.decoder, *own


def _slices(values: Any, counts: Sequence[int]) -> list[Any]:
    return [values[start:stop] for start, stop in pairwise(accumulate(counts, initial=0))]


# --------------------------------------------------------------------------------------------------------------------

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
    auto: of a cache that decides for itself whether they are kept. order: None where no column decides. histories: the
    version of each that fragments carry, by name.
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
    histories: tuple[tuple[str, str], ...] = ()
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
class BlockFacts:
    """What a request says besides its pieces: the rows that the block has of them, and the key of its permutation
    (None: in plan order). epoch: for a cache that decides for itself. shares: where lengths are balanced. buckets:
    where rows are of buckets. draws: where they are drawn."""

    rows: int
    permutation: tuple[int | str, ...] | None
    nbytes: int  # compressed bytes of the column chunks it reads
    epoch: int = field(default=0, repr=False)  # no key names it: bytes do not depend on it
    shares: StepShares | None = None
    buckets: BucketRows | None = None
    draws: BlockDraws | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRequest(BlockFacts):
    """One block: its pieces, and what becomes of their rows."""

    pieces: tuple[PieceRequest, ...]

    @property
    def read_rows(self) -> int:
        """Rows of the pieces: the block's own, unless its order leaves some out or repeats others."""
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRequest(BlockFacts):
    """A request of many pieces as the scheduler gets it, which reads and writes the task's arguments as they are."""

    pieces: Packed

    def unpack(self) -> BlockRequest:
        pieces = tuple(
            PieceRequest(fragment=fragment, skip=skip, rows=rows) for fragment, skip, rows in unpack_pieces(self.pieces)
        )
        return BlockRequest(pieces=pieces, **_facts_of(self))


def _facts_of(request: BlockFacts) -> dict[str, Any]:
    return {each.name: getattr(request, each.name) for each in fields(BlockFacts)}


def pack_request(request: BlockRequest, travels: bool = True) -> BlockRequest | PackedRequest:
    """The request as it travels between processes: packed, if it has so many pieces that this is worth the time."""
    if not travels or len(request.pieces) < _PACKED_PIECES:
        return request
    packed = pack_pieces([(piece.fragment, piece.skip, piece.rows) for piece in request.pieces])
    return PackedRequest(pieces=packed, **_facts_of(request))


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
