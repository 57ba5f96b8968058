"""Define the sections of a pipeline.yaml: their keys, types and defaults, one pydantic model per section.

Pure. Types are strict: a boolean is not an integer, a quoted number is a string. Rules beyond types raise a
`value_error` (one value) or a `rule_error` (between keys); `pipeline_spec` turns these and pydantic's own errors into
sentences with positions.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, Literal, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from feedline.dataclass import dataclass

MAX_INT = (1 << 63) - 1
_UNITS = {"": 1} | {
    f"{letter}{suffix}".lower(): base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for suffix, base in (("B", 1000), ("iB", 1024))
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *([KMGT]i?B|B)", re.IGNORECASE)
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def value_error(expectation: str, remedy: str = "") -> PydanticCustomError:
    """The error "must be EXPECTATION: got …. REMEDY" about one value."""
    return PydanticCustomError("expected", "{expected}", {"expected": expectation, "remedy": remedy})


def rule_error(key: str, message: str) -> PydanticCustomError:
    """The error about keys that contradict each other; the message is complete, `key` its position."""
    return PydanticCustomError("rule", "{message}", {"key": key, "message": message})


def _text(value: str) -> str:
    if not value.strip() or "\0" in value:
        raise value_error("a non-empty string")
    return value


def resolve_path(path: str, base_dir: str) -> str:
    """A relative path joined to `base_dir`, `~/` expanded; a URI or an absolute path unchanged."""
    if URI.match(path) or posixpath.isabs(path):
        return path
    return posixpath.normpath(posixpath.join(base_dir, posixpath.expanduser(path)))


def _path(value: str, info: ValidationInfo) -> str:
    context: dict[str, str] = info.context or {}
    return resolve_path(_text(value), context.get("base_dir", posixpath.abspath("")))


def _table(value: object, info: ValidationInfo) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return _path(value, info)
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return tuple(_path(item, info) for item in value)
    raise value_error("a path or URI, or a non-empty list of them")


def parse_bytes(value: object) -> int:
    """A positive size in bytes, from an integer or "4GiB", "500 MB", "1.5 TiB"."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        unit = match[2].lower()
        size = int(Decimal(match[1]) * (1 if unit == "b" else _UNITS[unit]))
    else:
        raise value_error("a size in bytes such as 4GiB, 500MB or 1073741824", "Units: B, kB, MB, GB, TB, KiB … TiB")
    if not 1 <= size <= MAX_INT:
        raise value_error("a size of at least 1 byte and less than 8 EiB")
    return size


def _version(value: object) -> object:
    if value != 1 or not isinstance(value, int) or isinstance(value, bool):
        raise value_error("1", "This release reads version 1 of the format")
    return value


NonEmptyString = Annotated[str, Field(min_length=1), AfterValidator(_text)]
PathString = Annotated[str, Field(min_length=1), AfterValidator(_path)]
STRING = {"type": "string", "minLength": 1}
STRINGS_SCHEMA = WithJsonSchema({"anyOf": [STRING, {"type": "array", "items": STRING, "minItems": 1}]})
TablePaths = Annotated[str | tuple[str, ...], PlainValidator(_table), STRINGS_SCHEMA]
Version = Annotated[Literal[1], BeforeValidator(_version)]
Count = Annotated[int, Field(ge=1, le=MAX_INT)]
_BYTES = {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)? *([KkMmGgTt]([Ii])?[Bb]|[Bb])\s*$"}
Bytes = Annotated[
    int, PlainValidator(parse_bytes), WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, _BYTES]})
]


class Section(BaseModel):
    """A mapping in pipeline.yaml: its keys are the fields and no others, and values are not converted. A default
    value is made by `model_construct`, which builds no validator."""

    # deferred: the validator of a whole pipeline holds those of its sections, which need none of their own
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class ShortForm:
    """How a section may be written besides as a mapping.

    expand: gives the mapping of any form. schemas: of the other forms. null: whether None is written null, too.
    """

    expand: Callable[[object], object]
    schemas: tuple[dict[str, Any], ...]
    null: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        whole = handler(schema)
        forms = [form for form in whole.get("anyOf", [whole]) if self.null or form != {"type": "null"}]
        return {"anyOf": [*self.schemas, *forms]}


