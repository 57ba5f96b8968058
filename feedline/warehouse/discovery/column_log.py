"""Read the log of a table's column files: which fields they add to which base files, and which columns are dropped.

Runs where a table is listed, and where columns are added or dropped, or rows deleted. Pure, except for reading commits.
Below the table's hidden folder `_columns`, `log/00000001.json` is the first commit; each is a JSON object that is never
changed:

    {"version": 1, "action": "add", "from": "price / 2 as half", "schema": <Arrow IPC, base64>,
     "files": [{"base": "ds=1/a.parquet", "base_digest": …, "path": "_columns/files/…", "bytes": …, …}]}
    {"version": 1, "action": "drop", "fields": ["half"], "hidden": []}
    {"version": 1, "action": "rewrite", "files": [{"base": "ds=1/a.parquet", …, "fields": ["half"]}], "removed": []}

A column file holds fields of all rows of one base file. Where two hold the same field of a base file, the one of the
later commit is read. A dropped field of column files may be added again; a dropped column of base files (`hidden`)
stays hidden.

A deletion of rows writes base files and their column files anew, and commits the column files before it replaces base
files. From then on there are two versions of them, of which the one is read whose base file is there, by the digest of
its footer (`files_of_base`). The old ones are removed when the base files are replaced, and so are those of base files
without rows left (`removed`), in whose place others may come.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import CorruptFileError, TableChangedError, TableError
from feedline.warehouse.storage.content_store import get
from feedline.warehouse.storage.file_identity import Stamp
from feedline.warehouse.storage.locations import Location, join, redact
from feedline.warehouse.storage.parallel import in_threads

FOLDER = "_columns"
LOG, FILES = f"{FOLDER}/log", f"{FOLDER}/files"
SUFFIX = ".columns"  # not .parquet: tools that follow a glob would take column files for rows
COLUMN_FILES = "column_files"  # the name of that column, of a listing's and a snapshot's files
_VERSION = 1
_THREADS = 16
_DIGITS = 8  # of a commit's number, so that names sort as numbers
_Digest = bytes  # within `ColumnFile` the field `bytes` hides the type

ENTRIES = pa.list_(
    pa.struct(
        [
            ("path", pa.string()),
            ("bytes", pa.int64()),
            ("mtime_ns", pa.int64()),
            ("footer_digest", pa.binary()),
            ("footer_bytes", pa.int64()),
            ("base_digest", pa.binary()),
            ("fields", pa.list_(pa.string())),
        ]
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFile:
    """A column file of one base file. path: below the table's root. mtime_ns: -1 without a time, or not listed yet.

    fields: those that are read from it; later commits may have replaced others. base_digest: of the footer of the base
    file for which it was written.
    """

    path: str
    bytes: int
    footer_digest: _Digest
    footer_bytes: int
    base_digest: _Digest
    fields: tuple[str, ...]
    mtime_ns: int = -1

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.bytes, self.mtime_ns)

    @property
    def content_name(self) -> tuple[str, ...]:
        """What names the values that are read from it, in keys of what is kept."""
        return self.path, str(self.bytes), str(self.mtime_ns), self.footer_digest.hex(), *self.fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLog:
    """The state of a table's columns after a number of commits.

    fields: those that column files hold, by name, in the order in which they were added. files: of each base file, by
    its path, the column files that are read with it, in all versions, the newest last. hidden: columns of base files
    that were dropped. removed: base files without rows left, whose column files may be missing. sources: where each
    field's values came from, last. paths: of all column files that commits have named, also of those that are read no
    more.
    """

    commits: int = 0
    fields: Mapping[str, pa.Field] = field(default_factory=dict)
    files: Mapping[str, tuple[ColumnFile, ...]] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    sources: Mapping[str, str] = field(default_factory=dict)
    paths: frozenset[str] = frozenset()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(list(self.fields.values()))

    def visible(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a base file that are not dropped."""
        return pa.schema([each for each in schema if each.name not in self.hidden]) if self.hidden else schema


