"""Store artifact sets in a folder or URI, and load them.

Runs in: every process that compiles features. The folder holds

    pipelines/…             the current manifest of each pipeline and source (`artifact_sets`); replaced last
    fits-<digest>.json      a manifest: every fit with its facts and what it was fitted on, named by its own bytes
    tables/<digest>.parquet what is too large for JSON, named by its own bytes

so every reader sees one whole set, a job keeps the set that it began with, and an interrupted or repeated
`feedline fit` leaves nothing half written. Every file is checked by its digest before it is used; nothing is pickled. A
process holds each artifact once, for all features, jobs and threads.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.artifacts.artifact_sets import (
    FORMAT,
    REMEDY,
    ArtifactSetKey,
    ArtifactSetRecord,
    Refusal,
    altered_error,
    find_set,
    load_old_set,
    load_sets,
    other_pipelines,
    parse_json,
    read_file,
    refusal,
)
from feedline.artifacts.external import read_outside
from feedline.errors import CorruptFileError
from feedline.transforms.compile.fit_requests import describe_chain
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.reading.seen_rows import TableRows, rows_seen
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

_NAME_DIGITS = 32  # of a SHA-256, in hex
_LIST = re.compile(r"(?:large_|fixed_size_)?list(?:_view)?<[^:]+: (.*?)(?: not null)?>(?:\[\d+\])?")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")
_KINDS = (
    (re.compile(r"u?int\d+"), "integer"),
    (re.compile(r"halffloat|float|double"), "float"),
    (re.compile(r"(large_)?string(_view)?"), "string"),
    (re.compile(r"(large_)?binary(_view)?"), "binary"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """The file of an artifact's table below the folder, named by the digest of its bytes."""

    sha256: str
    rows: int
    bytes: int

    @property
    def name(self) -> str:
        """The file, below the folder."""
        return f"tables/{self.sha256[:_NAME_DIGITS]}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOrigin:
    """The rows that a fit was learnt from: the table, its snapshot, which rows of it, and how many.

    where, sample: those in use. pipeline: the one that fitted; None in manifests of earlier versions. fit_where: its
    `fit.where`. named: the files, folders and globs that made the table; none for all below it.
    """

    table: str
    snapshot: str
    where: str | None
    sample: Mapping[str, Any] | None
    rows: int
    pipeline: str | None = None
    fit_where: str | None = None
    named: tuple[str, ...] = ()

    @property
    def seen(self) -> TableRows:
        """The rows that the fit has seen, whatever the snapshot."""
        sample = None if self.sample is None else Sample(**{**self.sample, "key": tuple(self.sample["key"])})
        return TableRows(root=self.table, sources=self.named, where=self.where, sample=sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One fit, as a manifest records it.

    key: see `FitRequest`. op, version, parameters: what learnt. types: the columns it was learnt from, with their Arrow
    types. depends: the fits that its values went through, with the digests of their artifacts. shown: the artifact for
    people. digest: the artifact's own. behind: see `FitRequest`; empty in manifests of earlier versions.
    """

    key: str
    op: str
    version: int
    parameters: str
    chain: str
    features: tuple[str, ...]
    types: Mapping[str, str]
    depends: Mapping[str, str]
    fitted_on: FitOrigin
    facts: Mapping[str, Any]
    shown: Mapping[str, Any]
    table: TableFile | None
    digest: str
    behind: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """The op as messages name it."""
        return _call(self.op, self.version, self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A set of fits by key, and the digest that names it."""

    digest: str
    fits: Mapping[str, Fit]

    def valid(self, key: str) -> bool:
        """Whether the fits that this one's values went through are those of this set."""
        return all(
            name in self.fits and self.fits[name].digest == made for name, made in self.fits[key].depends.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedArtifact:
    """A fit with its artifact, to be saved; None where its table is in the folder."""

    fit: Fit
    artifact: Artifact | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSetRef:
    """The artifact set a job works with, small enough to travel with every task.

    folder: where artifacts are kept. manifest: the digest of the set of fits; None where nothing is fitted. base_dir:
    the folder that relative paths in features are relative to. readings: what was read from outside when the plan was
    made: names and digests. out_of_fold: whether rows that a fit has seen are left out of what they are told. rows:
    those that the job transforms; None for rows that the fits have seen, all of them. request: which fits to look for
    where the manifest is not named; no part of what workers are told.
    """

    folder: str
    manifest: str | None
    out_of_fold: bool
    base_dir: str
    readings: tuple[tuple[str, str], ...] = ()
    rows: TableRows | None = None
    request: ArtifactSetKey | None = None


class StoredArtifactSet:
    """The artifact set of a folder; see `ArtifactSet`.

    newest: the set is looked up with the first fit: the current one of `ref.request`.
    """

    def __init__(self, ref: ArtifactSetRef, *, newest: bool = False) -> None:
        self.ref = ref
        self._newest = newest
        self._read: dict[str, Artifact] = {}
        self._chosen: ArtifactSetRecord | None = None
        self._known: Manifest | None = None
        self.refused: tuple[Fit, ...] = ()  # of a set of an earlier version: learnt from something else

    @property
    def pinned(self) -> ArtifactSetRef:
        """The same artifact set for other processes, which may read nothing else from outside than was read here."""
        readings = tuple(sorted((name, artifact.digest) for name, artifact in self._read.items()))
        return replace(self.ref, readings=readings or self.ref.readings, request=None)

    def seen_rows(self, key: str) -> bool | str:
        """Which of the job's rows a fit has seen, see `rows_seen`; what is not fitted yet will have seen all."""
        if not self.ref.out_of_fold or self.ref.rows is None:
            return self.ref.out_of_fold
        manifest = self.manifest
        fit = None if manifest is None else manifest.fits.get(key)
        return True if fit is None else rows_seen(fit.fitted_on.seen, self.ref.rows)

    @property
    def manifest(self) -> Manifest | None:
        """The set of fits. Raises as `load_manifest`."""
        if self._newest:
            self._choose()
            self._newest = False
        elif self._known is None and self.ref.manifest is not None:
            self._known = load_manifest(self.ref.folder, self.ref.manifest)
        return self._known

    @property
    def chosen(self) -> ArtifactSetRecord | None:
        """The set that was looked up; None where none is what is asked for, or a manifest was named."""
        return self._chosen if self.manifest is not None else None

    def _choose(self) -> None:
        """Look the set up: the request's own, else what an earlier version left, as far as it is what is asked for."""
        folder, request = self.ref.folder, self.ref.request
        assert request is not None
        if self.ref.rows is not None:
            request = replace(request, root=self.ref.rows.root)
        one = find_set(folder, request)
        if one is None and request.shared in (None, request.pipeline):
            one = load_old_set(folder)
        if one is None:
            return
        known = load_manifest(folder, one.manifest)
        if one.source is None:
            taken = {key: fit for key, fit in known.fits.items() if _takes_old(request, fit.fitted_on)}
            self.refused = tuple(fit for key, fit in known.fits.items() if key not in taken)
            if not taken:
                return
            known = replace(known, fits=taken)
        self._chosen, self._known, self.ref = one, known, replace(self.ref, manifest=known.digest)

    def refusal(self) -> Refusal | None:
        """Why no set of fits is what is asked for, where the folder has others; None where it has none, or has it."""
        request = self.ref.request
        if request is None or self.manifest is not None:
            return None
        folder = self.ref.folder
        found = refusal(request, load_sets(folder, request.owner), other_pipelines(folder, request.owner))
        if (found is not None and found.final) or not self.refused:
            return found
        origin = self.refused[0].fitted_on
        got, expected = _rows(origin.table, origin.where), _rows(request.source.tables, request.source.where)
        return Refusal(
            text=f"got fits without a pipeline's name, learnt from {got}, expected {expected}",
            remedy="Fit it: feedline fit, or, if those fits are this pipeline's, write "
            f"`artifacts: {{from: {request.pipeline}}}`",
        )

    def find_artifact(self, wanted: FitRequest) -> Artifact | None:
        """What was learnt, read once per process; None where nothing was, or something else (see `instead`).

        Raises CorruptFileError where the files do not hold what was written.
        """
        manifest = self.manifest
        fit = None if manifest is None else manifest.fits.get(wanted.key)
        if fit is None or manifest is None or not manifest.valid(fit.key):
            return None
        if _other_types(fit, wanted) or _other_chain(fit, wanted):
            return None
        return load_artifact(self.ref.folder, fit)

    def instead(self, wanted: FitRequest) -> str:
        """What is there in the place of a fit that is not, and what was expected: for messages."""
        manifest = self.manifest
        if manifest is None:
            return "got no artifact"
        fit = manifest.fits.get(wanted.key)
        refused = next((fit for fit in self.refused if fit.key == wanted.key), None)
        if fit is None and refused is not None:
            got = _rows(refused.fitted_on.table, refused.fitted_on.where)
            return f"got an artifact without a pipeline's name, learnt from {got}"
        if fit is not None:
            for name in _other_types(fit, wanted):
                got, expected = fit.types.get(name, "nothing"), wanted.types.get(name, "nothing")
                return f"got an artifact that was learnt from {name}: {got}, expected {expected}"
            if _other_chain(fit, wanted):
                got, expected = (", ".join(map(describe_chain, one.behind)) for one in (fit, wanted))
                got = got or f"{', '.join(fit.features)} ({fit.chain})"
                return f"got an artifact that was learnt from {got}, expected one that was from {expected}"
            return "got an artifact whose own inputs were fitted again since"
        near = [fit for fit in manifest.fits.values() if wanted.feature.partition(" (input ")[0] in fit.features]
        same = [fit for fit in near if fit.op == wanted.op[0]] or near
        if not same:
            return "got no artifact"
        expected = _call(*wanted.op)
        if same[0].call != expected:
            return f"got an artifact of {same[0].call}, expected {expected}"
        if same[0].chain == wanted.chain:
            got = f"got an artifact of {same[0].call} behind ops of other parameters, versions or functions"
            return f"{got}, expected those of the pipeline: {wanted.chain}"
        return f"got an artifact of {same[0].call} behind another chain, {same[0].chain}, expected {wanted.chain}"

    def read(self, reading: Reading) -> Artifact:
        """What is read from outside. Raises as `read_outside`."""
        expected = dict(self.ref.readings).get(reading.name)
        found = self._read[reading.name] = read_outside(reading, self.ref.base_dir, expected)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArtifactSet, (self.pinned,)


def load_manifest(folder: str, digest: str) -> Manifest:
    """A set of fits.

    Raises CorruptFileError where it is not what was written, or gone; SpecError where another version of Feedline
    wrote it in another format; StoreError.
    """
    return _load_manifest(absolute(folder), digest)


def load_artifact(folder: str, fit: Fit) -> Artifact:
    """A fit's artifact: the same object for the same content, as long as anyone holds it."""
    with _loading:
        artifact = _loaded.get(fit.digest)
        if artifact is None:
            table = None if fit.table is None else _load_table(absolute(folder), fit.table)
            artifact = Artifact(facts=fit.facts, table=table)
            artifact.__dict__["digest"] = fit.digest  # computing it again would cost a pass over the table
            _loaded[fit.digest] = artifact
        return artifact


def prove(ref: ArtifactSetRef) -> None:
    """Raise, as `load_manifest` does, where this process cannot read what a job needs: its files are not there."""
    if ref.manifest is None:
        return
    location = locate(absolute(ref.folder))
    for fit in load_manifest(ref.folder, ref.manifest).fits.values():
        if fit.table is None:
            continue
        size = _size_of(location, fit.table.name)
        if size != fit.table.bytes:
            got = "no file" if size is None else f"{size} bytes"
            raise CorruptFileError(
                f"artifact {redact(join(ref.folder, fit.table.name))} cannot be read here: got {got}, expected "
                f"{fit.table.bytes} bytes. Name a folder for `artifacts` that every host shares, or fit again"
            )


def save(folder: str, learnt: Iterable[FittedArtifact]) -> Manifest:
    """Write a set of fits, for somebody to name it (`artifact_sets.save_set`)."""
    location = locate(absolute(folder))
    fits = {}
    for one in sorted(learnt, key=lambda one: one.fit.key):
        fits[one.fit.key] = one.fit
        if one.artifact is None:
            continue
        if one.artifact.table is not None:
            file = _save_table(location, one.artifact.table, one.fit.table)
            fits[one.fit.key] = replace(one.fit, table=file)
        with _loading:  # who loads it here need not read it
            _loaded.setdefault(one.fit.digest, one.artifact)
    # pairs, whose order stays where keys are sorted
    entries = [{**asdict(fit), "shown": list(fit.shown.items())} for fit in fits.values()]
    body = {"format": FORMAT, "fits": entries}
    text = json.dumps(body, sort_keys=True, indent=1).encode()
    digest = hashlib.sha256(text).hexdigest()
    content_store.put(location, _manifest_name(digest), [text])
    return Manifest(digest=digest, fits=fits)


def kind_of(arrow_type: str) -> str:
    """The kind of a type that a fit depends on: integer, float, string, binary or lists of them, whatever the width."""
    if (found := _LIST.fullmatch(arrow_type)) is not None:
        return f"list of {kind_of(found[1])}"
    if (found := _DICTIONARY.fullmatch(arrow_type)) is not None:
        return kind_of(found[1])
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(arrow_type)), arrow_type)


