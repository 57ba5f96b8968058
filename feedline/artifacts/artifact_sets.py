"""Choose the artifact set of a pipeline, among those in a folder of artifacts.

Runs in: every process that reads or writes artifacts. A set belongs to one pipeline, by its name, and to one source, as
that pipeline declares it: the table's path, `fit.where` and the sample. Each set has its own file, replaced atomically:

    pipelines/<name>/<source>.json    the current manifest, the time of each fit, the name and the source

Serving compares the name alone, as its table may be out of reach. `artifacts: {from: NAME}` compares neither name nor
table nor sample. See docs/decisions/0012.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, FeedlineError, SpecError
from feedline.expressions.parser import python_tree
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, is_uri, join, list_folder, locate, redact
from feedline.warehouse.storage.retry import with_retries

# --------------------------------------------------------------------------------------------------------------------
# Read and write the files of a folder of artifacts: JSON documents and Parquet tables, checked before use.

FORMAT = 1  # of all JSON documents


def list_files(folder: str, name: str) -> list[pafs.FileInfo]:
    """The files and folders in a subfolder, by name; none if it does not exist. Raises as `read_file`."""
    try:
        location = locate(absolute(folder))
        filesystem, path = location.filesystem, join(location.path, name)
        infos = with_retries(
            lambda: list_folder(filesystem, path, allow_not_found=True), filesystem, redact(location.uri)
        )
        return sorted(infos, key=lambda info: info.base_name)
    except FeedlineError:
        raise
    except OSError as error:
        raise _unreadable_error(join(folder, name), error) from error


def list_names(folder: str, name: str, suffix: str) -> list[str]:
    """The files with a suffix in a subfolder, relative to the folder. Raises as `read_file`."""
    return [f"{name}/{info.base_name}" for info in list_files(folder, name) if info.base_name.endswith(suffix)]


def read_file(folder: str, name: str) -> bytes | pa.Buffer | None:
    """Read a file below the folder; None if it does not exist. Raises SpecError if the folder cannot be read."""
    try:
        return content_store.get(locate(absolute(folder)), name)
    except FileNotFoundError:
        return None
    except FeedlineError:
        raise
    except OSError as error:
        raise _unreadable_error(join(folder, name), error) from error


def read_checked(folder: str, name: str, sha256: str, *, expected: str) -> bytes | pa.Buffer:
    """Read a file with this digest. Raises CorruptFileError if it is missing or has another one.

    expected: what it holds, for the message.
    """
    content = read_file(folder, name)
    if content is None:
        raise CorruptFileError(f"{redact(join(folder, name))} is gone: expected {expected}. Fit again: feedline fit")
    if content_digest(content) != sha256:
        raise altered_error(join(folder, name))
    return content


def write_file(folder: str, name: str, content: bytes | pa.Buffer) -> None:
    """Write a file below the folder, replacing an existing one atomically."""
    content_store.put(locate(absolute(folder)), name, [content])


def content_digest(content: bytes | pa.Buffer) -> str:
    """The SHA-256 of a file's content, in hex."""
    return hashlib.sha256(memoryview(content)).hexdigest()


def parse_json(content: bytes | pa.Buffer, path: str, required: Mapping[str, type]) -> dict[str, Any]:
    """Parse a JSON document of this format. Raises CorruptFileError, SpecError for another version."""
    try:
        body = json.loads(bytes(content))
        version = body["format"]
    except (ValueError, KeyError, TypeError):
        raise altered_error(path) from None
    if version != FORMAT:
        raise SpecError(
            f"artifacts at {redact(path)} have another format: got version {version!r}, expected {FORMAT}. Fit again, "
            "with this version of Feedline: feedline fit"
        )
    if not all(isinstance(body.get(key), kind) for key, kind in required.items()):
        raise altered_error(path)
    document: dict[str, Any] = body
    return document


def parquet_bytes(table: pa.Table) -> pa.Buffer:
    """A table as the Parquet file of golden vectors and records of types."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", use_dictionary=False, write_page_checksum=True)
    return sink.getvalue()


def parsed_parquet(content: bytes | pa.Buffer, path: str) -> pa.Table:
    """The table of a Parquet file. Raises CorruptFileError if it is none, or a page's checksum is wrong."""
    try:
        # not `read_table`, which imports pyarrow.dataset: a resumed run's first batch waits for it
        with pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True) as file:
            return file.read()
    except (pa.ArrowException, OSError) as error:
        raise altered_error(path) from error