@dataclass(frozen=True, slots=True, kw_only=True)
class AddCommit:
    """One `columns add`: the fields, the column file of each base file (by its path), and where values came from."""

    schema: pa.Schema
    files: Mapping[str, ColumnFile]
    source: str = ""

    def to_json(self) -> bytes:
        files = [_file_facts(base, file) for base, file in self.files.items()]
        schema = base64.b64encode(self.schema.serialize().to_pybytes()).decode()
        types = {each.name: str(each.type) for each in self.schema}  # for people
        facts = {"from": self.source, "types": types, "schema": schema, "files": files}
        return _encode({"version": _VERSION, "action": "add", **facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCommit:
    """One `columns drop`. hidden: those of the fields that base files hold."""

    fields: tuple[str, ...]
    hidden: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        facts = {"fields": list(self.fields), "hidden": list(self.hidden)}
        return _encode({"version": _VERSION, "action": "drop", **facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteCommit:
    """The column files of one deletion of rows, by the paths of the base files that are written anew. Each has the
    fields that are read from the column file in whose place it comes. removed: base files without rows left."""

    files: Mapping[str, tuple[ColumnFile, ...]]
    removed: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        files = [
            {**_file_facts(base, file), "fields": list(file.fields)} for base, own in self.files.items() for file in own
        ]
        return _encode({"version": _VERSION, "action": "rewrite", "files": files, "removed": list(self.removed)})


Commit: TypeAlias = AddCommit | DropCommit | RewriteCommit


def column_path(folder: str, base: str) -> str:
    """The column file of a base file in a folder of a run's own, below the table's root."""
    return f"{FILES}/{folder}/{base}{SUFFIX}"


def base_path(path: str) -> str:
    """The base file of a column file, which may be in no commit."""
    # _columns/files/3fa9c1d2/ds=1/a.parquet.columns -> ds=1/a.parquet
    return path.removeprefix(f"{FILES}/").partition("/")[2].removesuffix(SUFFIX)


def commit_name(number: int) -> str:
    """The file of a commit, below the table's root."""
    return f"{LOG}/{number:0{_DIGITS}d}.json"


def parse_commit(content: bytes, name: str) -> Commit:
    """Raises CorruptFileError, naming the file, for what is no commit."""
    try:
        facts: dict[str, Any] = json.loads(content)
        if facts["version"] != _VERSION:
            raise TableError(
                f"{name} is of another version: got {facts['version']}, expected {_VERSION}. Install the Feedline "
                "that wrote it, or a later one"
            )
        if facts["action"] == "drop":
            return DropCommit(fields=tuple(facts["fields"]), hidden=tuple(facts["hidden"]))
        if facts["action"] == "rewrite":
            rewritten: dict[str, tuple[ColumnFile, ...]] = {}
            for file in facts["files"]:
                rewritten[file["base"]] = *rewritten.get(file["base"], ()), _column_file(file, file["fields"])
            return RewriteCommit(files=rewritten, removed=tuple(facts["removed"]))
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(facts["schema"], validate=True)))
        files = {file["base"]: _column_file(file, schema.names) for file in facts["files"]}
        return AddCommit(schema=schema, files=files, source=facts["from"])
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        if isinstance(error, TableError):
            raise
        raise CorruptFileError(
            f"{name} is not a commit of column files: {error}. Restore it from a copy of the table"
        ) from error


def replay(commits: Iterable[Commit]) -> ColumnLog:
    """The state after some commits, in their order. Raises TableError where two give a field different types."""
    fields: dict[str, pa.Field] = {}
    files: dict[str, dict[str, list[ColumnFile]]] = {}  # versions by base file and field
    hidden: set[str] = set()
    removed: set[str] = set()
    sources: dict[str, str] = {}
    paths: set[str] = set()
    count = 0
    for commit in commits:
        count += 1
        if isinstance(commit, DropCommit):
            hidden.update(commit.hidden)
            for name in commit.fields:
                fields.pop(name, None)
                for of_base in files.values():
                    of_base.pop(name, None)
            continue
        if isinstance(commit, RewriteCommit):
            removed.update(commit.removed)
            paths.update(each.path for own in commit.files.values() for each in own)
            for base, own in commit.files.items():
                for written, name in ((each, name) for each in own for name in each.fields):
                    files.get(base, {}).get(name, []).append(written)
            continue
        for added in commit.schema:
            known = fields.setdefault(added.name, added)
            if not known.type.equals(added.type):
                raise TableError(
                    f"column {added.name!r} has two types in the log of column files: got {added.type} in commit "
                    f"{count}, expected {known.type} as before. Delete that commit if it is the last, else restore "
                    f"{LOG} from a copy of the table"
                )
        sources |= dict.fromkeys(commit.schema.names, commit.source)
        paths.update(file.path for file in commit.files.values())
        for base in removed.intersection(commit.files):  # another file is there now
            files.pop(base, None)
        removed.difference_update(commit.files)
        for base, file in commit.files.items():
            files.setdefault(base, {}).update((name, [file]) for name in commit.schema.names)
    return ColumnLog(
        commits=count,
        fields=fields,
        files={base: tuple(_with_fields(of_base)) for base, of_base in files.items() if of_base},
        hidden=frozenset(hidden),
        removed=frozenset(removed),
        sources={name: sources[name] for name in fields},
        paths=frozenset(paths),
    )


def read_log(root: Location, names: Iterable[str]) -> ColumnLog | None:
    """The state of a table whose log has these files; None without one. Names of other files are ignored.

    Raises TableError where a commit is missing, and as `parse_commit` and `replay`.
    """
    commits = sorted(name for name in names if name.endswith(".json") and name.removesuffix(".json").isdigit())
    if not commits:
        return None
    for number, name in enumerate(commits, 1):
        if int(name.removesuffix(".json")) != number:
            raise TableError(
                f"commit {number} of the column files of {redact(root.uri)} is missing: got {name}, expected "
                f"{commit_name(number)}. Restore it from a copy of the table"
            )

    def read(name: str) -> Commit:
        content = bytes(memoryview(get(root, f"{LOG}/{name}")))
        return parse_commit(content, join(redact(root.uri), f"{LOG}/{name}"))

    return replay(in_threads(read, commits, threads=_THREADS))


def _encode(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, indent=1).encode() + b"\n"


def _file_facts(base: str, file: ColumnFile) -> dict[str, Any]:
    return {
        "base": base,
        "base_digest": file.base_digest.hex(),
        "path": file.path,
        "bytes": file.bytes,
        "footer_digest": file.footer_digest.hex(),
        "footer_bytes": file.footer_bytes,
    }


def _column_file(facts: Mapping[str, Any], fields: Iterable[str]) -> ColumnFile:
    return ColumnFile(
        path=facts["path"],
        bytes=int(facts["bytes"]),
        footer_digest=bytes.fromhex(facts["footer_digest"]),
        footer_bytes=int(facts["footer_bytes"]),
        base_digest=bytes.fromhex(facts["base_digest"]),
        fields=tuple(fields),
    )


def _with_fields(by_field: Mapping[str, Sequence[ColumnFile]]) -> Iterable[ColumnFile]:
    """The column files of a base file, each with the fields that are read from it."""
    # x, y of file 1, then y of file 2 -> x of file 1, y of file 2
    fields: dict[str, list[str]] = {}
    by_path = {file.path: file for versions in by_field.values() for file in versions}
    for name, file in ((name, file) for name, versions in by_field.items() for file in versions):
        fields.setdefault(file.path, []).append(name)
    return [replace(by_path[path], fields=tuple(names)) for path, names in fields.items()]


# -- column files in tables of files ----------------------------------------------------------------------------------


def with_column_files(files: pa.Table, log: ColumnLog, stamps: Mapping[str, Stamp], name: str) -> pa.Table:
    """Listed base files with their column files. stamps: of listed column files, by their paths below the root.

    Raises TableChangedError for a column file that is missing in all versions, or has another size than its commit
    says.
    """
    paths = files["path"].to_pylist()
    entries = [[_listed(file, stamps, name) for file in _not_removed(log, path, stamps)] or None for path in paths]
    return files.append_column(COLUMN_FILES, pa.array(entries, ENTRIES))


def with_files_of_base(files: pa.Table, base_digests: Sequence[bytes]) -> pa.Table:
    """Listed base files with the versions of their column files that are read. base_digests: of base files."""
    entries = files[COLUMN_FILES].to_pylist()
    several = [index for index, own in enumerate(entries) if own is not None and _has_versions(own)]
    if not several:
        return files
    for index in several:
        own = [_from_entry(entry) for entry in entries[index]]
        entries[index] = [_to_entry(file) for file in files_of_base(own, base_digests[index])]
    return files.set_column(files.schema.get_field_index(COLUMN_FILES), COLUMN_FILES, pa.array(entries, ENTRIES))


def files_of_base(files: Sequence[ColumnFile], base_digest: _Digest) -> Iterable[ColumnFile]:
    """Of column files in all versions those that were written for a base file of this footer; of fields without such a
    version the newest, which readers refuse."""
    # x of versions 1, 2, 3, of which 2 is of that base file -> x of version 2
    by_field: dict[str, Sequence[ColumnFile]] = {}
    for file in sorted(files, key=lambda each: each.base_digest == base_digest):
        by_field |= dict.fromkeys(file.fields, (file,))
    return _with_fields(by_field)


def _has_versions(entries: Sequence[Mapping[str, Any]]) -> bool:
    fields = [name for entry in entries for name in entry["fields"]]
    return len(set(fields)) < len(fields)


def column_files_of(files: pa.Table, index: int) -> tuple[ColumnFile, ...]:
    """The column files of one base file of a listing or snapshot."""
    entries = files[COLUMN_FILES][index].as_py() if COLUMN_FILES in files.schema.names else None
    return tuple(_from_entry(entry) for entry in entries or ())


def column_file_names(files: pa.Table, columns: Collection[str] | None = None) -> list[str]:
    """Of each base file what names the content of its column files; empty without any. columns: of those alone that
    hold one of these."""
    if COLUMN_FILES not in files.schema.names:
        return [""] * len(files)
    names = []
    for entries in files[COLUMN_FILES].to_pylist():
        own = [_from_entry(entry) for entry in entries or ()]
        found = [file.content_name for file in own if columns is None or not set(columns).isdisjoint(file.fields)]
        names.append(json.dumps(found) if found else "")
    return names


def _not_removed(log: ColumnLog, base: str, stamps: Mapping[str, Stamp]) -> list[ColumnFile]:
    """The versions of a base file's column files that no deletion has removed: of each field at least one."""
    files = log.files.get(base, ())
    present = {name for file in files if file.path in stamps for name in file.fields}
    may_lack = {name for file in files for name in file.fields} if base in log.removed else present
    return [file for file in files if file.path in stamps or not may_lack.issuperset(file.fields)]


def _listed(file: ColumnFile, stamps: Mapping[str, Stamp], name: str) -> dict[str, Any]:
    stamp = stamps.get(file.path)
    if stamp is None or stamp.size_bytes != file.bytes:
        got = "none" if stamp is None else f"{stamp.size_bytes} bytes"
        raise TableChangedError(
            f"column file {join(name, file.path)} is not the one that was added: got {got}, expected {file.bytes} "
            f"bytes. Restore it, or drop its columns ({', '.join(file.fields)}) with feedline columns drop"
        )
    return _to_entry(replace(file, mtime_ns=stamp.mtime_ns))


def _to_entry(file: ColumnFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "bytes": file.bytes,
        "mtime_ns": file.mtime_ns,
        "footer_digest": file.footer_digest,
        "footer_bytes": file.footer_bytes,
        "base_digest": file.base_digest,
        "fields": list(file.fields),
    }


def _from_entry(entry: Mapping[str, Any]) -> ColumnFile:
    return ColumnFile(**{**entry, "fields": tuple(entry["fields"])})
