"""Facts that cross processes, as frozen values with a JSON form, and their descriptions for people.

Runs in: the trainer, the feeder, the process of `feedline run`. Pure; no torch. The trainer's `Hello` requests a
plan, `PlanFacts` and `FeederFacts` answer it, and `FeederStats` count the feeder's work. `from_json` raises FeederError
for a malformed message, with class and key; unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from types import NoneType
from typing import Any, Self

from feedline.errors import FeederError
from feedline.loader.encoding.layout import BatchSchema

_SHOWN_FILES = 20
_FILE_KINDS = {"unchanged": "as they were", "rewritten": "rewritten", "gone": "gone", "new": "new"}
# How a field is checked, by its annotation; fields of other annotations are checked where their value is parsed.
_TYPES: dict[str, tuple[str, tuple[type, ...]]] = {
    "int": ("an integer", (int,)),
    "int | None": ("an integer or null", (int, NoneType)),
    "float": ("a number", (int, float)),
    "bool": ("true or false", (bool,)),
    "str": ("a string", (str,)),
    "str | None": ("a string or null", (str, NoneType)),
    "Mapping[str, Any]": ("a mapping", (Mapping,)),
    "Mapping[str, Any] | None": ("a mapping or null", (Mapping, NoneType)),
    "tuple[str, ...]": ("a list", (list, tuple)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RebaseRequest:
    """The state whose epoch continues on the current table."""

    state: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"state": dict(self.state)}

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A trainer's request for a plan: its rank and, on resume, the names and numbers in its state that must match.

    A `snapshot` of None lets the feeder take one; `features` of None accepts any. `trainer`, `trainers`: its rank among
    all trainers and their number, if several of them read the same rank's rows. `connected`: torch.distributed connects
    the ranks, and rank 0 plans first.
    """

    rank: int
    world_size: int
    trainer: int | None = None
    trainers: int | None = None
    snapshot: str | None = None
    lanes: int | None = None
    plan: str | None = None
    features: str | None = None
    seed: int | None = None
    batch_size: int | None = None
    rebase: RebaseRequest | None = None
    connected: bool = False

    @property
    def global_rank(self) -> int:
        """The rank among all trainers."""
        return self.rank if self.trainer is None else self.trainer

    @property
    def global_size(self) -> int:
        """The number of all trainers."""
        return self.world_size if self.trainers is None else self.trainers

    def to_json(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return values | {"rebase": None if self.rebase is None else self.rebase.to_json()}

    @classmethod
    def from_json(cls, message: object) -> Self:
        values = checked_fields(cls, message)
        if values.get("rebase") is not None:
            values["rebase"] = RebaseRequest.from_json(values["rebase"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFileFacts:
    """A bad file that a plan leaves out: path, reason, and rows (None if the footer is unreadable)."""

    path: str
    reason: str
    rows: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestFacts:
    """The epoch that a rebase shortened: its steps (including those before `first_step`), the remaining rows, and the
    `changes` of the table as recorded in the rebase file."""

    epoch: int
    first_step: int
    steps: int
    rows: int
    rows_dropped: int
    changes: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"changes": dict(self.changes)}

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFacts:
    """The facts of a plan that a trainer needs: `steps` and rows count a whole epoch.

    `snapshot`, `plan` and `features` are the fingerprints in a state; `environment` lists the versions that compute
    features.
    `nulls` are warnings, `absent` notes about the table. `rest` is the epoch that a rebase shortened.
    """

    snapshot: str
    plan: str
    features: str
    environment: str
    seed: int
    lanes: int
    batch_size: int
    steps: int
    rows: int
    rows_dropped: int
    bad_files: tuple[BadFileFacts, ...]
    nulls: tuple[str, ...]
    absent: tuple[str, ...]
    schema: BatchSchema
    rest: RestFacts | None = None

    def steps_of(self, epoch: int) -> int:
        """Steps of an epoch, equal on all ranks; for a rebased epoch, including those before the rebase."""
        return self.rest.steps if self.rest is not None and self.rest.epoch == epoch else self.steps

    def first_step_of(self, epoch: int) -> int:
        """The first step that an epoch can deliver: 0, or the step of the rebase."""
        return self.rest.first_step if self.rest is not None and self.rest.epoch == epoch else 0

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {
            "bad_files": [bad.to_json() for bad in self.bad_files],
            "nulls": list(self.nulls),
            "absent": list(self.absent),
            "schema": self.schema.to_json(),
            "rest": None if self.rest is None else self.rest.to_json(),
        }

    @classmethod
    def from_json(cls, message: object) -> Self:
        values = checked_fields(cls, message)
        if not isinstance(values["bad_files"], Sequence):
            raise _malformed_error(cls, "bad_files", values["bad_files"], "a list")
        values["bad_files"] = tuple(BadFileFacts.from_json(bad) for bad in values["bad_files"])
        values["nulls"], values["absent"] = tuple(values["nulls"]), tuple(values["absent"])
        try:
            values["schema"] = BatchSchema.from_json(values["schema"])
        except (TypeError, ValueError):
            raise _malformed_error(cls, "schema", values["schema"], "a schema's JSON") from None
        if values.get("rest") is not None:
            values["rest"] = RestFacts.from_json(values["rest"])
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederFacts:
    """The feeder: its process id, seconds from its start to the end of its imports, log file, dashboard address."""

    imports_s: float
    log: str | None
    dashboard: str | None
    feeder: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStats:
    """Sums over the blocks that a feeder received; `resubmitted` counts second attempts."""

    blocks: int = 0
    nbytes_read: int = 0
    nbytes_encoded: int = 0
    read_s: float = 0.0
    transform_s: float = 0.0
    encode_s: float = 0.0
    resubmitted: int = 0

    @classmethod
    def from_json(cls, message: object) -> Self:
        return cls(**checked_fields(cls, message))


@dataclass(frozen=True, slots=True, kw_only=True)
class FeederStats:
    """A feeder's work for one trainer: batches and rows announced, bytes written, seconds waiting for blocks and slots.

    `epochs`: one more than the last epoch that the trainer took to its end. `step`: the next of the `steps` of `epoch`.
    `window`: the limit of `blocks_in_flight` (0 before it is decided), and what decided it.
    """

    batches: int = 0
    rows: int = 0
    nbytes: int = 0
    wait_blocks_s: float = 0.0
    wait_slots_s: float = 0.0
    epoch: int = 0
    step: int = 0
    steps: int = 0
    epochs: int = 0
    ring_slots: int = 0
    ring_free: int = 0
    blocks_in_flight: int = 0
    window: int = 0
    window_reason: str = ""
    delivery: BlockStats = field(default_factory=BlockStats)

    def to_json(self) -> dict[str, Any]:
        blocks = {name: getattr(self.delivery, name) for name in BlockStats.__slots__}
        return {name: getattr(self, name) for name in self.__slots__} | {"delivery": blocks}

    @classmethod
    def from_json(cls, message: object) -> Self:
        values = checked_fields(cls, message)
        return cls(**values | {"delivery": BlockStats.from_json(values.get("delivery", {}))})


def describe_bad_files(bad_files: Sequence[BadFileFacts]) -> str:
    """The summary, and one line per file."""
    return f"{summary_of(bad_files)}:\n" + "\n".join(lines_of(bad_files))


def summary_of(bad_files: Sequence[BadFileFacts]) -> str:
    """How many files and rows are left out, in one line."""
    rows = sum(bad.rows or 0 for bad in bad_files)
    unknown = sum(bad.rows is None for bad in bad_files)
    note = f", besides those of {unknown:,} whose footer cannot be read" if unknown else ""
    files = "1 bad file" if len(bad_files) == 1 else f"{len(bad_files):,} bad files"
    return f"{files} left out of the plan, {rows:,} rows{note}"


def lines_of(bad_files: Sequence[BadFileFacts]) -> list[str]:
    """Path and reason of the first files, and the count of the rest."""
    lines = [f"  {bad.path}: {bad.reason}" for bad in bad_files[:_SHOWN_FILES]]
    return lines if len(bad_files) <= _SHOWN_FILES else [*lines, f"  and {len(bad_files) - _SHOWN_FILES:,} more"]


def describe_rebase(rest: RestFacts) -> str:
    """The outcome of a rebase, one line per kind of fact."""
    changes = rest.changes
    files, rows = changes["files"], changes["rows"]
    file_counts = ", ".join(f"{files[key]:,} {name}" for key, name in _FILE_KINDS.items())
    position = f"epoch {changes['epoch']} before step {changes['step']:,}"
    lines = [
        f"snapshot {changes['from'][:12]} -> {changes['to'][:12]}: files {file_counts}",
        f"delivered: {rows['delivered']:,} rows of {position}; {rows['delivered_gone']:,} of them are gone since",
        f"changed: {rows['deleted']:,} rows deleted, {rows['added']:,} added (net, per partition)",
    ]
    steps_left = rest.steps - rest.first_step
    lines.append(f"left: {rest.rows:,} rows in {steps_left:,} steps, {rest.rows_dropped:,} rows dropped")
    return "\n".join(lines)


def checked_fields(cls: type[Any], message: object) -> dict[str, Any]:
    """A message's values for the fields of a dataclass. Raises FeederError if one is missing or of another type."""
    if not isinstance(message, Mapping):
        raise FeederError(f"a message is malformed: got {message!r:.80}, expected the JSON of {cls.__name__}")
    values = {}
    for each in fields(cls):
        if each.name in message:
            values[each.name] = value = message[each.name]
            expected, types = _TYPES.get(str(each.type), ("", (object,)))
            if not isinstance(value, types) or (isinstance(value, bool) and expected and bool not in types):
                raise _malformed_error(cls, each.name, value, expected)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise _malformed_error(cls, each.name, "nothing", "a value")
    return values


def _malformed_error(cls: type[Any], name: str, value: object, expected: str) -> FeederError:
    return FeederError(f"a message is malformed: got {value!r:.80} as {cls.__name__}.{name}, expected {expected}")