def path_or_off(key_of: Callable[[str], str], expected: str, schema: dict[str, Any]) -> ShortForm:
    """The short forms of a section that is off by default: off, or a string, which is the value of a key."""

    def expand(value: object) -> object:
        if value is None or value == "off":
            return None
        if isinstance(value, str):
            return {key_of(value): value}
        if not isinstance(value, dict | Section):
            raise value_error(expected, "Write off" if value is False else "")
        return value

    return ShortForm(expand, ({"const": "off"}, schema))


class ShuffleSpec(Section):
    """The epoch's permutation."""

    seed: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(default=0, description="Seed of every permutation.")
    window_rows: Count | None = Field(
        default=None,
        description="Rows that a lane mixes at a time (default: 524288, fewer if wide; blocks of 131072 if not rows).",
    )
    window_share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="The same as a share of the epoch's rows: equal epochs mix as far at any size."
    )
    rows: bool = Field(default=True, description="Permute rows within blocks; false permutes splits only.")
    by: NonEmptyString | None = Field(default=None, description="Column whose runs of equal values stay together.")
    weights: NonEmptyString | None = Field(
        default=None, description="Column of weights: rows are drawn with replacement, in proportion to it."
    )

    @model_validator(mode="after")
    def _consistent(self) -> ShuffleSpec:
        if self.by is not None and not self.rows:
            reason = "`rows: false` permutes splits only, so every run already stays together"
            raise rule_error("by", f"contradicts `rows: false`: {reason}. Remove one of the two")
        if self.window_share is not None and (self.window_rows is not None or not self.rows):
            other = "window_rows" if self.window_rows is not None else "`rows: false`"
            raise rule_error("window_share", f"contradicts {other}: got both. Remove one of the two")
        if self.weights is not None and not self.rows:
            reason = "rows are drawn one by one, whatever their neighbours are"
            raise rule_error("weights", f"contradicts `rows: false`: {reason}. Remove one of the two")
        if self.weights is not None and self.by is not None:
            reason = "a run does not stay together if its rows are drawn one by one"
            raise rule_error("weights", f"contradicts `by`: {reason}. Remove one of the two")
        return self

    def stated_keys(self, content: dict[str, Any]) -> dict[str, Any]:
        """The section's content without keys that came later and say nothing: equal specs have equal texts."""
        later = ("weights", "window_share")
        return {key: value for key, value in content.items() if key not in later or value is not None}


class ArtifactsSpec(Section):
    """Where artifacts are kept, and whose they are."""

    folder: PathString | None = Field(
        default=None, description="Folder or URI of artifacts (default: `artifacts` below work_dir)."
    )
    shared: NonEmptyString | None = Field(
        default=None, alias="from", description="Name of the pipeline whose fits are used (default: this one's own)."
    )


def _artifacts(value: object) -> object:
    if value is None or isinstance(value, dict | ArtifactsSpec):
        return value or {}
    if not isinstance(value, str):
        remedy = "Quote it" if isinstance(value, bool | int | float) else ""
        raise value_error("a path or URI, or a mapping with the keys folder, from", remedy)
    return {"folder": value}


Artifacts = Annotated[ArtifactsSpec, ShortForm(_artifacts, (STRING, {"type": "null"}))]


class FitSpec(Section):
    """What ops learn from, and when."""

    where: NonEmptyString | None = Field(default=None, description="Rows to learn from (default: source.where).")
    auto: bool = Field(default=False, description="Runs fit what is missing, instead of raising an error.")
    out_of_fold: bool = Field(
        default=True, description="Rows of the fit get what was learnt from the others, where the op can do that."
    )
    memory: Bytes | None = Field(
        default=None, description="Memory of statistics per process; larger ones spill to work_dir."
    )
    golden: Literal["rows", "none"] = Field(default="rows", description="Golden vectors: rows of the table, or none.")


