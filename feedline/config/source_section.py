"""Define the section `source`: the table, how its files become one table, and which of its rows are read.

Runs in: every process that reads a pipeline.yaml. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from feedline.config.sections import (
    MAX_INT,
    STRINGS_SCHEMA,
    Count,
    NonEmptyString,
    PathString,
    Section,
    ShuffleSpec,
    TablePaths,
    rule_error,
    value_error,
)

# --------------------------------------------------------------------------------------------------------------------
# Names of Arrow types: its own, as `str(type)` shows them, with the aliases that people use.

_OWN_NAMES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
    *("string", "large_string", "binary", "large_binary", "date32"),
)
_TYPES = {
    **{name: getattr(pa, name)() for name in _OWN_NAMES},
    "bool": pa.bool_(),
    # aliases
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int64(),
    "integer": pa.int64(),
    "long": pa.int64(),
    "bigint": pa.int64(),
    "half": pa.float16(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "str": pa.string(),
    "text": pa.string(),
    "utf8": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "date32[day]": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "datetime": pa.timestamp("us"),
}
_UNITS = ("s", "ms", "us", "ns")
_TIMESTAMP = re.compile(r"timestamp\[ *(\w+) *(?:, *(?:tz *= *)?([\w/+:-]+) *)?\]")
_DECIMAL = re.compile(r"decimal(128|256)? *\( *(\d{1,2}) *, *(\d{1,2}) *\)")
_LIST = re.compile(r"(large_)?list *< *(?:(?:item|element) *: *)?(.+?) *>", re.DOTALL)
_MAX_DEPTH = 8


def parse_type(text: str, *, depth: int = 0) -> pa.DataType:
    """The type of that name. Raises ValueError, which lists the names, for any other."""
    text = text.strip()
    if text.lower() in _TYPES:
        return _TYPES[text.lower()]
    if text.endswith("[]") and depth < _MAX_DEPTH:
        return pa.list_(parse_type(text[:-2], depth=depth + 1))
    if (match := _LIST.fullmatch(text)) and depth < _MAX_DEPTH:
        item = parse_type(match[2], depth=depth + 1)
        return pa.large_list(item) if match[1] else pa.list_(item)
    if (match := _TIMESTAMP.fullmatch(text)) and match[1] in _UNITS and _is_zone(match[2]):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        digits, scale = int(match[2]), int(match[3])
        if 1 <= digits <= (76 if match[1] == "256" else 38) and scale <= digits:
            return pa.decimal256(digits, scale) if match[1] == "256" else pa.decimal128(digits, scale)
    raise ValueError(
        f"{text!r} is not the name of a type: expected int8 to int64, uint8 to uint64, float16, float32, float64, "
        "bool, string, binary, date32, timestamp[us], timestamp[us, UTC], decimal128(9, 2), or list<…> of one"
    )


def _is_zone(name: str | None) -> bool:
    if name is None or re.fullmatch(r"[+-]\d\d:\d\d", name):
        return True
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True


LOG, SUCCESS = "log", "_SUCCESS"
_QUIET = re.compile(r"quiet ([1-9][0-9]*)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def checked_moment(value: str) -> str:
    try:
        datetime.fromisoformat(value)
    except ValueError:
        raise value_error('an ISO date or time, such as "2026-01-31T12:00:00+00:00"') from None
    return value


def _landed(value: str) -> str:
    if value not in (LOG, SUCCESS) and not _QUIET.fullmatch(value):
        raise value_error(f"{LOG}, {SUCCESS}, or quiet and a time such as quiet 10m (s, m, h or d)")
    return value


Moment = Annotated[NonEmptyString, AfterValidator(checked_moment)]
Landed = Annotated[
    NonEmptyString,
    AfterValidator(_landed),
    WithJsonSchema({"type": "string", "pattern": f"^({LOG}|{SUCCESS}|{_QUIET.pattern})$"}),
]


class FollowSpec(Section):
    """How a run follows a table that grows: at the border of every epoch, what has landed joins the plan."""

    landed: Landed = Field(
        description="What has landed: log: the newest version of a Delta or Iceberg table; _SUCCESS: the files of a "
        "partition whose folder holds a file of that name; quiet 10m: a partition whose files have not changed for so "
        "long."
    )
    until: Moment | None = Field(
        default=None, description="Nothing that lands after this moment joins (default: no end)."
    )
    epoch: Literal["all", "new"] = Field(
        default="all",
        description="What an epoch reads: all that has landed, or only the files that no earlier epoch has read; the "
        "run ends after `until`.",
    )

    @property
    def quiet_s(self) -> int | None:
        """Seconds without a change after which a partition has landed; None with another rule."""
        match = _QUIET.fullmatch(self.landed)
        return None if match is None else int(match[1]) * _SECONDS[match[2]]


Format = Literal["auto", "hive", "manifest", "delta", "iceberg"]
KeyType = Literal["int", "date", "string", "timestamp"]


def _names(value: object) -> object:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise value_error("a column's name, or a non-empty list of them")
    return tuple(names)


def _type_name(value: str) -> str:
    try:
        parse_type(value)
    except ValueError as error:
        _, _, names = str(error).partition(": expected ")
        raise value_error(f"the name of a type ({names})") from None
    return value


TypeName = Annotated[NonEmptyString, AfterValidator(_type_name)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names), STRINGS_SCHEMA]
Missing = Annotated[
    Literal["null", "error"],
    BeforeValidator(lambda value: "null" if value is None else value),
    WithJsonSchema({"anyOf": [{"enum": ["null", "error"]}, {"type": "null"}]}),
]
Amount = Annotated[int, Field(ge=0, le=MAX_INT)]


class SampleSpec(Section):
    """A reproducible sample of the rows that `where` keeps."""

    fraction: Annotated[float, Field(gt=0, le=1)] = Field(description="Share of the rows to keep, up to 1.")
    where: NonEmptyString | None = Field(
        default=None, description="Expression: sample only the rows where it is true (default: all rows)."
    )
    seed: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(default=0, description="Another seed keeps other rows.")
    key: Names | None = Field(
        default=None,
        description="Columns whose values decide, not the row's position in its file: equal keys stay together.",
    )
    rest: bool = Field(default=False, description="Keep the rows that the sample leaves out instead, to evaluate on.")

    @model_validator(mode="after")
    def _consistent(self) -> SampleSpec:
        if self.rest and (self.fraction == 1 or self.where is not None):
            got = "a fraction of 1" if self.fraction == 1 else "a where"
            raise rule_error("rest", f"needs a fraction below 1 and no `where`: got {got}. Remove `rest`")
        return self


class SchemaSpec(Section):
    """How files that differ become one table."""

    missing: Missing = Field(
        default="null", description="A column in use that a file lacks: null in its rows, or an error."
    )
    extra: Literal["ignore", "error"] = Field(
        default="ignore", description="A column that is not among `columns`: ignored, or an error."
    )
    columns: dict[str, TypeName] | None = Field(
        default=None, description="Types of columns, such as {price: float32}; the files' types must widen into them."
    )

    @model_validator(mode="after")
    def _consistent(self) -> SchemaSpec:
        if self.extra == "error" and not self.columns:
            raise rule_error("extra", "needs `columns`, which list what is expected. Add them, or remove `extra`")
        return self


class SourceSpec(Section):
    """Which rows are read from where."""

    table: TablePaths = Field(description="Parquet: a folder, file or glob, a URI, or a list of them; see `format`.")
    format: Format = Field(
        default="auto",
        description="auto: delta or iceberg where the folder has such a log, else hive: files in folders; manifest: a "
        "file that lists files.",
    )
    version: Amount | None = Field(default=None, description="Version of a Delta table (default: the newest).")
    snapshot_id: Amount | None = Field(default=None, description="Snapshot of an Iceberg table (default: the newest).")
    as_of: Moment | None = Field(default=None, description="The Delta or Iceberg table as it was at this moment.")
    snapshot: PathString | None = Field(
        default=None, description="A file that `feedline snapshot` wrote: the table as it was then."
    )
    partitions: dict[str, KeyType] | None = Field(
        default=None,
        description="Types of partition keys; others have the type of the column in the files, or of all their values.",
    )
    schema_rules: SchemaSpec = Field(
        default=SchemaSpec.model_construct(), alias="schema", description="How files that differ become one table."
    )
    where: NonEmptyString | None = Field(
        default=None, description="Expression that keeps a row where it is true; null drops it."
    )
    sample: SampleSpec | None = Field(default=None, description="A sample of the rows that `where` keeps.")
    exclude: PathString | None = Field(
        default=None, description="A file that `feedline check --rows` wrote: bad rows of the snapshot, left out."
    )
    explode: Names | None = Field(
        default=None,
        description="Lists of a request table whose elements are the rows: a row of each candidate, with the request's "
        "other columns.",
    )
    row_key: Names | None = Field(
        default=None, description="Columns that identify a row; runs record them, as `feedline rebase` needs."
    )
    on_bad_file: Literal["error", "skip"] = Field(
        default="error", description="A corrupt file: an error, or left out of the plan and reported."
    )
    decoder: Literal["auto", "arrow"] = Field(
        default="auto",
        description="What decodes Parquet: Feedline's kernel where it can (the same values, faster), or pyarrow alone.",
    )
    max_bad_files: Amount | None = Field(default=None, description="More skipped files than this are an error.")
    max_bad_rows: Amount | None = Field(default=None, description="More rows in skipped files than this are an error.")
    follow: FollowSpec | None = Field(
        default=None, description="Follow a table that grows: at the border of every epoch, what has landed joins."
    )
    anchors: NonEmptyString | None = Field(
        default=None, description="A history whose events are the rows, instead of `table`: each sees those before it."
    )
    split_rows: Count = Field(
        default=65536,
        description="Rows of a split: whole row groups, about this many; without shuffle fewer, if they are wide, and "
        "more, if they are narrow and this is not stated.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SourceSpec:
        formats_of_key: tuple[tuple[str, tuple[str, ...]], ...] = (
            ("version", ("delta",)),
            ("snapshot_id", ("iceberg",)),
            ("as_of", ("delta", "iceberg")),
        )
        for key, formats in formats_of_key:
            if getattr(self, key) is not None and self.format not in ("auto", *formats):
                raise rule_error(
                    key, f"has no meaning with format {self.format}: expected {' or '.join(formats)}. Remove it"
                )
        states: list[Any] = [key for key, _ in formats_of_key if getattr(self, key) is not None]
        if len(states) > 1:
            raise rule_error(
                states[1], f"contradicts {states[0]!r}: each names one state of the table. Remove one of the two"
            )
        if self.format not in ("auto", "hive") and not isinstance(self.table, str):
            raise rule_error("table", f"must be one path or URI with format {self.format}: got a list")
        if self.partitions is not None and self.format in ("delta", "iceberg"):
            raise rule_error(
                "partitions", f"has no meaning with format {self.format}, whose log types the keys. Remove it"
            )
        if self.explode is not None and len(set(self.explode)) < len(self.explode):
            raise rule_error("explode", f"names a column twice: got {', '.join(self.explode)}. Name each once")
        if self.explode is not None and self.anchors is not None:
            raise rule_error("explode", "contradicts `anchors`, whose events are the rows. Remove one of the two")
        for key in ("max_bad_files", "max_bad_rows"):
            if getattr(self, key) is not None and self.on_bad_file == "error":
                raise rule_error(
                    key, "has no meaning with `on_bad_file: error`. Write `on_bad_file: skip`, or remove it"
                )
        return self

    @model_validator(mode="after")
    def _followable(self) -> SourceSpec:
        if self.follow is None:
            return self
        for key in ("version", "snapshot_id", "as_of", "snapshot"):
            if getattr(self, key) is not None:
                raise rule_error(key, "names one state of the table, and `follow` its newest. Remove one of the two")
        if self.exclude is not None:
            reason = "an exclusion is of one snapshot of the table, and `follow` reads others"
            raise rule_error("exclude", f"contradicts `follow`: {reason}. Remove one of the two")
        formats = ("auto", "delta", "iceberg") if self.follow.landed == LOG else ("auto", "hive")
        if self.format not in formats:
            raise rule_error(
                "follow",
                f"cannot see by {self.follow.landed!r} what has landed with format {self.format}: expected one of "
                f"{', '.join(formats)}. Choose another `landed`, or remove `follow`",
            )
        return self


def refused_weights(shuffle: ShuffleSpec | None, sources: Sequence[SourceSpec | None]) -> str | None:
    """Why rows cannot be drawn by `shuffle.weights` from these sources; None if they can, or are not."""
    if shuffle is None or shuffle.weights is None or all(each is None or each.row_key is None for each in sources):
        return None
    return (
        "contradicts `source.row_key`, which a rebase needs: a row that may be drawn again is never delivered for "
        "good. Remove one of the two"
    )
