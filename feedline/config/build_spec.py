"""Read samples.yaml, which says how `feedline build` makes a training table of logs.

Pure, but for the file it reads. A samples.yaml names a log of impressions, logs of outcomes with the labels that they
give, tables of features as of an impression's time, the share of negatives to keep, and the table to write.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator

from feedline.config.column_ranges import expand_range
from feedline.config.histories import LAG_PATTERN, lag_ns
from feedline.config.json_schema import samples_schema
from feedline.config.overrides import substitute_variables
from feedline.config.pipeline_spec import add_problem, read_text
from feedline.config.sections import (
    MAX_INT,
    NonEmptyString,
    PathString,
    Section,
    TablePaths,
    Version,
    keys_of,
    rule_error,
    value_error,
)
from feedline.config.source_section import Names
from feedline.config.yaml_document import Problems, describe_value, read_document
from feedline.dataclass import dataclass

NAME = "samples.yaml"
FUNCTIONS = ("exists", "count", "sum", "max", "min", "first", "last")
_PLAIN = ("exists", "count")
_LABEL = re.compile(r"(exists|count|(?:sum|max|min|first|last)\((.+)\))")
_BY = re.compile(r"(day|hour)\((.+)\)")
_LENGTHS = "a time such as 30m or 7d (ns, us, ms, s, m, h, d)"


def _length(value: str) -> str:
    if (length := lag_ns(value)) is None or not 0 < length <= MAX_INT:
        raise value_error(f"{_LENGTHS}, more than 0")
    return value


def _lateness(value: object) -> object:
    text = str(value) if value == 0 and not isinstance(value, bool) else value
    if not isinstance(text, str) or (text != "0" and (lag_ns(text) is None or (lag_ns(text) or 0) > MAX_INT)):
        raise value_error(f"{_LENGTHS}, or 0")
    return text


def _by(value: str) -> str:
    if not _BY.fullmatch(value.strip()):
        raise value_error("day(TIME) or hour(TIME), of the time of the impressions")
    return value.strip()


def _pattern(pattern: str) -> dict[str, str]:
    """The JSON Schema of such strings, or of one with a variable in it."""
    return {"type": "string", "pattern": rf"^{pattern}$|\$\{{"}


Length = Annotated[NonEmptyString, AfterValidator(_length), WithJsonSchema(_pattern(f"(?!0){LAG_PATTERN}"))]
Lateness = Annotated[
    str, BeforeValidator(_lateness), WithJsonSchema({"anyOf": [{"const": 0}, _pattern(f"(0|{LAG_PATTERN})")]})
]
By = Annotated[NonEmptyString, AfterValidator(_by), WithJsonSchema(_pattern(rf"\s*{_BY.pattern}\s*"))]
LabelText = Annotated[NonEmptyString, WithJsonSchema(_pattern(rf"\s*{_LABEL.pattern}\s*"))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A column of labels: a function of the outcomes of an impression, and of one of their columns (None: none)."""

    name: str
    function: str
    column: str | None = None


class ImpressionsSpec(Section):
    """The log whose rows become samples."""

    table: TablePaths = Field(description="The log: a folder, file or glob of Parquet, a URI, or a list of them.")
    key: Names = Field(description="The columns that say which impression a row is, with those of outcomes' keys.")
    time: NonEmptyString = Field(description="The column with its time, a timestamp.")
    where: NonEmptyString | None = Field(
        default=None, description="Expression that keeps an impression where it is true; null drops it."
    )


