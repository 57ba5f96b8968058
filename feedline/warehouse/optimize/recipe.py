"""Check the settings of `optimize` against a table, and turn them into a recipe for its partitions.

Runs where `optimize` is planned. The recipe has no encodings until rows have been sampled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError, TableError
from feedline.expressions.column_parts import flattened_name
from feedline.warehouse.discovery.partitions import keys_of_path, refine, typed_columns
from feedline.warehouse.optimize.clustering import refuse_keys
from feedline.warehouse.optimize.footprint import Footprint
from feedline.warehouse.optimize.repeated_columns import DedupGroups, check_groups, groups_to_write, refuse_columns
from feedline.warehouse.optimize.rewrite import Recipe
from feedline.warehouse.optimize.survey import Key, Survey, keys_worth, refuse_maps, survey, without_nulls
from feedline.warehouse.parquet.dedup_columns import METADATA_KEY
from feedline.warehouse.parquet.encodings import GOALS, Goal, decoder_name
from feedline.warehouse.parquet.history_note import NOTE_KEY as HISTORY_KEY
from feedline.warehouse.parquet.history_note import STRIPE_ROWS, HistoryOrder, is_key_type, is_time_type
from feedline.warehouse.parquet.request_rows import (
    REQUESTS_KEY,
    ROWS_KEY,
    RequestColumns,
    impression_schema,
    refuse_no_lists,
    requests_of,
)
from feedline.warehouse.parquet.schemas import FIELD_ID, child_fields, is_list, is_text, nested_like
from feedline.warehouse.parquet.writer import NOTE_KEY, Limits
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.claim import Claim
from feedline.warehouse.storage.parallel import Map

# --------------------------------------------------------------------------------------------------------------------
# Add field ids, and partition keys whose type folders cannot convey, to the schema that `optimize` writes. Pure; runs
# where `optimize` is planned. A key that folders alone would read with another type (`zip=007`, a string in the
# table's log) is also stored in the files as a column. A key that still cannot be read back is refused.


def key_columns(snapshot: Snapshot, *, without_folders: bool = False) -> list[pa.Field]:
    """Return the partition keys that must be columns of the rewritten files: to keep their type, or all of them, for a
    table `without_folders`.

    Raises TableError for a key that is only in the table's log, or whose values cannot be folder names.
    """
    if without_folders:
        values = {name: snapshot.partition_column(name) for name in snapshot.partition_columns}
        return [pa.field(name, each.type, nullable=each.null_count > 0) for name, each in values.items()]
    if not snapshot.logged or not snapshot.partition_columns:
        return []
    paths = snapshot.files["path"].to_pylist()
    folders = {path.rpartition("/")[0]: path for path in paths}
    for path in folders.values():
        unspelled = [name for name in snapshot.partition_columns if name not in keys_of_path(path)]
        if unspelled:
            raise TableError(
                f"partition key {unspelled[0]!r} of {snapshot.uri} exists only in its log: got the path {path!r}, "
                f"expected a folder {unspelled[0]}=…, which the rewritten table would have too. {_REMEDY}"
            )
    columns = []
    for name, spelled in typed_columns(paths).items():
        if name not in snapshot.partition_columns:
            continue
        values = snapshot.partition_column(name)
        if _same(spelled, values):
            continue
        if not _same(refine(spelled, name, values.type, paths), values):
            raise TableError(
                f"partition key {name!r} of {snapshot.uri} cannot be read back from folders: got {values.type} in its "
                f"log, spelled as in {paths[0]!r}. {_REMEDY}"
            )
        columns.append(pa.field(name, values.type, nullable=values.null_count > 0))
    return columns


_REMEDY = "Write the table to a new folder with the key as an ordinary column, and optimize that"


def with_field_ids(schema: pa.Schema, files: Iterable[pa.Schema]) -> pa.Schema:
    """Add the field ids, nested ones too, on which all files that have them agree."""
    others: dict[str, list[pa.Field]] = {}
    for stored in files:
        for field in stored:
            others.setdefault(field.name, []).append(field)
    fields = [_with_id(field, others.get(field.name, [])) for field in schema]
    return pa.schema(fields, metadata=schema.metadata)


def field_ids(schema: pa.Schema) -> list[tuple[str, str]]:
    """Return (path, field id) of a schema's fields that have one; empty for tables without."""
    ids: list[tuple[str, str]] = []

    def add(field: pa.Field, path: str) -> None:
        if (field_id := (field.metadata or {}).get(FIELD_ID)) is not None:
            ids.append((path, field_id.decode()))
        for child in child_fields(field.type):
            add(child, f"{path}.{child.name}")

    for field in schema:
        add(field, field.name)
    return sorted(ids)