def _save_table(location: Location, table: pa.Table, known: TableFile | None) -> TableFile:
    """Write an artifact's table; one that is `known` need not be, where it is there. What is there may be damaged."""
    if known is not None and _size_of(location, known.name) == known.bytes:
        return known
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content = sink.getvalue()
    sha256 = hashlib.sha256(memoryview(content)).hexdigest()
    file = TableFile(sha256=sha256, rows=table.num_rows, bytes=content.size)
    content_store.put(location, file.name, [content])
    return file


def _size_of(location: Location, name: str) -> int | None:
    """Bytes of a file below a folder; None where there is none."""
    path = join(location.path, name)
    info = with_retries(lambda: location.filesystem.get_file_info(path), location.filesystem, join(location.uri, name))
    return info.size if info.is_file else None


_loading = threading.Lock()
_loaded: WeakValueDictionary[str, Artifact] = WeakValueDictionary()


def _other_chain(fit: Fit, wanted: FitRequest) -> bool:
    """Whether what shares a fit by name was not learnt from, or behind other ops: the key says nothing of that."""
    if fit.behind or not wanted.shared:
        return bool(fit.behind) and not set(wanted.behind) <= set(fit.behind)
    feature = wanted.feature.partition(" (input ")[0]
    return feature not in fit.features or (feature == fit.features[0] and fit.chain != wanted.chain)