def _fit(value: object) -> object:
    if value == "auto":
        return {"auto": True}
    if not isinstance(value, dict | FitSpec):
        raise value_error("a mapping, or the word auto", "Leave the key out to fit with `feedline fit` alone")
    return value


Fit = Annotated[FitSpec, ShortForm(_fit, ({"enum": ["auto"]},))]


def _shuffle(value: object) -> object:
    if value == "off":
        return None
    if not isinstance(value, dict):
        raise value_error("a mapping, or the word off", "Leave the key out for the default, which shuffles")
    return value


Shuffle = Annotated[ShuffleSpec | None, ShortForm(_shuffle, ({"enum": ["off"]},), null=False)]


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def section_at(model: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel] | None:
    """The model of the mapping at `path` below `model`; None where there is none."""
    is_named = False
    for part in path:
        if isinstance(part, int) or is_named:
            is_named = False
            continue  # an item of a list of sections, or one of sections by name
        fields = keys_of(model)
        kind = fields[part].annotation if part in fields else None
        types = [item for item in (kind, *getattr(kind, "__args__", ())) if isinstance(item, type)]
        sections = [item for item in types if issubclass(item, BaseModel)]
        if not sections:
            return None
        model, is_named = sections[0], get_origin(kind) is dict
    return None if is_named else model


_OF_BUCKETS = ("buckets", "length", "longer")


class BalanceSpec(Section):
    """The list column by whose lengths rows are ordered, so that the lanes of a step hold about as many elements."""

    column: NonEmptyString = Field(description="List column whose lengths are balanced, as the table stores them.")
    most: Count | None = Field(
        default=None, alias="max", description="Length that longer lists count as (default: their own)."
    )


def _balance(value: object) -> object:
    if value is None or isinstance(value, dict | BalanceSpec):
        return value
    if not isinstance(value, str):
        raise value_error("a column, or a mapping with the keys column, max")
    return {"column": value}