def altered_error(path: str) -> CorruptFileError:
    """The error for a file whose digest or structure is wrong."""
    return CorruptFileError(
        f"{redact(path)} does not hold what was written: it is truncated or altered. Write it again with `feedline fit`"
    )


def _unreadable_error(path: str, error: OSError) -> SpecError:
    return SpecError(f"artifacts cannot be read: {redact(path)}: {error}. Name a readable folder in `artifacts`")


# --------------------------------------------------------------------------------------------------------------------

_SETS = "pipelines"
_NAMES_IN_MESSAGE = 5
_SLUG = re.compile(r"[^A-Za-z0-9._-]")
_SLUG_LENGTH = 40
_STORE_OPTIONS = ("endpoint_override",)  # options of a URI that name the store; others configure access to it


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSource:
    """The rows that a pipeline declares for its fits.

    table: paths and URIs, as `table_name` returns them. where: `fit.where`; if None, fits use the rows that the current
    `source.where` keeps. sample: as JSON, with the lists whose elements are the rows.
    """

    table: tuple[str, ...]
    where: str | None = None
    sample: str | None = None

    @property
    def id(self) -> str:
        """Identifies the source in file names."""
        content = [self.table, canonical_where(self.where), self.sample]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    @property
    def tables(self) -> str:
        """The table as messages name it."""
        return ", ".join(self.table)

    def same_where(self, where: str | None) -> bool:
        """Whether a filter equals the declared one, apart from spacing and quoting."""
        return canonical_where(self.where) == canonical_where(where)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSetKey:
    """The facts that select the artifact set of a pipeline.

    pipeline: its name. shared_from: the name in `artifacts: {from: …}`. served: serving compares the name alone. root:
    the root of the table's snapshot, if there is one. redefined: by feature, how sources define it in place of the
    pipeline, as JSON; a fit's key knows only the pipeline's definition.
    """

    pipeline: str
    source: FitSource
    shared_from: str | None = None
    served: bool = False
    root: str | None = None
    redefined: tuple[tuple[str, str], ...] = ()

    @property
    def owner(self) -> str:
        """The pipeline whose sets are used."""
        return self.pipeline if self.shared_from is None else self.shared_from


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSetRecord:
    """The file of an artifact set: its current manifest and the time of each fit.

    fit_times: ISO times by key of the fit. saved_at: ISO time.
    """

    pipeline: str
    source: FitSource
    manifest: str
    fit_times: Mapping[str, str]
    saved_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why no set is used: the mismatch and the remedy, which may name the command `feedline fit`.

    final: `fit: auto` cannot remedy it.
    """

    mismatch: str
    remedy: str
    final: bool = False

    def remedy_for(self, command: str) -> str:
        """The remedy with the command that fits one pipeline."""
        return self.remedy.replace("feedline fit", f"`{command}`")


def table_name(table: str) -> str:
    """Return the canonical path or URI of a table: absolute, without options that only configure access to the store.

    Symbolic links are not resolved. Raises TableError for a string that is neither.
    """
    uri = absolute(table)
    if not is_uri(uri):
        return uri
    address, _, options = uri.partition("?")
    scheme, _, rest = address.partition("://")
    if scheme.lower() == "file":
        return os.path.normpath(unquote(urlsplit(f"file://{rest}").path) or "/")
    store_options = [(key, value) for key, value in parse_qsl(options) if key in _STORE_OPTIONS]
    return f"{scheme.lower()}://{rest}" + (f"?{urlencode(store_options)}" if store_options else "")


def canonical_where(where: str | None) -> str | None:
    """Normalize the spaces, quotes and parentheses of a filter."""
    if where is None:
        return None
    try:
        return ast.unparse(python_tree(f"({where}\n)"))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return where  # the error comes when it is bound


def fit_source(
    table: str | Sequence[str],
    where: str | None,
    sample: Mapping[str, Any] | None,
    explode: Sequence[str] | None = None,
) -> FitSource:
    """Return the source that a pipeline declares. explode: the lists whose elements are its rows. Raises TableError as
    `table_name` does."""
    tables = [table] if isinstance(table, str) else table
    return FitSource(
        table=tuple(sorted({table_name(one) for one in tables})),
        where=where,
        sample=_sample_text(sample, explode),
    )


def join_sources(sources: Mapping[str, FitSource]) -> FitSource:
    """The source of a pipeline that learns from several, by name. Its sample says which table is which."""
    parts = {name: [each.table, each.sample] for name, each in sources.items()}
    return FitSource(
        table=tuple(sorted({table for each in sources.values() for table in each.table})),
        where=next(each.where for each in sources.values()),
        sample=json.dumps({"sources": parts}, sort_keys=True),
    )


def _sample_text(sample: Mapping[str, Any] | None, explode: Sequence[str] | None) -> str | None:
    content = {**(sample or {}), **({} if explode is None else {"explode": list(explode)})}
    return None if sample is None and explode is None else json.dumps(content, sort_keys=True)


def safe_name(name: str) -> str:
    """Turn a pipeline's name into a readable and unique path component."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{_SLUG.sub('_', name)[:_SLUG_LENGTH]}-{digest}"


