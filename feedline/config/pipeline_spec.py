"""Read a whole pipeline.yaml, or its canonical JSON: checked, with the position of every entry.

    text -> document with positions (yaml_document) -> overrides, variables (overrides)
         -> features (features), groups (dedup_section) and sections (sections, pydantic) -> PipelineSpec

Every error is one line "FILE:LINE:COL: path: got …, expected …. The remedy"; those of the last step are raised
together. Later layers report through `PipelineSpec.error`, which knows the same positions.
"""

from __future__ import annotations

import difflib
import json
import os
import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, SkipValidation, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails

from feedline.config.cache_section import Cache
from feedline.config.cluster_section import ClusterSpec
from feedline.config.dedup_section import NEEDS_RUNS, DedupSpec, read_groups
from feedline.config.features import FeatureSpec, OnExpect, OnNonfinite, canonical_json, read_features
from feedline.config.histories import HistoryName, HistorySpec
from feedline.config.json_schema import document_schema
from feedline.config.monitoring_section import Metrics, Traces, without_unset
from feedline.config.overrides import apply_overrides, override_options, plain_value, substitute_variables
from feedline.config.sections import (
    Artifacts,
    ArtifactsSpec,
    BatchSpec,
    Bytes,
    Count,
    Fit,
    FitSpec,
    NonEmptyString,
    PathString,
    Section,
    Shuffle,
    ShuffleSpec,
    Version,
    keys_of,
    section_at,
)
from feedline.config.source_section import SourceSpec, refused_weights
from feedline.config.sources_section import (
    MixSpec,
    OnlySource,
    Sources,
    canonical_features,
    check_source_keys,
    check_sources,
    features_of,
    grouped_entries,
    groups_of,
    plain_source,
    read_source_features,
    rows_of_sources,
)
from feedline.config.windows import HoldOutSpec, WindowsSpec
from feedline.config.yaml_document import (
    MAX_BYTES,
    Document,
    Path,
    Problems,
    describe_value,
    read_document,
    unknown_message,
)
from feedline.errors import SpecError

# --------------------------------------------------------------------------------------------------------------------
# Say in words what a value of a pipeline.yaml must be, from pydantic's error about it.

_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "less_than_equal": ("at most", "le"),
    "greater_than": ("greater than", "gt"),
    "less_than": ("less than", "lt"),
}
_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "string_too_short": "a non-empty string",
    "dict_type": "a mapping from names",
}