class OutcomeSpec(Section):
    """A log of what followed impressions, and the labels that it gives them."""

    table: TablePaths = Field(description="The log, as of impressions.")
    key: Names = Field(description="The columns that an outcome shares with its impression, named alike in both.")
    time: NonEmptyString = Field(description="The column with its time, a timestamp.")
    within: Length = Field(description="How long after its impression an outcome counts, such as 30m or 7d.")
    attribution: Literal["last", "first", "all"] = Field(
        default="last", description="The impressions that it counts for: the last one before it, the first, or all."
    )
    label: dict[NonEmptyString, LabelText] = Field(
        json_schema_extra={"minProperties": 1},
        description="Labels by name: exists, count, or sum, max, min, first, last of a column, such as sum(dwell_ms).",
    )

    @model_validator(mode="after")
    def _labels_parse(self) -> OutcomeSpec:
        if not self.label:
            raise rule_error("label", "is empty: expected a label at least. Write `label: {clicked: exists}`")
        for name, text in self.label.items():
            if not _LABEL.fullmatch(text.strip()):
                message = f"{name!r} is no label: got {text!r}, expected one of exists, count, sum(x), max(x), min(x), "
                raise rule_error("label", f"{message}first(x), last(x)")
        return self

    @property
    def labels(self) -> tuple[Label, ...]:
        return tuple(_parse_label(name, text.strip()) for name, text in self.label.items())


class FeatureTableSpec(Section):
    """A table of features, of which an impression gets the latest row of its key before its time."""

    table: TablePaths = Field(description="The table, as of impressions.")
    key: Names = Field(description="The columns that a row shares with an impression, named alike in both.")
    time: NonEmptyString = Field(description="The column that says since when a row holds, a timestamp.")
    columns: Names | None = Field(default=None, description="The columns to add (default: all others of its files).")
    within: Length | None = Field(
        default=None, description="How old a row may be at most; older files are not read (default: any age)."
    )


class NegativesSpec(Section):
    """The impressions of which a share is kept."""

    where: NonEmptyString = Field(description="Expression over the columns of out that is true for a negative.")
    keep: Annotated[float, Field(gt=0, le=1)] = Field(description="The share of negatives to keep, by their key.")
    weight: NonEmptyString = Field(
        default="sample_weight", description="The column (float32) with 1 / keep for kept negatives, and 1 for others."
    )
    salt: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(default=0, description="Another one keeps other negatives.")


class OutSpec(Section):
    """The table of samples."""

    table: PathString = Field(description="The folder or URI to write to.")
    by: By = Field(description="Partitions, in UTC: day(TIME) writes ds=2026-01-31, hour(TIME) ds=2026-01-31/hour=07.")
    cluster_by: Names | None = Field(
        default=None, description="Rows of a key together, keys in hashed order (default: the impressions' key)."
    )
    sort_by: Names | None = Field(
        default=None, description="The order of a key's rows, or of a request's candidates (default: their time)."
    )
    dedup: dict[NonEmptyString, Names] = Field(
        default={}, description="Groups of columns to store once per run of equal rows; `hist_*` is any such name."
    )
    rows: Literal["impression", "request"] = Field(
        default="impression", description="What a row is: an impression, or a request with lists of its candidates."
    )
    request: Names | None = Field(default=None, description="The columns that say which request an impression is of.")
    candidates: Names | None = Field(
        default=None, description="The columns that differ within a request, and are lists; `hist_*` is any such name."
    )

    @model_validator(mode="after")
    def _ranges_parse(self) -> OutSpec:
        for group, names in self.dedup.items():
            _check_ranges(names, "dedup", f"group {group!r}: ")
        _check_ranges(self.candidates or (), "candidates", "")
        return self

    @model_validator(mode="after")
    def _rows_agree(self) -> OutSpec:
        if self.rows == "impression":
            for key in ("request", "candidates"):
                if getattr(self, key) is not None:
                    message = f"is of rows that are requests: got `rows: {self.rows}`. Write `rows: request`, or leave "
                    raise rule_error(key, f"{message}{key} out")
            return self
        for key, example in (("request", "request_id"), ("candidates", "[item_id, clicked]")):
            if getattr(self, key) is None:
                raise rule_error("rows", f"needs {key}: got `rows: request` alone. Write `{key}: {example}`")
        for key in ("cluster_by", "dedup"):
            if getattr(self, key):
                reason = "which puts the rows of a request together and stores its columns once"
                raise rule_error(key, f"contradicts `rows: request`, {reason}. Leave {key} out")
        return self

    @property
    def is_hourly(self) -> bool:
        return self.by.startswith("hour")

    @property
    def by_column(self) -> str:
        return self.by.partition("(")[2].removesuffix(")").strip()