def _bounds(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    bounds: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else ()
    whole = all(type(each) is int and 1 <= each <= MAX_INT for each in bounds)
    if not (bounds and whole and all(low < high for low, high in pairwise(bounds))):
        raise value_error("a list of ascending lengths such as [32, 128, 512]", "Each bounds the rows of one bucket")
    return bounds


Balance = Annotated[BalanceSpec | None, ShortForm(_balance, ({"type": "string", "pattern": r"\S"},))]
_BOUNDS = {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "uniqueItems": True}
Bounds = Annotated[
    tuple[int, ...] | None, PlainValidator(_bounds), WithJsonSchema({"anyOf": [_BOUNDS, {"type": "null"}]})
]


class BatchSpec(Section):
    """How rows become batches."""

    size: Count = Field(
        description="Rows per lane and step; with the default lanes that is rows per rank. With max_tokens it follows."
    )
    tail: Literal["drop", "pad", "partial"] = Field(default="drop", description="What to do with the last rows.")
    balance: Balance = Field(
        default=None, description="List column whose lengths are about the same in all lanes of a step."
    )
    max_tokens: Count | None = Field(
        default=None, description="Elements of a lane and step, with padding; its rows are of one bucket."
    )
    buckets: Bounds = Field(default=None, description="The greatest length of each bucket's rows, ascending.")
    length: NonEmptyString | None = Field(
        default=None, description="List column whose lengths put rows into buckets (default: that of balance)."
    )
    longer: Literal["error", "cap"] = Field(
        default="error", description="Rows beyond the last bound: an error, or rows of the last bucket."
    )

    @model_validator(mode="before")
    @classmethod
    def _derived_size(cls, value: Any) -> Any:
        """Fill in the size: with max_tokens the rows of the bucket with the most."""
        if not isinstance(value, dict) or value.get("max_tokens") is None:
            return value
        if value.get("size") is not None:
            message = "contradicts max_tokens, which gives each bucket its own number of rows. Remove one of the two"
            raise rule_error("size", message)
        bounds, tokens = value.get("buckets"), value["max_tokens"]
        first = bounds[0] if isinstance(bounds, list | tuple) and bounds else None
        valid = type(first) is int and type(tokens) is int and first > 0
        return {**value, "size": max(1, tokens // first) if valid else 1}

    @model_validator(mode="after")
    def _consistent(self) -> BatchSpec:
        if self.max_tokens is None:
            for key in _OF_BUCKETS:
                if key in self.model_fields_set and getattr(self, key) is not None:
                    raise rule_error(key, "needs batch.max_tokens, the elements of a lane and step. Add it")
            return self
        if self.buckets is None:
            raise rule_error("buckets", "missing key: max_tokens needs the bounds of its buckets, such as [32, 128]")
        if self.max_tokens < self.buckets[-1]:
            raise rule_error(
                "max_tokens",
                f"is smaller than a bucket's bound: got {self.max_tokens}, expected at least {self.buckets[-1]}, "
                f"which one row may have. Raise it, or remove the bound",
            )
        self._check_rows(self.bucket_rows, self.buckets)
        if self.tail != "drop":
            message = f"cannot be {self.tail} with max_tokens: the last rows of a bucket make no whole step"
            raise rule_error("tail", f"{message}. Write drop, and evaluate with batch.size")
        self._check_columns()
        return self

    def _check_rows(self, rows: tuple[int, ...], bounds: tuple[int, ...]) -> None:
        for (own, bound), (next_own, next_bound) in pairwise(zip(rows, bounds, strict=True)):
            if own == next_own:
                message = f"give two buckets the same rows of a lane and step: got {own} of up to {bound} elements and"
                remedy = "Remove the smaller bound, or raise max_tokens"
                raise rule_error("buckets", f"{message} {next_own} of up to {next_bound}. {remedy}")

    def _check_columns(self) -> None:
        if self.balance is None and self.length is None:
            raise rule_error("length", "missing key: buckets need the list column whose lengths decide. Name it")
        if self.balance is None:
            return
        if self.length not in (None, self.balance.column):
            raise rule_error(
                "length",
                f"must be the column of balance: got {self.length!r}, expected {self.balance.column!r}. Remove one",
            )
        if self.balance.most is not None:
            raise rule_error("balance", "cannot have a max with buckets, whose last bound is one. Remove it")

    def stated_keys(self, content: dict[str, Any]) -> dict[str, Any]:
        """The section's content without what follows from other keys, and without keys that are not used."""
        unused = [key for key in ("balance", "max_tokens", "buckets", "length") if content[key] is None]
        unused += ["longer"] if self.max_tokens is None else ["size"]
        return {key: value for key, value in content.items() if key not in unused}

    @property
    def lengths(self) -> str | None:
        """The list column whose lengths decide which rows a step holds; None where none does."""
        return self.length if self.balance is None else self.balance.column

    @property
    def bucket_rows(self) -> tuple[int, ...]:
        """The rows of a lane and step of each bucket; empty without buckets."""
        return tuple((self.max_tokens or 0) // bound for bound in self.buckets or ())

    def refused_with(self, shuffle: ShuffleSpec | None) -> str | None:
        """Why lengths cannot decide the order of rows under this `shuffle`; None if they can."""
        if self.lengths is None:
            return None
        reason = "shuffle: off, which keeps the table's order" if shuffle is None else ""
        if shuffle is not None and not shuffle.rows:
            reason = "shuffle.rows: false, which keeps the order of rows"
        elif shuffle is not None and shuffle.by is not None:
            reason = "shuffle.by, which keeps runs of rows together"
        elif shuffle is not None and shuffle.weights is not None:
            reason = "shuffle.weights, by which rows are drawn"
        if not reason:
            return None
        return f"contradicts {reason}: rows are ordered one by one, by lengths. Remove one of the two"