def choose_set(request: ArtifactSetKey, sets: Sequence[ArtifactSetRecord]) -> ArtifactSetRecord | None:
    """Choose the set of a pipeline among those of `request.owner`; None if none matches. Pure."""
    source = request.source
    matches = [one for one in sets if one.source is not None and not _differs(request, one.source)]

    def nearness(one: ArtifactSetRecord) -> tuple[Any, ...]:
        assert one.source is not None
        own = one.source
        return own.table == source.table, source.same_where(own.where), own.sample == source.sample, one.saved_at

    return max(matches, key=nearness, default=None)


def explain_no_match(
    request: ArtifactSetKey, sets: Sequence[ArtifactSetRecord], others: Sequence[str]
) -> Refusal | None:
    """Explain why none of the owner's sets matches, or which other pipelines have sets.

    None if there is no set at all. Pure.
    """
    fit = "Fit it: feedline fit"
    sources = [one.source for one in sorted(sets, key=lambda one: one.saved_at, reverse=True) if one.source is not None]
    if not sources:
        return _no_set_refusal(request, others)
    own = request.source
    candidates = [source for source in sources if request.shared_from is not None or source.table == own.table]
    if not candidates:
        return Refusal(
            mismatch=f"the fits of pipeline {request.owner!r} were learnt from another table: got {sources[0].tables}, "
            f"expected {own.tables}",
            remedy=f"{fit}, give each pipeline a `name` of its own, or write `artifacts: {{from: {request.owner}}}` to "
            "use those fits with this table",
            final=True,
        )
    rows = [source for source in candidates if own.same_where(source.where)]
    if rows and request.shared_from is None:
        return Refusal(
            mismatch=f"the fits of pipeline {request.owner!r} were learnt from another sample: got {_sample(rows[0])}, "
            f"expected {_sample(own)}",
            remedy=f"Write `artifacts: {{from: {request.owner}}}` to use those fits, as an evaluation on other rows "
            "does, or learn from this sample: feedline fit",
            final=True,
        )
    got, expected = _where(candidates[0].where), _where(own.where)
    alone = "" if request.shared_from is not None else f"{fit}, or "
    return Refusal(
        mismatch=f"the fits of pipeline {request.owner!r} were learnt from other rows: got {got}, expected {expected}",
        remedy=f"{alone}{'n' if alone else 'N'}ame the same `fit.where` as the fit did",
        final=request.shared_from is not None,
    )


def _no_set_refusal(request: ArtifactSetKey, others: Sequence[str]) -> Refusal | None:
    if not others and request.shared_from is None:
        return None
    names = ", ".join(repr(name) for name in others[:_NAMES_IN_MESSAGE]) + (
        " and others" * (len(others) > _NAMES_IN_MESSAGE)
    )
    got = f"fits of pipeline{'s' if len(others) > 1 else ''} {names}" if others else "no fits"
    if request.shared_from is not None:
        remedy = f"Fit pipeline {request.shared_from!r} first, or name another one in `artifacts: {{from: …}}`"
        return Refusal(
            mismatch=f"got {got}, expected fits of pipeline {request.shared_from!r}", remedy=remedy, final=True
        )
    return Refusal(
        mismatch=f"got {got}, expected fits of pipeline {request.pipeline!r}",
        remedy=f"Write `artifacts: {{from: {others[0]}}}` to share the fits of pipeline {others[0]!r}, as a renamed "
        "evaluation does, or fit this one: feedline fit",
    )


