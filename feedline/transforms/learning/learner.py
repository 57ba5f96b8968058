"""Learners and artifacts: what an op computes with besides its parameters, and how it is learnt from data.

Runs in: every process that compiles features; observing and merging on the workers. Pure.

    observe (a chunk's columns -> a state) -> merge (states -> a state) -> finish (the last state -> an artifact)

Merging is associative and independent of the order, to the bit. States are frames whose rows are named by
`Learner.keys`, so a large one can be cut by its keys, merged piece by piece and kept on disk in between. An op may also
read its artifact from outside the table.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.errors import SpecError

T = TypeVar("T")
SEEN = "seen"  # the role, besides those of `Learning.row_roles`, of the column that marks the rows a fit has seen
WARNING = "warning"  # in a summary: a sentence for whoever fits
_DIGESTED_ROWS = 1 << 20  # rows digested at a time, because a vocabulary may fill most of the memory
Parts = Iterable[pl.DataFrame]  # merged states with disjoint keys; can be iterated again


@dataclass(frozen=True, kw_only=True, eq=False)
class Artifact:
    """What an op computes with besides its parameters. Immutable.

    facts: JSON values. table: large content, without nulls in its keys.
    """

    facts: Mapping[str, Any]
    table: pa.Table | None = None
    _derived: dict[str, Any] = field(default_factory=dict, repr=False)
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the content, as hex: equal for equal facts and tables of equal types and values."""
        digest = hashlib.sha256(json.dumps(self.facts, sort_keys=True, separators=(",", ":")).encode())
        if self.table is not None:
            for piece in _pieces(self.table):
                digest.update(piece)
        return digest.hexdigest()

    def derive(self, name: str, build: Callable[[], T]) -> T:
        """A structure that `build` derives from this artifact, such as a lookup table: built once, for all threads."""
        with self._lock:
            if name not in self._derived:
                self._derived[name] = build()
            structure: T = self._derived[name]
            return structure


def _pieces(table: pa.Table) -> Iterator[memoryview]:
    """A table as Arrow streams: the same bytes for the same types and values, however it was built.

    Gathering every row rebuilds the buffers, without offsets, spare bits or unneeded validity bits.
    """
    for start in range(0, max(table.num_rows, 1), _DIGESTED_ROWS):
        part = table.slice(start, _DIGESTED_ROWS)
        fresh = part.take(pa.array(np.arange(part.num_rows))).combine_chunks().replace_schema_metadata(None)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, fresh.schema) as writer:
            writer.write_table(fresh)
        yield memoryview(sink.getvalue())


class Learner(Protocol):
    """One statistic. It sums exactly: integers, or floats by `exact_sums`.

    keys: columns of its states by which a large one may be cut: rows with equal keys are merged together, others
    independently; none for a state of a few rows.
    """

    @property
    def keys(self) -> tuple[str, ...]: ...

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        """The state of some rows. `columns`: the op's values (lists as lists), then its side columns."""
        ...

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        """The state of the rows of all states."""
        ...

    def finish(self, parts: Parts) -> Artifact:
        """The artifact. Raises FeedlineError, with rule and remedy, if nothing can be learnt from the rows."""
        ...

    def blank(self) -> Artifact:
        """A placeholder before the fit, from which kinds and columns follow."""
        ...

    def show(self, artifact: Artifact) -> dict[str, Any]:
        """A summary of the artifact: a few readable values by name, and a sentence as `WARNING` where it misleads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """How an op learns.

    learner: from the parameters and the op's values; None where the parameters suffice. side_columns: further columns
    to observe with the values, by role. row_roles: those of them that transforming needs again for rows that the fit
    has seen (the op leaves each such row out of its own statistics); where the fit has seen only some rows, a Boolean
    column in the role `SEEN` marks them. name: features with the same name, op and parameters share a fit; None: only
    those with the same chain. check: raises SpecError for side columns, by role, of a kind that cannot be learnt from.
    """

    learner: Callable[[Any, Sequence[Any]], Learner | None]
    side_columns: Callable[[Any], Mapping[str, str]] = lambda parameters: {}
    row_roles: Callable[[Any], tuple[str, ...]] = lambda parameters: ()
    name: Callable[[Any], str | None] = lambda parameters: None
    check: Callable[[Any, Mapping[str, Any]], None] = lambda parameters, side_values: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Data that an op reads from outside: a table or a zarr array, by path or URI; `options`: JSON for the reader.

    max_memory: the limit in bytes per process; not part of its identity.
    """

    kind: Literal["table", "zarr"]
    uri: str
    options: str = "{}"
    max_memory: int = 2**30

    @property
    def name(self) -> str:
        """Its identity as a string."""
        return json.dumps([self.kind, self.uri, self.options])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FitRequest:
    """A fit to run: what to learn, from which columns.

    key: hex digest of everything but types that decides what is learnt. op: name, version, parameters as JSON. chain:
    for messages. types: the table's columns that the values derive from, with their Arrow types. streams: for each
    feature that shares the fit, the columns to observe, as features of the group `observed`. depends: the keys of fits
    that must run first. behind: for each stream the identity of its column and of the ops before the fit. shared:
    whether a name joins the features, so that the key does not identify the streams.
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
    """The artifacts that features are compiled with."""

    def seen_rows(self, key: str) -> bool | str:
        """Which of the transformed rows a fit has seen: all, none, or those where the column of that name is true."""
        ...

    def find_artifact(self, request: FitRequest) -> Artifact | None:
        """The artifact of a fit; None if there is none that matches the request."""
        ...

    def read(self, reading: Reading) -> Artifact:
        """An artifact from outside the table. Raises SpecError if it cannot be read."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemoryArtifacts:
    """Artifacts in memory, by key. out_of_fold: the rows that all fits have seen, see `seen_rows`."""

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    out_of_fold: bool | str = False

    def seen_rows(self, key: str) -> bool | str:
        return self.out_of_fold

    def find_artifact(self, request: FitRequest) -> Artifact | None:
        return self.artifacts.get(request.key)

    def read(self, reading: Reading) -> Artifact:
        raise SpecError(f"artifacts in memory read no files: got {reading.uri!r}, expected features of the table alone")


NO_ARTIFACTS = InMemoryArtifacts()
