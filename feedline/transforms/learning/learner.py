"""What does an op know besides its parameters, and how is that learnt from data?

Runs in: every process that compiles features; observing and merging on the workers. Pure.

    observe (a chunk's columns -> a state) -> merge (states -> a state) -> finish (the last state -> an artifact)

Merging is associative and does not see the order, to the bit: the same rows give the same artifact however a table is
cut into files, chunks and tasks. States are frames whose rows are named by `Learner.keys`, so that a large one can be
cut by its keys, merged piece by piece and kept on disk in between. An op may also read its artifact from outside, such
as a small table to join with.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.errors import SpecError
from feedline.spec.features import FeatureSpec

T = TypeVar("T")
SEEN = "seen"  # the role of the column that says of each row whether a fit has seen it, beside those of `Learning.rows`
_DIGESTED_ROWS = 1 << 20  # at a time: a vocabulary may fill most of the memory
Parts = Iterable[pl.DataFrame]  # merged states without a key in common; may be iterated again


@dataclass(frozen=True, kw_only=True, eq=False)
class Artifact:
    """What an op works with besides its parameters. Immutable.

    facts: what JSON can say. table: what is large, without nulls in its keys.
    """

    facts: Mapping[str, Any]
    table: pa.Table | None = None
    _made: dict[str, Any] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, as hex: equal for equal facts and tables of equal types and values."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True, separators=(",", ":")).encode())
        if self.table is not None:
            for piece in _pieces(self.table):
                digest.update(piece)
        return digest.hexdigest()

    def made(self, name: str, build: Callable[[], T]) -> T:
        """What `build` makes of this artifact, such as a lookup structure: made once, for all threads."""
        with self._lock:
            if name not in self._made:
                self._made[name] = build()
            made: T = self._made[name]
            return made


def _pieces(table: pa.Table) -> Iterator[memoryview]:
    """A table as Arrow streams: the same bytes for the same types and values, however it was put together.

    Gathering every row makes buffers anew, without offsets, spare bits, or bits of validity where nothing is null.
    """
    for start in range(0, max(table.num_rows, 1), _DIGESTED_ROWS):
        part = table.slice(start, _DIGESTED_ROWS)
        fresh = part.take(pa.array(np.arange(part.num_rows))).combine_chunks().replace_schema_metadata(None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, fresh.schema) as writer:
            writer.write_table(fresh)
        yield memoryview(sink.getvalue())


class Learner(Protocol):
    """One statistic. Whatever it adds up it adds up exactly: integers, or floats by `exact_sums`.

    keys: columns of its states by which a large one may be cut: rows of equal keys are merged together, all others
    apart; none for a state of a few rows.
    """

    @property
    def keys(self) -> tuple[str, ...]: ...

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        """The state after some rows. `columns`: the op's values (lists as lists), then what it learns from besides."""
        ...

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The state after the rows of all."""
        ...

    def finish(self, parts: Parts) -> Artifact:
        """What was learnt. Raises FeedlineError where the rows allow nothing, naming the rule and the remedy."""
        ...

    def blank(self) -> Artifact:
        """What stands for the artifact until there is one, so that kinds and columns are known."""
        ...

    def show(self, artifact: Artifact) -> dict[str, Any]:
        """The artifact in a few readable values, by name."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How an op learns.

    learner: of the parameters and the values that the op takes; None where the parameters say everything. beside: the
    columns that are observed beside the values, by role. rows: the roles that are needed once more where rows are
    transformed that the fit has seen (each row is then left out of what it is told); where only some rows are, a
    Boolean column in the role `SEEN` says which. check: raises SpecError for values
    of such columns, by role, that cannot be learnt from. name: joins the fits of all
    features with the same name, op and parameters; None: of the same chain only.
    """

    learner: Callable[[Any, Sequence[Any]], Learner | None]
    beside: Callable[[Any], Mapping[str, str]] = lambda parameters: {}
    rows: Callable[[Any], tuple[str, ...]] = lambda parameters: ()
    name: Callable[[Any], str | None] = lambda parameters: None
    check: Callable[[Any, Mapping[str, Any]], None] = lambda parameters, beside: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What an op reads from outside: a table or a zarr array, by path or URI; `options` are JSON, for who reads it.

    max_memory: bytes that it may take in a process; no part of what is read.
    """

    kind: Literal["table", "zarr"]
    uri: str
    options: str = "{}"
    max_memory: int = 2**30

    @property
    def name(self) -> str:
        """What is read, as one text."""
        return json.dumps([self.kind, self.uri, self.options])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitRequest:
    """A fit: what is to be learnt, from which columns.

    key: hex, of everything but types that says what is learnt. op: name, version, parameters as JSON. chain: for
    people. types: the table's columns that the values are made of, with their Arrow types. streams: for each feature
    that shares the fit the columns to observe, as features of the group `observed`. depends: the keys of fits that have
    to be there first. behind: for each stream what names the column and the ops that it comes through. shared: whether
    a name joins them, so that the key says nothing of them.
    """

    key: str
    feature: str
    op: tuple[str, int, str]
    chain: str
    learner: Learner
    types: Mapping[str, str]
    streams: tuple[tuple[FeatureSpec, ...], ...]
    depends: frozenset[str]
    behind: tuple[str, ...] = ()
    shared: bool = False


class ArtifactSet(Protocol):
    """Where artifacts come from."""

    def seen(self, key: str) -> bool | str:
        """Which of the rows that are transformed a fit has seen: all, none, or where a column of that name is true."""
        ...

    def fitted(self, request: FitRequest) -> Artifact | None:
        """What was learnt; None where nothing was, or otherwise than it is asked for."""
        ...

    def read(self, reading: Reading) -> Artifact:
        """What is read from outside. Raises SpecError where it cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryArtifacts:
    """Artifacts in memory, by key. out_of_fold: which rows all fits have seen, see `seen`."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    out_of_fold: bool | str = False

    def seen(self, key: str) -> bool | str:
        """The same for every fit."""
        return self.out_of_fold

    def fitted(self, request: FitRequest) -> Artifact | None:
        """What was learnt under the key."""
        return self.artifacts.get(request.key)

    def read(self, reading: Reading) -> Artifact:
        """Nothing is read. Raises SpecError."""
        raise SpecError(f"nothing is read from outside here: got {reading.uri!r}, expected features of the table alone")


NO_ARTIFACTS = InMemoryArtifacts()