def expectation_of(detail: ErrorDetails, keys: Sequence[str]) -> tuple[str, str]:
    """What a value must be, by pydantic's type of error, and the usual remedy for the value found. keys: of the section
    at its position, if it is one."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "expected":
        return context["expected"], context["remedy"]
    if kind == "literal_error":
        words = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
        near = difflib.get_close_matches(str(value).lower(), words, n=1)
        remedy = f"Did you mean {near[0]}?" if near and len(words) > 1 else ""
        return (f"one of {', '.join(words)}" if len(words) > 1 else words[0]), remedy
    if kind == "model_type" and keys:
        remedy = "" if value is not None else "Write one of its keys below it"
        return f"a mapping with the keys {', '.join(keys)}", remedy
    if kind in _BOUNDS:
        bound, key = _BOUNDS[kind]
        limit = f"{context[key]:.17g}" if key in ("gt", "lt") else context[key]
        return f"{bound} {limit}", ""
    return _TYPES.get(kind, f"valid ({detail['msg']})"), _remedy(kind, value)


def _remedy(kind: str, value: object) -> str:
    if kind == "string_type":
        return "Quote it" if isinstance(value, (bool, int, float)) else ""
    if kind == "bool_type":
        return "YAML 1.2 has no other booleans" if isinstance(value, str) else ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        return f"Write {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[0-9]+(_[0-9]+)*", value):
        return f"Write {value.replace('_', '')}, without quotes or underscores"
    return ""


# --------------------------------------------------------------------------------------------------------------------

DICT_NAME = "pipeline"  # in errors about a mapping, where a file would have its name
_NO_OVERRIDES: Mapping[str, object] = {}


class PipelineSpec(Section, defer_build=False):
    """A pipeline.yaml, checked and with its defaults. Positions do not count for equality."""

    version: Version = Field(description="Version of this format.")
    name: NonEmptyString = Field(description="Name of the job.")
    work_dir: PathString = Field(
        default=".feedline",
        validate_default=True,
        description="Folder or URI for snapshots, counts and artifacts, shared between the hosts of a job.",
    )
    only_source: OnlySource = Field(default=None, alias="source", description="The table and its rows.")
    sources: Sources = Field(default=(), description="Several tables, instead, whose rows each step mixes.")
    mix: MixSpec | None = Field(default=None, description="How several sources are mixed.")
    histories: dict[HistoryName, HistorySpec] = Field(
        default_factory=dict, description="Tables of events, by name, of which features read what a row may see."
    )
    windows: WindowsSpec | None = Field(default=None, description="Epochs that are windows of time, in order.")
    hold_out: HoldOutSpec | None = Field(default=None, description="Keys that are left out, to evaluate on.")
    features: Annotated[tuple[FeatureSpec, ...], SkipValidation, WithJsonSchema({})]
    dedup: Annotated[tuple[DedupSpec, ...], SkipValidation, WithJsonSchema({})] = ()
    batch: BatchSpec = Field(description="How rows become batches.")
    shuffle: Shuffle = Field(
        default=ShuffleSpec.model_construct(),
        description="The epoch's permutation, or off: the table's order within each lane.",
    )
    lanes: Count | None = Field(default=None, description="Lanes of the run (default: its first world size).")
    epochs: Count = Field(default=1, description="Epochs that `feedline run` serves.")
    cluster: ClusterSpec = Field(default=ClusterSpec.model_construct(), description="Where blocks are computed.")
    feeder: Literal["host", "rank"] = Field(
        default="host", description="One feeder for all ranks of a host, or one for each rank."
    )
    memory: Bytes | None = Field(default=None, description="Memory of a host's feeders: blocks in flight and rings.")
    cache: Cache = Field(default=None, description="The folder of a cache of finished features, or off.")
    artifacts: Artifacts = Field(
        default=ArtifactsSpec.model_construct(), description="Where artifacts are kept, and whose they are."
    )
    fit: Fit = Field(default=FitSpec.model_construct(), description="What ops learn from, and when.")
    allow_code: bool = Field(default=False, description="Allow Python functions as ops; they run on every worker.")
    on_nonfinite: OnNonfinite = Field(
        default="keep", description="What to do with finished numbers that are NaN or infinite."
    )
    on_expect: OnExpect = Field(default="warn", description="What to do if a feature breaks its expectations.")
    metrics: Metrics = Field(default=None, description="Where feeders serve Prometheus metrics, or off.")
    traces: Traces = Field(default=None, description="Where spans of blocks are sent by OTLP, or off.")

    _document: Document = PrivateAttr(default_factory=lambda: Document(file="<pipeline>", value=None))
    _base_dir: str = PrivateAttr(default="")
    _whole: PipelineSpec | None = PrivateAttr(default=None)
    _index: int = PrivateAttr(default=0)

    @property
    def source(self) -> SourceSpec:
        """The source of a pipeline with one. Raises SpecError, with the names, where there are several."""
        if self.only_source is None:
            names = ", ".join(source.name for source in self.sources)
            message = f"this reads one table: got the sources {names}. Name one with --source, or Pipeline.of_source"
            raise self.error(("sources",), message)
        return self.only_source

    @property
    def is_mixed(self) -> bool:
        return self.only_source is None

    @property
    def is_followed(self) -> bool:
        """Whether each epoch has a plan of its own: a table is followed, or epochs are windows."""
        return self.windows is not None or any(each.follow is not None for each in self.sources or [self.source])

    def in_window(self, epoch: int) -> PipelineSpec:
        """The spec that reads the window of an epoch."""
        if self.windows is None:
            return self
        source = self.source.model_copy(update={"where": self.windows.where(epoch, self.source.where)})
        return self.model_copy(update={"only_source": source})

    @property
    def whole(self) -> PipelineSpec:
        """The pipeline that this one is a source of; itself, if it is none."""
        return self._whole or self

    @property
    def source_name(self) -> str | None:
        """The name of the source that this pipeline is of; None if it is not one of several."""
        return None if self._whole is None else self._whole.sources[self._index].name

    def per_source(self) -> tuple[PipelineSpec, ...]:
        """A pipeline for each source, with its features and its rows of a step; of one `source`, this one."""
        rows = rows_of_sources(self.sources, self.batch.size)
        return tuple(self._of_source(index, own) for index, own in enumerate(rows)) if self.is_mixed else (self,)

    def for_source(self, name: str) -> PipelineSpec:
        """The pipeline of the source of this name. Raises SpecError for an unknown one."""
        if not self.sources:
            raise self.error(
                ("source",), f"has no name: got source {describe_value(name)}, expected none. Leave it out"
            )
        specs = dict(zip([source.name for source in self.sources], self.per_source(), strict=False))
        if name not in specs:
            raise self.error(("sources",), unknown_message("source", name, specs))
        return specs[name]

    def _of_source(self, index: int, rows: int) -> PipelineSpec:
        features = features_of(self.features, self.sources[index])
        parts = {
            "only_source": plain_source(self.sources[index]),
            "features": features,
            "dedup": groups_of(self.dedup, features),
            "batch": self.batch.model_copy(update={"size": rows}),
        }
        spec = self.model_copy(update={**parts, "sources": (), "mix": None})
        spec._whole, spec._index = self, index
        return spec

    @property
    def file(self) -> str:
        """The path of the file, as given; not part of the canonical text."""
        return self._document.file

    @property
    def base_dir(self) -> str:
        """The absolute folder that relative paths are relative to; not part of the canonical text."""
        return self._base_dir

    def command(self, name: str) -> str:
        """The call that runs a command, such as `fit`, for this pipeline: with the overrides that are in force."""
        if self.file == DICT_NAME and () not in self._document.positions:
            return f"Pipeline.from_dict(…).{name}()"
        return f"feedline {name} {shlex.quote(self.file)}{override_options(self._document.overrides)}"

    def error(self, path: Path, message: str) -> SpecError:
        """A SpecError "FILE:LINE:COL: features.dense.price[1]: message", or with the override instead of the line."""
        if path[:1] != ("sources",) and self._whole is not None:
            at_source = path[:1] == ("source",)
            message = message if at_source else f"source {self.source_name}: {message}"
            path = ("sources", self._index, *path[1:]) if at_source else path
        return self._document.error(path, message)

    def canonical(self) -> str:  # noqa: C901 -- a key after another
        """The spec as JSON, which `from_canonical` reads; equal for equal specs, so it may be hashed."""
        content = without_unset(self.model_dump(exclude={"features", "dedup"}, by_alias=True))
        if self.dedup:
            content["dedup"] = {group.name: {"columns": group.columns} for group in self.dedup}
        content["features"] = [[feature.group, feature.name, feature.long_form()] for feature in self.features]
        content["shuffle"] = "off" if self.shuffle is None else self.shuffle.stated_keys(content["shuffle"])
        content["batch"] = self.batch.stated_keys(content["batch"])
        if self.is_mixed:
            del content["source"]
            for entry, source in zip(content["sources"], self.sources, strict=True):
                entry["features"] = canonical_features(source.features)
        else:
            del content["sources"], content["mix"]
        for entry in content["sources"] if self.is_mixed else (content["source"],):
            for key in ("anchors", "exclude", "follow"):
                if entry[key] is None:
                    del entry[key]
        for key in ("histories", "windows", "hold_out"):
            if not content[key]:
                del content[key]
        if self.cache is None or self.cache.is_off:
            del content["cache"]
        if self.artifacts.shared is None:
            content["artifacts"] = self.artifacts.folder
        if self.cluster.workers is not None and self.cluster.workers.is_fixed:
            content["cluster"]["workers"] = self.cluster.workers.max
        if self.cluster.tls is not None and self.cluster.tls.temporary:
            content["cluster"]["tls"] = "temporary"
        if self.cluster.scheduler is not None or self.cluster.provider is not None:
            del content["cluster"]["threads"]  # refused beside them
        return canonical_json(content)

    def packed(self) -> bytes:
        """This spec for another process, where `unpacked` makes the same one, whatever has become of its file and of
        environment variables: the values of these are in it, and may be secret."""
        return json.dumps({"base_dir": self.base_dir, "document": self._document.packed()}).encode()

    @classmethod
    def unpacked(cls, content: bytes) -> PipelineSpec:
        """The spec of which `packed` made this. Raises SpecError where a function of its features cannot be loaded."""
        parts = json.loads(content)
        return _validate(Document.unpacked(parts["document"]), parts["base_dir"])

    @classmethod
    def from_canonical(cls, text: str, *, file: str = "<canonical>") -> PipelineSpec:
        """The spec of a canonical text; errors name `file`, without lines and columns."""
        try:
            content = json.loads(text)
            groups = grouped_entries(content["features"])
            for source in content.get("sources", ()):
                own = grouped_entries(source.pop("features"))
                source |= {"features": own} if own else {}
        except (ValueError, KeyError, TypeError) as error:
            raise SpecError(f"{file}: not the canonical text of a pipeline: {error!r}") from error
        return _validate(Document(file=file, value={**content, "features": groups}), posixpath.abspath(""))

    def __eq__(self, other: object) -> bool:
        return self.canonical() == other.canonical() if isinstance(other, PipelineSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.canonical())


def load_spec(
    pipeline: str | os.PathLike[str] | Mapping[str, object],
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    *,
    base_dir: str | None = None,
) -> PipelineSpec:
    """Read a pipeline.yaml, or a mapping that holds what it would; relative paths in the file are relative to its
    folder, those in a mapping to `base_dir` (default: the current folder).

    Args:
        overrides: values by dotted key, such as {"batch.tail": "pad", "shuffle": "off"}, checked like the file.

    Raises:
        SpecError: the file cannot be read or breaks a rule; one line per problem, in the order of the file.
    """
    if isinstance(pipeline, Mapping):
        document = Document(file=DICT_NAME, value=plain_value(pipeline, DICT_NAME))
        return _read(document, overrides, base_dir)
    file = os.fspath(pipeline)
    text = read_text(file, "pipeline.yaml")
    return parse_spec(text, file=file, overrides=overrides, base_dir=posixpath.dirname(file))


def read_text(file: str, name: str) -> str:
    """The text of a YAML file. name: what such a file is called. Raises SpecError where it cannot be read."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(4 * MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SpecError(f"{file}: cannot be read: {reason}. Name an existing {name}") from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start]
        position = f"{before.count(10) + 1}:{error.start - (before.rfind(10) + 1) + 1}"
        raise SpecError(f"{file}:{position}: not UTF-8: got the byte 0x{content[error.start]:02x}") from error


