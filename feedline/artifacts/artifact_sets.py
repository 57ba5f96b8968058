"""Choose the artifact set of a pipeline, among those in a folder of artifacts.

Runs in: every process that reads or writes artifacts. A set belongs to one pipeline, by its name, and to one source, as
that pipeline declares it: the table's path, `fit.where` and the sample. Each set has a file of its own, replaced in one
step, so that pipelines and sources never touch each other's:

    pipelines/<name>/<source>.json    the current manifest, when each fit was made, the name and the source
    artifacts.json                    written by earlier versions instead, for all pipelines: only read

Training uses the set of its own name, table, `fit.where` and sample. Serving compares the name alone: its table may be
out of reach. `artifacts: {from: NAME}` compares neither name nor table nor sample.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from feedline.errors import CorruptFileError, FeedlineError, SpecError
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, is_uri, join, locate, redact
from feedline.warehouse.storage.retry import with_retries

FORMAT = 1
OLD_POINTER = "artifacts.json"
REMEDY = "Fit again: feedline fit"
_SETS = "pipelines"
_SHOWN_NAMES = 5
_SLUG = re.compile(r"[^A-Za-z0-9._-]")
_SLUG_CHARACTERS = 40
_GLOB = re.compile(r"[*?\[]")
_STORE_OPTIONS = ("endpoint_override",)  # options of a URI that name the store; others configure access to it


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSource:
    """The rows that a pipeline declares for its fits.

    table: paths and URIs, as `table_name` gives them. where: `fit.where`; None where it is not declared: then fits are
    learnt from the rows that `source.where` keeps at that moment. sample: as JSON.
    """

    table: tuple[str, ...]
    where: str | None = None
    sample: str | None = None

    @property
    def id(self) -> str:
        """Names the file of a set."""
        content = [self.table, canonical_where(self.where), self.sample]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def tables(self) -> str:
        """The table as messages name it."""
        return ", ".join(self.table)

    def same_where(self, where: str | None) -> bool:
        """Whether a filter is the declared one, however it is spaced or quoted."""
        return canonical_where(self.where) == canonical_where(where)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSetKey:
    """What selects the artifact set of a pipeline.

    pipeline: its name. shared: the name in `artifacts: {from: …}`. served: rows are served, which compares the name
    alone. root: the root of the table's snapshot, if there is one.
    """

    pipeline: str
    source: FitSource
    shared: str | None = None
    served: bool = False
    root: str | None = None

    @property
    def owner(self) -> str:
        """The pipeline whose sets are used."""
        return self.pipeline if self.shared is None else self.shared

    def takes_old(self, table: str, where: str | None, sample: Mapping[str, Any] | None) -> bool:
        """Whether a fit of an earlier version, which has no name, was learnt from these rows.

        table: the root of the snapshot. where: the filter in use, declared for fits or not.
        """
        if self.shared is not None:
            return self.shared == self.pipeline
        same = table == self.root if self.root is not None else _is_root(table, self.source.table)
        if self.served or not same:
            return same
        where_fits = self.source.where is None or self.source.same_where(where)
        return where_fits and _sample_text(sample) == self.source.sample


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSetRecord:
    """The file of an artifact set: its current manifest, and when each fit was made, by key.

    saved: ISO time. pipeline, source: None for a set of an earlier version.
    """

    pipeline: str | None
    source: FitSource | None
    manifest: str
    fitted: Mapping[str, str]
    saved: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why no set is used: the mismatch, and the remedy. final: `fit: auto` does not help either."""

    text: str
    remedy: str
    final: bool = False


def table_name(table: str) -> str:
    """The canonical path or URI of a table: absolute, without options that only configure access to the store.

    Symbolic links are not resolved. Raises TableError for a string that is neither.
    """
    place = absolute(table)
    if not is_uri(place):
        return place
    address, _, options = place.partition("?")
    scheme, _, rest = address.partition("://")
    if scheme.lower() == "file":
        return os.path.normpath(unquote(urlsplit(f"file://{rest}").path) or "/")
    kept = [(key, value) for key, value in parse_qsl(options) if key in _STORE_OPTIONS]
    return f"{scheme.lower()}://{rest}" + (f"?{urlencode(kept)}" if kept else "")