def _differs(request: ArtifactSetKey, source: FitSource) -> bool:
    if request.shared_from is not None:
        return request.source.where is not None and not request.source.same_where(source.where)
    if request.served:
        return False
    own = request.source
    return source.table != own.table or source.sample != own.sample or not own.same_where(source.where)


def _sample(source: FitSource) -> str:
    """Describe a sample for messages, without default values."""
    if source.sample is None:
        return "no sample"
    content = json.loads(source.sample)
    if "sources" in content:
        own = content["sources"].items()
        texts = [f"{name} of {', '.join(table)}" + (sample is not None) * ", sampled" for name, (table, sample) in own]
        return f"the sources {'; '.join(texts)}"
    lists = content.pop("explode", None)
    if lists is not None:
        elements = f"the elements of {', '.join(lists)}"
        return f"{elements}, {_sample(replace(source, sample=json.dumps(content)))}" if content else elements
    values = {key: value for key, value in content.items() if value not in (None, [], 0)}
    return "a sample of " + ", ".join(f"{key} {value}" for key, value in values.items())


def _where(where: str | None) -> str:
    return "no `fit.where`" if where is None else f"fit.where {where!r}"


def find_set(folder: str, request: ArtifactSetKey) -> ArtifactSetRecord | None:
    """Find the set of a pipeline; None if none matches. Raises as `load_sets` does."""
    exact = load_set(folder, request.owner, request.source)
    return exact if exact is not None else choose_set(request, load_sets(folder, request.owner))


def load_set(folder: str, pipeline: str, source: FitSource) -> ArtifactSetRecord | None:
    """Load the set of exactly this source; None if there is none. Raises as `load_sets` does."""
    name = set_file(pipeline, source)
    content = read_file(folder, name)
    return None if content is None else _parse_record(content, join(folder, name))


def load_sets(folder: str, pipeline: str) -> list[ArtifactSetRecord]:
    """Load all sets of a pipeline. Raises CorruptFileError, SpecError for another format, StoreError."""
    names = list_names(folder, f"{_SETS}/{safe_name(pipeline)}", ".json")
    contents = {name: read_file(folder, name) for name in names}
    return [_parse_record(body, join(folder, name)) for name, body in contents.items() if body is not None]


def other_pipelines(folder: str, pipeline: str) -> list[str]:
    """Names of some other pipelines with sets in a folder, for messages."""
    pipelines = []
    for info in list_files(folder, _SETS):
        if info.type == pafs.FileType.Directory and info.base_name != safe_name(pipeline):
            names = [one.base_name for one in list_files(folder, f"{_SETS}/{info.base_name}")]
            pointer = next((name for name in names if name.endswith(".json")), None)
            content = None if pointer is None else read_file(folder, f"{_SETS}/{info.base_name}/{pointer}")
            if content is not None:
                pipelines.append(_parse_record(content, join(folder, str(pointer))).pipeline)
        if len(pipelines) > _NAMES_IN_MESSAGE:
            break
    return sorted(pipelines)


def save_set(folder: str, one: ArtifactSetRecord) -> None:
    """Make a set the current one of its pipeline and source."""
    body = {
        "format": FORMAT,
        "pipeline": one.pipeline,
        "source": asdict(one.source),
        "manifest": one.manifest,
        "fitted": dict(one.fit_times),
        "saved": one.saved_at,
    }
    write_file(folder, set_file(one.pipeline, one.source), json.dumps(body, sort_keys=True, indent=1).encode())


def set_file(pipeline: str, source: FitSource) -> str:
    """The file of a set, relative to the folder."""
    return f"{_SETS}/{safe_name(pipeline)}/{source.id}.json"


def _parse_record(content: bytes | pa.Buffer, path: str) -> ArtifactSetRecord:
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
        fit_times=body["fitted"],
        saved_at=body["saved"],
    )