class BuildSpec(Section, defer_build=False):
    """How to make a training table of logs."""

    version: Version = Field(description="Version of this format.")
    impressions: ImpressionsSpec = Field(description="The log whose rows become samples.")
    outcomes: dict[NonEmptyString, OutcomeSpec] = Field(
        default={}, description="Logs of what followed, by name, with the labels that they give."
    )
    features: dict[NonEmptyString, FeatureTableSpec] = Field(
        default={}, description="Tables of features, by name, as of the time of an impression."
    )
    negatives: NegativesSpec | None = Field(default=None, description="Impressions of which a share is kept.")
    lateness: Lateness = Field(
        default="1h", description="How much later than the newest one an event may still arrive."
    )
    late: Literal["drop", "rebuild"] = Field(
        default="drop", description="Events that arrive after their partition was closed: counted, or it is rebuilt."
    )
    out: OutSpec = Field(description="The table of samples.")

    @model_validator(mode="after")
    def _consistent(self) -> BuildSpec:
        if self.out.by_column != self.impressions.time:
            expected = f"{self.out.by.partition('(')[0]}({self.impressions.time})"
            raise rule_error("out", f"by is of another column: got {self.out.by!r}, expected {expected!r}")
        names = [label.name for outcome in self.outcomes.values() for label in outcome.labels]
        for name in names:
            if names.count(name) > 1:
                raise rule_error("outcomes", f"give label {name!r} twice. Rename one of the two")
        return self

    @property
    def lateness_ns(self) -> int:
        return lag_ns(self.lateness) or 0

    @property
    def digest(self) -> str:
        """Of what decides the rows of a partition: all but where tables are, and what happens to late events; of keys
        that are not the default."""
        content = json.loads(self.model_dump_json(exclude={"lateness", "late"}, exclude_defaults=True))
        for section in (content["impressions"], content["out"], *_sections(content)):
            del section["table"]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def json_schema() -> dict[str, Any]:
    """The JSON Schema of samples.yaml."""
    return samples_schema(BuildSpec)


def load_build_spec(file: str | os.PathLike[str]) -> BuildSpec:
    """Read a samples.yaml; relative paths are relative to its folder.

    Raises SpecError: the file cannot be read or breaks a rule; one line per problem, in the order of the file.
    """
    name = os.fspath(file)
    document = read_document(read_text(name, NAME), name)
    if not isinstance(document.value, dict):
        got = "an empty document" if document.value is None else describe_value(document.value)
        raise document.error((), f"must be a mapping: got {got}, expected the keys {', '.join(keys_of(BuildSpec))}")
    substitute_variables(document, os.environ)
    problems = Problems(document)
    base_dir = posixpath.abspath(posixpath.dirname(name))
    try:
        return BuildSpec.model_validate(document.value, context={"base_dir": base_dir})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            add_problem(detail, document, problems, BuildSpec)
    problems.raise_all()
    raise AssertionError("pydantic refused samples.yaml without saying why")


def _check_ranges(names: Iterable[str], key: str, place: str) -> None:
    for name in names:
        try:
            expand_range(name)
        except ValueError as error:
            raise rule_error(key, f"{place}{error}") from None


def _parse_label(name: str, text: str) -> Label:
    if text in _PLAIN:
        return Label(name=name, function=text)
    function, _, column = text.partition("(")
    return Label(name=name, function=function, column=column.removesuffix(")").strip())


def _sections(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("outcomes", "features"):
        yield from content.get(name, {}).values()