def _takes_old(request: ArtifactSetKey, origin: FitOrigin) -> bool:
    return request.takes_old(origin.table, origin.where, origin.sample)


def _rows(table: str, where: str | None) -> str:
    return table if where is None else f"{table} where {where}"


def _call(op: str, version: int, parameters: str) -> str:
    return f"{op} (version {version}) with {parameters}"


def _other_types(fit: Fit, wanted: FitRequest) -> list[str]:
    """The columns that were learnt from as other kinds, or not at all. What others share a fit, a feature need not."""
    return [name for name, dtype in wanted.types.items() if kind_of(fit.types.get(name, "")) != kind_of(dtype)]


def _manifest_name(digest: str) -> str:
    return f"fits-{digest[:_NAME_DIGITS]}.json"


@lru_cache(maxsize=32)
def _load_manifest(folder: str, digest: str) -> Manifest:
    name = _manifest_name(digest)
    content = read_file(folder, name)
    if content is None:
        raise CorruptFileError(f"{redact(join(folder, name))} is gone: expected a set of fits. {REMEDY}")
    if hashlib.sha256(memoryview(content)).hexdigest() != digest:
        raise altered_error(join(folder, name))
    body = parse_json(bytes(content), join(folder, name), {"fits": list})
    fits = [
        Fit(
            **{
                **entry,
                "features": tuple(entry["features"]),
                "behind": tuple(entry.get("behind", ())),
                "fitted_on": FitOrigin(**{**entry["fitted_on"], "named": tuple(entry["fitted_on"].get("named", ()))}),
                "shown": dict(entry["shown"]),
                "table": None if entry["table"] is None else TableFile(**entry["table"]),
            }
        )
        for entry in body["fits"]
    ]
    return Manifest(digest=digest, fits={fit.key: fit for fit in fits})


def _load_table(folder: str, file: TableFile) -> pa.Table:
    content = read_file(folder, file.name)
    if content is None:
        raise CorruptFileError(f"{redact(join(folder, file.name))} is gone: expected an artifact. {REMEDY}")
    if hashlib.sha256(memoryview(content)).hexdigest() != file.sha256:
        raise altered_error(join(folder, file.name))
    table = pq.read_table(pa.BufferReader(content))
    for place in range(table.num_columns):  # in one piece each, so that ops read numbers where they are
        column = table.column(place)
        if column.num_chunks > 1 and pat.is_primitive(column.type):
            table = table.set_column(place, table.schema.field(place), column.combine_chunks())
    return table