def parse_spec(
    text: str,
    *,
    file: str = "<text>",
    overrides: Mapping[str, object] = _NO_OVERRIDES,
    base_dir: str | os.PathLike[str] | None = None,
) -> PipelineSpec:
    """Read the text of a pipeline.yaml; relative paths are relative to `base_dir` (default: the current folder).

    Raises:
        SpecError: as `load_spec`; `file` is the name in its messages.
    """
    return _read(read_document(text, file), overrides, base_dir)


def _read(document: Document, overrides: Mapping[str, object], base_dir: str | os.PathLike[str] | None) -> PipelineSpec:
    if not isinstance(document.value, dict):
        got = "an empty document" if document.value is None else describe_value(document.value)
        raise document.error((), f"must be a mapping: got {got}, expected the keys {', '.join(_KEYS)}")
    apply_overrides(document, overrides)
    substitute_variables(document, os.environ)
    return _validate(document, posixpath.abspath(base_dir or ""))


def json_schema(op_schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return document_schema(PipelineSpec, op_schema)


_KEYS = tuple(keys_of(PipelineSpec))


_CLASS_NEEDS_CODE = (
    "runs Python code, which needs `allow_code: true`. Write that at the top of pipeline.yaml if you trust everyone "
    "who can write to the file"
)


def _validate(document: Document, base_dir: str) -> PipelineSpec:
    problems = Problems(document)
    content = document.value
    content = _with_anchors(content, problems)
    if "features" in content:
        code = base_dir if content.get("allow_code") is True else None
        content = {**content, "features": read_features(document, problems, code)}
        if "sources" in content:
            content["sources"] = read_source_features(document, content["features"], problems, code)
    if "dedup" in content:
        content = {**content, "dedup": read_groups(document, problems)}
    spec: PipelineSpec | None = None
    try:
        spec = PipelineSpec.model_validate(content, context={"base_dir": base_dir})
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            add_problem(detail, document, problems)
    if spec is not None and spec.cluster.provider is not None and not spec.allow_code:
        problems.add(("cluster", "class"), _CLASS_NEEDS_CODE)
    if spec is not None and spec.dedup and spec.shuffle is not None and spec.shuffle.rows and spec.shuffle.by is None:
        problems.add(spec.dedup[0].path, NEEDS_RUNS)
    check_source_keys(content, problems)
    if spec is not None and spec.is_mixed:
        check_sources(spec.sources, spec.batch, problems)
    for path, reason in () if spec is None else (*_contradictions(spec), *_unknown_histories(spec)):
        problems.add(path, reason)
    problems.raise_all()
    if spec is None:
        raise AssertionError("pydantic refused a pipeline without saying why")
    spec = _with_hold_out(_with_tables_of_histories(spec))
    spec._document = document
    spec._base_dir = base_dir
    return spec


def _contradictions(spec: PipelineSpec) -> Iterator[tuple[Path, str]]:
    """Keys that contradict keys of other sections, with the reasons."""
    if (reason := spec.batch.refused_with(spec.shuffle)) is not None:
        yield ("batch", "length" if spec.batch.balance is None else "balance"), reason
    if (reason := refused_weights(spec.shuffle, (*spec.sources, spec.only_source))) is not None:
        yield ("shuffle", "weights"), reason
    if spec.is_mixed or spec.source.follow is not None:
        for key in ("windows", "hold_out"):
            if getattr(spec, key) is not None:
                beside = "several sources" if spec.is_mixed else "a followed table"
                yield (key,), f"is of one table that does not grow: got it beside {beside}. Remove it"
    elif spec.hold_out is not None and spec.source.sample not in (None, spec.hold_out.sample):
        yield ("source", "sample"), "contradicts hold_out, which samples by a key: got both. Remove one of the two"
    if spec.windows is not None and not spec.windows.count:
        yield ("windows", "until"), "leaves no window: expected one after those that are ahead. Name a later end"
    if spec.metrics is not None and (reason := spec.metrics.refused_with(spec.feeder)) is not None:
        yield ("metrics",), reason


def _with_anchors(content: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """The document, whose source reads the table of the history that its rows are the events of."""
    source, histories = content.get("source"), content.get("histories")
    if not isinstance(source, dict) or source.get("anchors") is None:
        return content
    name = source["anchors"]
    history = histories.get(name) if isinstance(histories, dict) and isinstance(name, str) else None
    if not isinstance(history, dict):
        names = histories if isinstance(histories, dict) else {}
        message = unknown_message("history", name, names) if isinstance(name, str) else "must be the name of a history"
        problems.add(("source", "anchors"), message)
        return {**content, "source": {"table": "-", **source}}
    if source.get("table", history.get("table")) != history.get("table"):
        problems.add(("source", "table"), "contradicts anchors, whose table is read: got both. Remove one", key=True)
    read = {key: history[key] for key in ("table", "format") if key in history}
    return {**content, "source": {**read, **source}}


def _with_hold_out(spec: PipelineSpec) -> PipelineSpec:
    """The spec, whose sample leaves the held-out keys out, or is of these."""
    if spec.hold_out is None or spec.only_source is None:
        return spec
    source = spec.only_source.model_copy(update={"sample": spec.hold_out.sample})
    return spec.model_copy(update={"only_source": source})


def _with_tables_of_histories(spec: PipelineSpec) -> PipelineSpec:
    """The spec, whose features say of which tables the events are that they read."""
    if not spec.histories:
        return spec
    digests = {name: (history.digest, history.time) for name, history in spec.histories.items()}
    sources = [
        source.model_copy(update={"features": tuple(each.of_table(digests) for each in source.features)})
        for source in spec.sources
    ]
    features = tuple(feature.of_table(digests) for feature in spec.features)
    return spec.model_copy(update={"features": features, "sources": tuple(sources)})


def _is_anchored(spec: PipelineSpec, name: str) -> bool:
    return not spec.is_mixed and spec.source.anchors == name


def _unknown_histories(spec: PipelineSpec) -> Iterator[tuple[Path, str]]:
    for feature in (*spec.features, *(feature for source in spec.sources for feature in source.features)):
        if feature.history is not None and not feature.history.at and not _is_anchored(spec, feature.history.history):
            message = "missing key: expected `at:`, the row's column with its time"
            yield feature.path, message + ("" if spec.is_mixed else ", unless the rows are anchors of the same history")
        if feature.history is not None and feature.history.history not in spec.histories:
            name = feature.history.history
            message = f"unknown history: got {describe_value(name)}, expected one of the section `histories`. Write it"
            message = unknown_message("history", name, spec.histories) if spec.histories else message
            yield (*feature.path, "history"), message


def add_problem(
    detail: ErrorDetails, document: Document, problems: Problems, model: type[Section] | None = None
) -> None:
    """Add pydantic's error about a document of a model (default: PipelineSpec), in words."""
    model = model or PipelineSpec
    path, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    path = path[:-1] if path[-1:] == ("[key]",) else path  # pydantic's word for the key of a mapping
    section = section_at(model, path[:-1]) if path else None
    fields = keys_of(section) if section else {}
    if kind == "rule":
        problems.add((*path, context["key"]), context["message"])
    elif kind == "missing":
        problems.add(path, f"missing key: expected a value. {fields[str(path[-1])].description}")
    elif kind == "extra_forbidden":
        problems.add(path, _unknown_key(str(path[-1]), tuple(fields), model), key=True)
    else:
        section = section_at(model, path)
        expectation, remedy = expectation_of(detail, tuple(keys_of(section)) if section else ())
        variable = document.position(path).variable
        got = describe_value(detail["input"]) + (f" from ${{{variable}}}" if variable else "")
        problems.add(path, f"must be {expectation}: got {got}" + (f". {remedy}" if remedy else ""))


def _unknown_key(key: str, allowed: tuple[str, ...], model: type[Section]) -> str:
    message = unknown_message("key", key, allowed)
    owners = [name for name in keys_of(model) if (part := section_at(model, (name,))) and key in keys_of(part)]
    if not owners or "Did you mean" in message:
        return message
    return f"{message}. It is a key of {' and of '.join(owners)}"