def _same(read: pa.Array, values: pa.Array) -> bool:
    """Whether a key read back has the log's values, ignoring the width of integers and offsets."""
    if read.type != values.type and not any(
        test(read.type) and test(values.type) for test in (pat.is_integer, is_text)
    ):
        return False
    try:
        return bool(read.cast(values.type).equals(values))
    except pa.ArrowInvalid:
        return False


def _with_id(field: pa.Field, others: Sequence[pa.Field]) -> pa.Field:
    ids = {(other.metadata or {}).get(FIELD_ID) for other in others} - {None}
    metadata = {FIELD_ID: ids.pop()} if len(ids) == 1 else None
    return field.with_type(_with_inner_ids(field.type, [other.type for other in others])).with_metadata(metadata)


def _with_inner_ids(kind: pa.DataType, others: Sequence[pa.DataType]) -> pa.DataType:
    children = child_fields(kind)
    if not children or not (pat.is_struct(kind) or is_list(kind) or pat.is_map(kind)):
        return kind
    if pat.is_struct(kind):
        below: list[Mapping[str, pa.Field]] = [{field.name: field for field in child_fields(other)} for other in others]
        return pa.struct(
            [_with_id(field, [fields[field.name] for fields in below if field.name in fields]) for field in children]
        )
    inner = [
        _with_id(field, [child_fields(other)[index] for other in others if len(child_fields(other)) == len(children)])
        for index, field in enumerate(children)
    ]
    return nested_like(kind, inner)


# --------------------------------------------------------------------------------------------------------------------

Names = str | Sequence[str]