def canonical_where(where: str | None) -> str | None:
    """A filter with canonical spaces, quotes and parentheses."""
    if where is None:
        return None
    try:
        return ast.unparse(ast.parse(f"({where}\n)", mode="eval"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return where  # binding it says what is wrong with it


def fit_source(table: str | Sequence[str], where: str | None, sample: Mapping[str, Any] | None) -> FitSource:
    """The source of a pipeline that declares these. Raises TableError as `table_name`."""
    places = [table] if isinstance(table, str) else table
    return FitSource(
        table=tuple(sorted({table_name(place) for place in places})),
        where=where,
        sample=_sample_text(sample),
    )


def _sample_text(sample: Mapping[str, Any] | None) -> str | None:
    return None if sample is None else json.dumps(sample, sort_keys=True)


def safe_name(name: str) -> str:
    """A pipeline's name as part of a path: readable, and unique."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{_SLUG.sub('_', name)[:_SLUG_CHARACTERS]}-{digest}"


def choose_set(request: ArtifactSetKey, sets: Sequence[ArtifactSetRecord]) -> ArtifactSetRecord | None:
    """The set of a pipeline, among those of `request.owner`; None where none matches. Pure."""
    source = request.source
    fitting = [one for one in sets if one.source is not None and not _differs(request, one.source)]

    def nearness(one: ArtifactSetRecord) -> tuple[Any, ...]:
        assert one.source is not None
        equal = (one.source.table == source.table, source.same_where(one.source.where), one.source.sample)
        return (*equal[:2], equal[2] == source.sample, one.saved)

    return max(fitting, key=nearness, default=None)


def refusal(request: ArtifactSetKey, sets: Sequence[ArtifactSetRecord], others: Sequence[str]) -> Refusal | None:
    """Why none of the owner's sets matches, or which pipelines have sets where it has none; None in an empty folder.

    Pure.
    """
    fit = "Fit it: feedline fit"
    sources = [one.source for one in sorted(sets, key=lambda one: one.saved, reverse=True) if one.source is not None]
    if not sources:
        return _nobody(request, others)
    mine = request.source
    here = [source for source in sources if request.shared is not None or source.table == mine.table]
    if not here:
        return Refusal(
            text=f"the fits of pipeline {request.owner!r} were learnt from another table: got {sources[0].tables}, "
            f"expected {mine.tables}",
            remedy=f"{fit}, give each pipeline a `name` of its own, or write `artifacts: {{from: {request.owner}}}` to "
            "use those fits with this table",
            final=True,
        )
    rows = [source for source in here if mine.same_where(source.where)]
    if rows and request.shared is None:
        return Refusal(
            text=f"the fits of pipeline {request.owner!r} were learnt from another sample: got {_sample(rows[0])}, "
            f"expected {_sample(mine)}",
            remedy=f"{fit}, or write `artifacts: {{from: {request.owner}}}` to use those fits, for an evaluation on "
            "other rows say",
            final=True,
        )
    got, expected = _where(here[0].where), _where(mine.where)
    alone = "" if request.shared is not None else f"{fit}, or "
    return Refusal(
        text=f"the fits of pipeline {request.owner!r} were learnt from other rows: got {got}, expected {expected}",
        remedy=f"{alone}{'n' if alone else 'N'}ame the same `fit.where` as the fit did",
        final=request.shared is not None,
    )


def _nobody(request: ArtifactSetKey, others: Sequence[str]) -> Refusal | None:
    if not others and request.shared is None:
        return None
    some = ", ".join(repr(name) for name in others[:_SHOWN_NAMES]) + (" and others" * (len(others) > _SHOWN_NAMES))
    got = f"fits of pipeline{'s' if len(others) > 1 else ''} {some}" if others else "no fits"
    if request.shared is not None:
        remedy = f"Fit pipeline {request.shared!r} first, or name another one in `artifacts: {{from: …}}`"
        return Refusal(text=f"got {got}, expected fits of pipeline {request.shared!r}", remedy=remedy, final=True)
    share = f"write `artifacts: {{from: {others[0]}}}` to share the fits of pipeline {others[0]!r}"
    return Refusal(
        text=f"got {got}, expected fits of pipeline {request.pipeline!r}", remedy=f"Fit it: feedline fit, or {share}"
    )


def _differs(request: ArtifactSetKey, source: FitSource) -> bool:
    """Whether a set of that source does not match."""
    if request.shared is not None:
        return request.source.where is not None and not request.source.same_where(source.where)
    if request.served:
        return False
    mine = request.source
    return source.table != mine.table or source.sample != mine.sample or not mine.same_where(source.where)


def _sample(source: FitSource) -> str:
    """A sample for messages: its values other than defaults."""
    if source.sample is None:
        return "no sample"
    said = {key: value for key, value in json.loads(source.sample).items() if value not in (None, [], 0)}
    return "a sample of " + ", ".join(f"{key} {value}" for key, value in said.items())


def _where(where: str | None) -> str:
    return "no `fit.where`" if where is None else f"fit.where {where!r}"


def _is_root(root: str, table: Sequence[str]) -> bool:
    """Whether a table of these paths may have that root: the folder itself, or one that holds its files."""
    home, places = table_name(root), [place.partition("?")[0] if is_uri(place) else place for place in table]
    if len(places) == 1 and not _GLOB.search(places[0]) and "." not in places[0].rpartition("/")[2]:
        return home == places[0]
    return all(f"{place}/".startswith(f"{home.rstrip('/')}/") for place in places)


def find_set(folder: str, request: ArtifactSetKey) -> ArtifactSetRecord | None:
    """The set of a pipeline; None where none matches. Raises as `load_sets`."""
    exact = load_set(folder, request.owner, request.source)
    return exact if exact is not None else choose_set(request, load_sets(folder, request.owner))


def load_set(folder: str, pipeline: str, source: FitSource) -> ArtifactSetRecord | None:
    """The set of exactly that source. Raises as `load_sets`."""
    name = set_file(pipeline, source)
    content = read_file(folder, name)
    return None if content is None else _parsed(bytes(content), join(folder, name))


def load_sets(folder: str, pipeline: str) -> list[ArtifactSetRecord]:
    """The sets of a pipeline. Raises CorruptFileError, SpecError for another format, StoreError."""
    home = f"{_SETS}/{safe_name(pipeline)}"
    names = [f"{home}/{info.base_name}" for info in _listed(folder, home) if info.base_name.endswith(".json")]
    contents = {name: read_file(folder, name) for name in names}
    return [_parsed(bytes(body), join(folder, name)) for name, body in contents.items() if body is not None]


def load_old_set(folder: str) -> ArtifactSetRecord | None:
    """The set that an earlier version wrote for all pipelines. Raises as `load_sets`."""
    content = read_file(folder, OLD_POINTER)
    if content is None:
        return None
    body = parse_json(bytes(content), join(folder, OLD_POINTER), {"manifest": str, "fitted": dict})
    return ArtifactSetRecord(pipeline=None, source=None, manifest=body["manifest"], fitted=body["fitted"], saved="")


def other_pipelines(folder: str, pipeline: str) -> list[str]:
    """The names of some other pipelines that have sets in a folder, for messages."""
    found = []
    for info in _listed(folder, _SETS):
        if info.type == pafs.FileType.Directory and info.base_name != safe_name(pipeline):
            names = [one.base_name for one in _listed(folder, f"{_SETS}/{info.base_name}")]
            pointer = next((name for name in names if name.endswith(".json")), None)
            content = None if pointer is None else read_file(folder, f"{_SETS}/{info.base_name}/{pointer}")
            if content is not None:
                found.append(str(_parsed(bytes(content), join(folder, str(pointer))).pipeline))
        if len(found) > _SHOWN_NAMES:
            break
    return sorted(found)


def save_set(folder: str, one: ArtifactSetRecord) -> None:
    """Make a set the current one of its pipeline and source."""
    assert one.pipeline is not None
    assert one.source is not None
    body = {
        "format": FORMAT,
        "pipeline": one.pipeline,
        "source": asdict(one.source),
        "manifest": one.manifest,
        "fitted": dict(one.fitted),
        "saved": one.saved,
    }
    content = json.dumps(body, sort_keys=True, indent=1).encode()
    content_store.put(locate(absolute(folder)), set_file(one.pipeline, one.source), [content])


def set_file(pipeline: str, source: FitSource) -> str:
    """The file of a set, below the folder."""
    return f"{_SETS}/{safe_name(pipeline)}/{source.id}.json"


def _parsed(content: bytes, path: str) -> ArtifactSetRecord:
    kinds = {"pipeline": str, "source": dict, "manifest": str, "fitted": dict, "saved": str}
    body = parse_json(content, path, kinds)
    try:
        source = FitSource(**{**body["source"], "table": tuple(body["source"]["table"])})
    except (KeyError, TypeError):
        raise altered_error(path) from None
    return ArtifactSetRecord(
        pipeline=body["pipeline"],
        source=source,
        manifest=body["manifest"],
        fitted=body["fitted"],
        saved=body["saved"],
    )


def _listed(folder: str, name: str) -> list[pafs.FileInfo]:
    """The files of a subfolder, by name; none where it does not exist."""
    try:
        location = locate(absolute(folder))
        selector = pafs.FileSelector(join(location.path, name), allow_not_found=True)
        infos = with_retries(
            lambda: location.filesystem.get_file_info(selector), location.filesystem, redact(location.uri)
        )
        return sorted(infos, key=lambda info: info.base_name)
    except FeedlineError:
        raise
    except OSError as error:
        raise _unreadable(join(folder, name), error) from error


def read_file(folder: str, name: str) -> bytes | pa.Buffer | None:
    """A file below the folder; None where it does not exist. Raises SpecError where the folder cannot be read."""
    try:
        return content_store.get(locate(absolute(folder)), name)
    except FileNotFoundError:
        return None
    except FeedlineError:
        raise
    except OSError as error:
        raise _unreadable(join(folder, name), error) from error


def parse_json(content: bytes, path: str, needed: Mapping[str, type]) -> dict[str, Any]:
    """A JSON document of this format. Raises CorruptFileError, SpecError for another version."""
    try:
        body = json.loads(content)
        version = body["format"]
    except (ValueError, KeyError, TypeError):
        raise altered_error(path) from None
    if version != FORMAT:
        raise SpecError(
            f"artifacts at {redact(path)} have another format: got version {version!r}, expected {FORMAT}. Fit again, "
            f"with this version of Feedline: feedline fit"
        )
    if not all(isinstance(body.get(key), kind) for key, kind in needed.items()):
        raise altered_error(path)
    found: dict[str, Any] = body
    return found


def altered_error(path: str) -> CorruptFileError:
    """The error for a file with another digest or structure."""
    return CorruptFileError(
        f"{redact(path)} does not hold the bytes that were written: it is truncated or altered. {REMEDY}"
    )


def _unreadable(path: str, error: OSError) -> SpecError:
    return SpecError(f"artifacts cannot be read: {redact(path)}: {error}. Name a folder that can be for `artifacts`")
