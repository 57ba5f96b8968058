"""Store artifact sets in a folder or URI, and load them.

Runs in: every process that compiles features. The folder holds

    pipelines/…             the current manifest of each pipeline and source (`artifact_sets`); replaced last
    fits-<digest>.json      a manifest: every fit with its facts and the rows it was fitted on
    tables/<digest>.parquet a table that is too large for JSON

Manifests and tables are named by the digest of their bytes, which is checked before use. A process holds each artifact
once, for all features, jobs and threads.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, replace
from functools import lru_cache
from typing import Any
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.artifacts import artifact_sets as artifact_files
from feedline.artifacts.artifact_sets import (
    FORMAT,
    ArtifactSetKey,
    ArtifactSetRecord,
    Refusal,
    explain_no_match,
    find_set,
    load_sets,
    other_pipelines,
    parse_json,
    read_checked,
    write_file,
)
from feedline.artifacts.external import read_external
from feedline.artifacts.fit_origin import FitOrigin
from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError
from feedline.transforms.compile.fit_requests import describe_chain
from feedline.transforms.learning.learner import Artifact, FitRequest, Reading
from feedline.warehouse.reading.seen_rows import TableRows, rows_seen_by_any
from feedline.warehouse.storage.locations import Location, absolute, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

# --------------------------------------------------------------------------------------------------------------------
# The kind of values that a recorded Arrow type stands for.

_LIST = re.compile(r"(?:large_|fixed_size_)?list(?:_view)?<[^:]+: (.*?)(?: not null)?>(?:\[\d+\])?")
_DICTIONARY = re.compile(r"dictionary<values=([^,]+), .*>")
_KINDS = (
    (re.compile(r"u?int\d+"), "integer"),
    (re.compile(r"halffloat|float|double"), "float"),
    (re.compile(r"(large_)?string(_view)?"), "string"),
    (re.compile(r"(large_)?binary(_view)?"), "binary"),
)


def kind_of(arrow_type: str) -> str:
    """Reduce an Arrow type to the kind that a fit depends on: integer, float, string, binary, or lists of them."""
    if (match := _LIST.fullmatch(arrow_type)) is not None:
        return f"list of {kind_of(match[1])}"
    if (match := _DICTIONARY.fullmatch(arrow_type)) is not None:
        return kind_of(match[1])
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(arrow_type)), arrow_type)


# --------------------------------------------------------------------------------------------------------------------

_DIGEST_DIGITS = 32  # of a SHA-256, in hex


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """The file of an artifact's table below the folder, named by the digest of its bytes."""

    sha256: str
    rows: int
    bytes: int

    @property
    def name(self) -> str:
        """Path of the file, relative to the folder."""
        return f"tables/{self.sha256[:_DIGEST_DIGITS]}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One fit, as a manifest records it.

    key: see `FitRequest`. op, version, parameters: the op that was fitted. types: the columns it was learnt from, with
    their Arrow types. depends: the fits upstream in its chain, with the digests of their artifacts. shown: a readable
    summary of the artifact. digest: of the artifact. behind: see `FitRequest`.
    also_on: rows of further sources of the pipeline. redefined: see `ArtifactSetKey`, of its features.
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
    also_on: tuple[FitOrigin, ...] = ()
    redefined: Mapping[str, str] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """The op, for messages."""
        return _describe_call(self.op, self.version, self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A set of fits by key, and its digest."""

    digest: str
    fits: Mapping[str, Fit]

    def valid(self, key: str) -> bool:
        """Whether the fits that this one was learnt behind are those of this set."""
        depends = self.fits[key].depends
        return all(name in self.fits and self.fits[name].digest == digest for name, digest in depends.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedArtifact:
    """A fit with its artifact, to be saved; artifact: None if its table is in the folder already."""

    fit: Fit
    artifact: Artifact | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSetRef:
    """The artifact set of a job, small enough to travel with every task.

    folder: the folder of artifacts. manifest: its digest; None if nothing is fitted. base_dir: the folder that relative
    paths in features are relative to. readings: names and digests of the external artifacts of the plan. out_of_fold:
    whether rows that a fit has seen are encoded without their own contribution. rows: the rows that the job transforms;
    None if the fits have seen all of them. request: selects a set if `manifest` is None; workers do not get it.
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

    newest: look up the current set of `ref.request` when the first fit is requested.
    """

    def __init__(self, ref: ArtifactSetRef, *, newest: bool = False) -> None:
        self.ref = ref
        self._newest = newest
        self._external: dict[str, Artifact] = {}
        self._record: ArtifactSetRecord | None = None
        self._manifest: Manifest | None = None

    @property
    def pinned_ref(self) -> ArtifactSetRef:
        """The same artifact set for other processes, which accept only the external artifacts that were read here."""
        readings = tuple(sorted((name, artifact.digest) for name, artifact in self._external.items()))
        return replace(self.ref, readings=readings or self.ref.readings, request=None)

    def seen_rows(self, key: str) -> bool | str:
        """Which of the job's rows a fit has seen, see `rows_seen_by_any`; a fit still to be made will have seen all."""
        if not self.ref.out_of_fold or self.ref.rows is None:
            return self.ref.out_of_fold
        manifest = self.manifest
        fit = None if manifest is None else manifest.fits.get(key)
        if fit is None:
            return True
        return rows_seen_by_any([origin.table_rows for origin in (fit.fitted_on, *fit.also_on)], self.ref.rows)

    @property
    def manifest(self) -> Manifest | None:
        """The set of fits. Raises as `load_manifest` does."""
        if self._newest:
            self._choose()
            self._newest = False
        elif self._manifest is None and self.ref.manifest is not None:
            self._manifest = load_manifest(self.ref.folder, self.ref.manifest)
        return self._manifest

    @property
    def record(self) -> ArtifactSetRecord | None:
        """The record of the set that was looked up; None if none matches, or the manifest was given."""
        return self._record if self.manifest is not None else None

    def _choose(self) -> None:
        folder, request = self.ref.folder, self.ref.request
        assert request is not None
        if self.ref.rows is not None:
            request = replace(request, root=self.ref.rows.root)
        record = find_set(folder, request)
        if record is None:
            return
        manifest = load_manifest(folder, record.manifest)
        self._record, self._manifest, self.ref = record, manifest, replace(self.ref, manifest=manifest.digest)

    def refusal(self) -> Refusal | None:
        """Explain why no set matches although the folder has some; None if it has none, or one matches."""
        request, folder = self.ref.request, self.ref.folder
        if request is None or self.manifest is not None:
            return None
        return explain_no_match(request, load_sets(folder, request.owner), other_pipelines(folder, request.owner))

    def find_artifact(self, request: FitRequest) -> Artifact | None:
        """The artifact of a fit, read once per process; None if there is none that matches (see `explain_missing`).

        Raises CorruptFileError if the files do not hold what was written.
        """
        manifest = self.manifest
        fit = None if manifest is None else manifest.fits.get(request.key)
        if fit is None or manifest is None or not manifest.valid(fit.key) or self._refused(fit) is not None:
            return None
        if _mismatched_columns(fit, request) or _chain_differs(fit, request):
            return None
        return load_artifact(self.ref.folder, fit)

    def explain_missing(self, request: FitRequest) -> str:
        """Explain why a fit is missing: what the set has instead, and what was expected; for messages."""
        manifest = self.manifest
        if manifest is None:
            return "got no artifact"
        fit = manifest.fits.get(request.key)
        if fit is not None:
            for name in _mismatched_columns(fit, request):
                got, expected = fit.types.get(name, "nothing"), request.types.get(name, "nothing")
                return f"got an artifact that was learnt from {name}: {got}, expected {expected}"
            if _chain_differs(fit, request):
                got, expected = (", ".join(map(describe_chain, one.behind)) for one in (fit, request))
                return f"got an artifact that was learnt from {got}, expected one learnt from {expected}"
            if (reason := self._refused(fit)) is not None:
                return f"got an artifact {reason}"
            return "got an artifact whose own inputs have been fitted again since"
        near = [fit for fit in manifest.fits.values() if request.feature.partition(" (input ")[0] in fit.features]
        same = [fit for fit in near if fit.op == request.op[0]] or near
        if not same:
            return "got no artifact"
        expected = _describe_call(*request.op)
        if same[0].call != expected:
            return f"got an artifact of {same[0].call}, expected {expected}"
        if same[0].chain == request.chain:
            got = f"got an artifact of {same[0].call} behind ops with other parameters, versions or functions"
            return f"{got}, expected those of the pipeline: {request.chain}"
        return f"got an artifact of {same[0].call} behind another chain, {same[0].chain}, expected {request.chain}"

    def _refused(self, fit: Fit) -> str | None:
        """Why a fit of several sources is made again, as a clause; None if it is used. A run that began with it goes on
        with it, and so does serving."""
        request = self.ref.request
        if request is None or request.served:
            return None
        if request.shared_from is None:
            expected = dict(request.redefined)
            for name in fit.features:
                if fit.redefined.get(name) != expected.get(name):
                    got, own = (each.get(name, "none") for each in (fit.redefined, expected))
                    return f"learnt from other definitions of {name} in the sources: got {got}, expected {own}"
        return None

    def read(self, reading: Reading) -> Artifact:
        """Read an external artifact. Raises as `read_external` does."""
        expected = dict(self.ref.readings).get(reading.name)
        apart = {"artifacts": self.ref.folder} if self.ref.folder else {}
        artifact = read_external(reading, self.ref.base_dir, expected, apart=apart)
        self._external[reading.name] = artifact
        return artifact

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArtifactSet, (self.pinned_ref,)


def load_manifest(folder: str, digest: str) -> Manifest:
    """Load a set of fits.

    Raises CorruptFileError if it is missing or not what was written; SpecError if it has the format of another version
    of Feedline; StoreError.
    """
    return _load_manifest(absolute(folder), digest)


def load_artifact(folder: str, fit: Fit) -> Artifact:
    """Load a fit's artifact: the same object for the same content, as long as it is referenced."""
    with _artifacts_lock:
        artifact = _artifacts.get(fit.digest)
        if artifact is None:
            table = None if fit.table is None else _load_table(absolute(folder), fit.table)
            artifact = Artifact(facts=fit.facts, table=table)
            artifact.__dict__["digest"] = fit.digest  # computing it would take a pass over the table
            _artifacts[fit.digest] = artifact
        return artifact


def check_files(ref: ArtifactSetRef) -> None:
    """Raise, as `load_manifest` does, if this process cannot reach the files of a job's artifact set."""
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


def save_manifest(folder: str, fitted_artifacts: Iterable[FittedArtifact]) -> Manifest:
    """Write a set of fits; `artifact_sets.save_set` then makes it the current one."""
    fits = {}
    for one in sorted(fitted_artifacts, key=lambda one: one.fit.key):
        fits[one.fit.key] = one.fit
        if one.artifact is None:
            continue
        if one.artifact.table is not None:
            file = _save_table(folder, one.artifact.table, one.fit.table)
            fits[one.fit.key] = replace(one.fit, table=file)
        with _artifacts_lock:  # this process need not read it again
            _artifacts.setdefault(one.fit.digest, one.artifact)
    # as pairs, whose order `sort_keys` does not change
    entries = [
        {**asdict(fit), "fitted_on": fit.fitted_on.to_json(), "shown": list(fit.shown.items())} for fit in fits.values()
    ]
    for entry, fit in zip(entries, fits.values(), strict=True):
        entry["also_on"] = [origin.to_json() for origin in fit.also_on]
        for name in ("also_on", "redefined"):
            if not entry[name]:
                del entry[name]
    body = {"format": FORMAT, "fits": entries}
    content = json.dumps(body, sort_keys=True, indent=1).encode()
    digest = artifact_files.content_digest(content)
    write_file(folder, _manifest_name(digest), content)
    return Manifest(digest=digest, fits=fits)


def _save_table(folder: str, table: pa.Table, existing: TableFile | None) -> TableFile:
    """Write an artifact's table, unless its `existing` file is there with the recorded size; it may be damaged."""
    if existing is not None and _size_of(locate(absolute(folder)), existing.name) == existing.bytes:
        return existing
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content = sink.getvalue()
    file = TableFile(sha256=artifact_files.content_digest(content), rows=table.num_rows, bytes=content.size)
    write_file(folder, file.name, content)
    return file


def _size_of(location: Location, name: str) -> int | None:
    path = join(location.path, name)
    info = with_retries(lambda: location.filesystem.get_file_info(path), location.filesystem, join(location.uri, name))
    return info.size if info.is_file else None


_artifacts_lock = threading.Lock()
_artifacts: WeakValueDictionary[str, Artifact] = WeakValueDictionary()


def _chain_differs(fit: Fit, request: FitRequest) -> bool:
    """Whether a fit shared by name lacks this feature, or was learnt behind other ops: the key does not cover that."""
    return bool(fit.behind) and not set(request.behind) <= set(fit.behind)


def _describe_call(op: str, version: int, parameters: str) -> str:
    return f"{op} (version {version}) with {parameters}"


def _mismatched_columns(fit: Fit, request: FitRequest) -> list[str]:
    """The request's columns that the fit was learnt from with another kind of type, or not at all."""
    return [name for name, dtype in request.types.items() if kind_of(fit.types.get(name, "")) != kind_of(dtype)]


def _manifest_name(digest: str) -> str:
    return f"fits-{digest[:_DIGEST_DIGITS]}.json"


@lru_cache(maxsize=32)
def _load_manifest(folder: str, digest: str) -> Manifest:
    name = _manifest_name(digest)
    content = read_checked(folder, name, digest, expected="a set of fits")
    body = parse_json(content, join(folder, name), {"fits": list})
    fits = [
        Fit(
            **{
                **entry,
                "features": tuple(entry["features"]),
                "behind": tuple(entry.get("behind", ())),
                "fitted_on": FitOrigin.from_json(entry["fitted_on"]),
                "also_on": tuple(map(FitOrigin.from_json, entry.get("also_on", ()))),
                "shown": dict(entry["shown"]),
                "table": None if entry["table"] is None else TableFile(**entry["table"]),
            }
        )
        for entry in body["fits"]
    ]
    return Manifest(digest=digest, fits={fit.key: fit for fit in fits})


def _load_table(folder: str, file: TableFile) -> pa.Table:
    content = read_checked(folder, file.name, file.sha256, expected="an artifact")
    table = pq.read_table(pa.BufferReader(content))
    for index in range(table.num_columns):  # one chunk each, so that ops read values without copying
        column = table.column(index)
        if column.num_chunks > 1 and pat.is_primitive(column.type):
            table = table.set_column(index, table.schema.field(index), column.combine_chunks())
    return table