_VERSION = 1
# Metadata about columns, which would be wrong where columns move or are added.
_ABOUT_COLUMNS = {
    b"ARROW:schema",
    b"pandas",
    b"org.apache.spark.sql.parquet.row.metadata",
    b"iceberg.schema",
    METADATA_KEY,
    NOTE_KEY,
    HISTORY_KEY,
    REQUESTS_KEY,
    ROWS_KEY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How `optimize` writes a table.

    `cluster_by`, `sort_by`: columns; none keeps the row order. `order`: the columns that come first in files;
    `popular`: these come from the usage record. `goal`: what encodings are chosen for. `row_group_bytes`: decoded
    bytes; `file_bytes`: a file ends before the row group that would exceed them. `small_partitions`: a partition with
    fewer rows than a row group becomes one file (`merge`), or each of its files is rewritten by itself (`keep`).
    `flatten`: map columns; `flatten_coverage`: the share of rows that must have a key. `keep_nullable`: columns without
    nulls stay nullable. `dedup`: groups of columns to store once per run of equal rows (default: those of the source);
    `expand`: store all columns in every row. `history`: the key of a table of histories: clusters by it, sorts by the
    time and its tie breaks (`sort_by`), writes one partition, and notes in each file where the rows of keys are.
    `rows`: make a row of each request, whose rows are equal in `by`, or impressions of a table of requests;
    `candidates`: the columns that are lists in a request (default: those that differ within the requests of a sample;
    of a table of requests, those that its footers name).
    """

    cluster_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    popular: bool = False
    goal: Goal = "balanced"
    row_group_rows: int = 65_536
    row_group_bytes: int | None = None
    file_bytes: int = 256 << 20
    small_partitions: Literal["merge", "keep"] = "merge"
    flatten: tuple[str, ...] = ()
    flatten_coverage: float = 0.01
    keep_nullable: bool = False
    dedup: DedupGroups = ()
    expand: bool = False
    history: str | None = None
    rows: Literal["keep", "request", "impression"] = "keep"
    by: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()

    @classmethod
    def of(cls, *, order: Names = "keep", dedup: Mapping[str, Names] | None = None, **options: Any) -> Settings:
        """Build settings from column names given as one string or several; `order` may also be "keep" or "popular"."""
        options["dedup"] = tuple((group, names_of(columns)) for group, columns in (dedup or {}).items())
        options |= {name: names_of(options.pop(name, ())) for name in _NAMES}
        first = () if order in ("keep", "popular") else names_of(order)
        return cls(order=first, popular=order == "popular", **options)

    def __post_init__(self) -> None:
        """Refuses values out of range (TableArgumentError)."""
        for name, low in (("row_group_rows", 1), ("row_group_bytes", 1), ("file_bytes", 1)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise TableArgumentError(
                    f"--{name.replace('_', '-')} is out of range: got {value}, expected at least {low}"
                )
        if not 0 <= self.flatten_coverage <= 1:
            raise TableArgumentError(f"--flatten-coverage is no share: got {self.flatten_coverage}, expected 0 to 1")
        for name, allowed in (("goal", GOALS), ("small_partitions", ("merge", "keep")), ("rows", ROWS)):
            value = getattr(self, name)
            if value not in allowed:
                raise TableArgumentError(f"{name} is unknown: got {value!r}, expected one of {', '.join(allowed)}")
        self._refuse_beside_history()
        self._refuse_beside_rows()
        if self.sort_by and not self.keys:
            raise TableArgumentError(
                "--sort-by sorts within the keys of --cluster-by: got no --cluster-by. Name its columns"
            )
        if self.expand and self.dedup:
            raise TableArgumentError(
                "--expand stores every column in every row, and --dedup once per run: got both. Choose one of the two"
            )
        check_groups(self.dedup)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that rows are clustered by."""
        if self.rows == "request":
            return self.by
        return self.cluster_by if self.history is None else (self.history,)

    def _refuse_beside_rows(self) -> None:
        if self.rows != "request" and self.by:
            raise TableArgumentError(f"--by names what makes a request: got --rows {self.rows}. Write --rows request")
        if self.rows == "keep" and self.candidates:
            raise TableArgumentError(
                "--candidates names the lists of requests: got --rows keep, expected request or impression. Write "
                "--rows, or leave --candidates out"
            )
        if self.rows != "request":
            return
        if not self.by:
            raise TableArgumentError("--rows request needs what makes a request: got no --by. Write --by request_id")
        if both := sorted(set(self.by).intersection(self.candidates)):
            raise TableArgumentError(
                f"--candidates names {both[0]!r}, which identifies the request (--by). Leave it out of one of the two"
            )
        others = {
            "--cluster-by": self.cluster_by,
            "--dedup": self.dedup,
            "--history": self.history,
            "--small-partitions keep": self.keep_small,
        }
        for option, given in others.items():
            if given:
                raise TableArgumentError(
                    f"--rows request puts the rows of a request together: got {option} too. Leave {option} out, or "
                    "optimize the request table once more"
                )

    def _refuse_beside_history(self) -> None:
        if self.history is None:
            return
        if not self.sort_by:
            raise TableArgumentError(
                "--history needs the time of its rows: got no --sort-by, expected the time, then columns that break "
                "ties. Write --sort-by ts,event_no"
            )
        others = {"--cluster-by": self.cluster_by, "--dedup": self.dedup, "--small-partitions keep": self.keep_small}
        for option, given in others.items():
            if given:
                raise TableArgumentError(
                    f"--history orders and stores rows by its own rules: got {option} too. Leave {option} out"
                )

    @property
    def keep_small(self) -> bool:
        return self.small_partitions == "keep"


_NAMES = ("cluster_by", "sort_by", "flatten", "by", "candidates")
ROWS = ("keep", "request", "impression")


def names_of(names: Names) -> tuple[str, ...]:
    """Return column names given as one string or several."""
    return (names,) if isinstance(names, str) else tuple(names)


def check_settings(snapshot: Snapshot, settings: Settings, projection: Sequence[str]) -> None:
    """Raise TableArgumentError for unknown columns, and for columns whose type does not allow their use."""
    names = snapshot.file_columns if settings.history is None else snapshot.schema.names
    schema = pa.schema([snapshot.schema.field(name) for name in names])
    refuse_columns(snapshot, settings.dedup, settings.flatten)
    for option, names in (
        ("--cluster-by", settings.cluster_by),
        ("--history", () if settings.history is None else settings.keys),
        ("--sort-by", settings.sort_by),
        ("--by", settings.by),
        ("--candidates", settings.candidates),
        ("--flatten", settings.flatten),
        *((f"--dedup {group}", columns) for group, columns in settings.dedup),
    ):
        for name in names:
            _refuse_unknown(name, schema.names, option)
    for name in projection:
        _refuse_unknown(name, snapshot.schema.names, "--projection")
    if settings.rows != "impression":
        _refuse_ordering(schema, settings)
    refuse_maps(schema, settings.flatten)
    if settings.history is not None:
        _refuse_types(schema, settings.history, settings.sort_by[0])
    if not snapshot.rows:
        raise TableArgumentError(f"{snapshot.uri} holds no rows: expected at least one to measure")


def _refuse_ordering(schema: pa.Schema, settings: Settings) -> None:
    ordering = {"--cluster-by": settings.cluster_by, "--sort-by": settings.sort_by, "--by": settings.by}
    for option, names in ordering.items():
        refuse_keys(schema, names, option)


def _refuse_types(schema: pa.Schema, key: str, time: str) -> None:
    """Raise TableArgumentError for a key or time of a type that histories do not have."""
    for option, name, allowed, types in (
        ("--history", key, is_key_type, "an integer, string, date or timestamp"),
        ("--sort-by", time, is_time_type, "the time: a date, a timestamp or an integer of at most 63 bits"),
    ):
        kind = schema.field(name).type
        if not allowed(kind):
            raise TableArgumentError(f"{option} names column {name!r} of type {kind}: expected {types}. Cast it")


def _refuse_unknown(name: str, names: Sequence[str], option: str) -> None:
    if name not in names:
        hint = nearest_hint(name, names)
        raise TableArgumentError(f"{option} names column {name!r}, which is not in the table's files. {hint}")


def recipe_for(snapshot: Snapshot, claim: Claim, settings: Settings, before: Footprint, *, map: Map) -> Recipe:
    """Build the recipe for all partitions of a source, measured `before`, of the run that has the claim.

    `map` runs the survey of what the snapshot does not tell.
    """
    history = None if settings.history is None else HistoryOrder(key=settings.history, sort_by=settings.sort_by)
    stored_keys = key_columns(snapshot, without_folders=history is not None)
    expand = settings.expand or history is not None or settings.rows == "request"
    dedup = groups_to_write(settings.dedup, expand=expand, before=before)
    requests = _stored_requests(snapshot, settings, before)
    refuse_columns(snapshot, dedup, settings.flatten)
    repeated = [name for members in before.groups.values() for name in members]
    table_survey = survey(snapshot, settings.flatten, map=map, keep_nullable=settings.keep_nullable, repeated=repeated)
    keys = tuple(
        (name, keys_worth(table_survey.keys[name], snapshot.rows, settings.flatten_coverage))
        for name in settings.flatten
    )
    columns = [snapshot.schema.field(name) for name in snapshot.file_columns]
    source = pa.schema([*columns, *stored_keys])
    schema = _target_schema(snapshot, source, table_survey, dict(keys), settings)
    schema = with_field_ids(schema, snapshot.file_schemas)
    if settings.rows == "impression":
        assert requests is not None
        schema = impression_schema(schema, requests.candidates)
        _refuse_ordering(schema, settings)
    fingerprint = _fingerprint(settings, schema, dedup)
    return Recipe(
        claim=claim,
        source=source,
        target=schema.with_metadata({key: value for key, value in before.notes.items() if key not in _ABOUT_COLUMNS}),
        encodings=(),
        limits=Limits(
            row_group_rows=settings.row_group_rows,
            row_group_bytes=settings.row_group_bytes,
            file_bytes=settings.file_bytes,
        ),
        cluster_by=settings.keys,
        sort_by=settings.sort_by,
        flatten=keys,
        dedup=dedup,
        history=history,
        keep_small=settings.keep_small,
        requests=requests,
        rows=settings.rows,
        settings=fingerprint if requests is None else _of_requests(fingerprint, settings.rows, requests),
        decoder=decoder_name(),
    )


def with_candidates(recipe: Recipe, found: tuple[str, ...]) -> Recipe:
    """The recipe of a request table with the candidates that a sample has shown."""
    assert recipe.requests is not None
    requests = replace(recipe.requests, candidates=found)
    return replace(recipe, requests=requests, settings=_of_requests(recipe.settings, recipe.rows, requests))


def _of_requests(fingerprint: str, rows: str, requests: RequestColumns) -> str:
    content = f"{fingerprint} {rows} {requests.to_json().decode()}"
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _stored_requests(snapshot: Snapshot, settings: Settings, before: Footprint) -> RequestColumns | None:
    """The columns of requests that the settings or the source's footers name. Raises TableArgumentError where a table
    to make impressions of has none."""
    if settings.rows == "request":
        return RequestColumns(by=settings.by, candidates=settings.candidates)
    noted = requests_of(before.notes, snapshot.uri)
    if settings.rows == "keep":
        return noted
    candidates = settings.candidates or (() if noted is None else noted.candidates)
    if not candidates:
        raise TableArgumentError(
            f"--rows impression needs to know the lists of {snapshot.uri}: got footers that do not name them. Name "
            "them: --candidates item_id,clicked"
        )
    schema = pa.schema([snapshot.schema.field(name) for name in snapshot.file_columns])
    if reason := refuse_no_lists(schema, candidates):
        raise TableArgumentError(f"--rows impression makes rows of lists: {reason}. Name the lists: --candidates")
    return RequestColumns(by=() if noted is None else noted.by, candidates=candidates)


def _target_schema(
    snapshot: Snapshot, source: pa.Schema, table_survey: Survey, keys: dict[str, tuple[Key, ...]], settings: Settings
) -> pa.Schema:
    fields: dict[str, pa.Field] = {}
    for field in source:
        for key in keys.get(field.name, ()):
            name = flattened_name(field.name, key)
            if name in snapshot.schema.names:
                raise TableError(
                    f"--flatten {field.name} creates a column {name!r}, which the table has: expected a free name. "
                    "Rename it, or raise --flatten-coverage"
                )
            everywhere = table_survey.keys[field.name][key] == snapshot.rows and not settings.keep_nullable
            fields[name] = pa.field(name, field.type.item_type, nullable=not everywhere)
        is_key = field.name in snapshot.partition_columns
        fields[field.name] = field if is_key else without_nulls(field, table_survey.nulls)
    for name in settings.order:
        if not settings.popular:
            _refuse_unknown(name, list(fields), "--order")
    first = [name for name in dict.fromkeys(settings.order) if name in fields]
    return pa.schema([fields[name] for name in dict.fromkeys([*first, *fields])])


def _fingerprint(settings: Settings, target: pa.Schema, dedup: DedupGroups) -> str:
    """Hash what decides a partition's rows, their order and types; popularity may change without a rewrite."""
    apart = ("order", "dedup", "expand", "history", "rows", "by", "candidates")
    facts: list[Any] = [_VERSION, *(getattr(settings, name) for name in Settings.__slots__ if name not in apart)]
    facts.append("popular" if settings.popular else settings.order)
    facts.append(sorted((field.name, str(field.type), field.nullable) for field in target))
    facts += [ids] if (ids := field_ids(target)) else []
    facts += [{"dedup": dedup}] if dedup else []
    facts += [{"history": settings.history, "stripe_rows": STRIPE_ROWS}] if settings.history is not None else []
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
