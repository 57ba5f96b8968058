"""Define the section `histories`, and how a feature reads one: which events a row sees, and which of their columns.

Pure. A history is a table of events, stored once. A feature that reads it sees the events of the row's key before a
time of the row. `HistoryRead.name` is the name of the column of lists that the rows of a table get from it: equal reads
are one column.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from feedline.config.column_ranges import has_range
from feedline.config.sections import MAX_INT, Bytes, NonEmptyString, Section, TablePaths, value_error
from feedline.config.source_section import Format
from feedline.config.yaml_document import Path, Problems, describe_value, unknown_message
from feedline.dataclass import dataclass

LAG_UNITS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 86400 * 10**9,
}
LAG_PATTERN = r"(0|[1-9][0-9]*)\s*(ns|us|ms|s|m|h|d)"
_LAG = re.compile(LAG_PATTERN)
MOST_POOLS = 32  # as many as a tag has bits

# Keys of a feature that reads a history, besides those of every feature.
SELECTION_KEYS = ("at", "last", "lag", "where", "scan", "pools", "recent", "min_history")
HISTORY_KEYS = ("history", "column", "columns", "tag", *SELECTION_KEYS)
_POOL_KEYS = ("where", "last")


def _name_of_history(value: str) -> str:
    if not value.isidentifier():
        raise value_error("a name of letters, digits and underscores")
    return value


class HistorySpec(Section):
    """A table of events, of which rows see those of their key before a time of theirs."""

    table: TablePaths = Field(
        description="The table of events. Written by `feedline optimize --history`, it is read as it is; any other is "
        "written so in work_dir first."
    )
    format: Format = Field(default="auto", description="As of source.")
    key: NonEmptyString = Field(description="The column of the events whose value they share with the row.")
    on: NonEmptyString | None = Field(default=None, description="The row's column for it (default: of the same name).")
    time: NonEmptyString = Field(description="The column of the events that says when they happened.")
    known_at: NonEmptyString | None = Field(
        default=None,
        description="The column that says when they became known; a row sees those that were, at its time.",
    )
    tie_break: NonEmptyString | None = Field(
        default=None, description="The column that orders events of the same time (default: their place in the table)."
    )
    memory: Bytes = Field(default=128 * 2**20, description="Decoded events that each worker may keep for later blocks.")

    @property
    def sort_by(self) -> tuple[str, ...]:
        return (self.time,) if self.tie_break is None else (self.time, self.tie_break)

    @property
    def digest(self) -> str:
        """Of what decides which events are whose, and when: of all keys but `memory`."""
        return hashlib.sha256(self.model_dump_json(exclude={"memory"}, exclude_defaults=True).encode()).hexdigest()[:12]


HistoryName = Annotated[NonEmptyString, AfterValidator(_name_of_history)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The last events of those that meet a condition (None: all of them)."""

    name: str
    last: int
    where: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRead:
    """What a feature reads of a history. column: None for the tag, the pools that an event is in as bits, the first
    pool the lowest one.

    at: the row's column; an event is seen if it happened before it, less `lag`. lag: an integer of the time's unit, or
    a time such as "10m". pools: one without a name where there are none. scan: at most so many of the last events are
    looked at (0: all). recent: the row's column of newer events, which the stored ones are
    seen up to. table: a digest of the history's section, which says
    whose events these are.
    """

    history: str
    at: str
    pools: tuple[Pool, ...]
    column: str | None = None
    lag: str = "0"
    scan: int = 0
    recent: str = ""
    table: str = ""

    @property
    def selection(self) -> HistoryRead:
        """The same for all columns of the same events."""
        return replace(self, column=None)

    @property
    def row_columns(self) -> tuple[str, ...]:
        """The columns of rows, besides that of the key, that decide what they see."""
        return (self.at, self.recent) if self.recent else (self.at,)

    @property
    def most(self) -> int:
        """The most events of a row."""
        most = sum(pool.last for pool in self.pools)
        return min(most, self.scan) if self.scan else most

    @property
    def name(self) -> str:
        """The name of the column of lists that rows get."""
        pools = ", ".join(
            f"{pool.name + ' ' if pool.name else ''}last {pool.last}{f' where {pool.where}' if pool.where else ''}"
            for pool in self.pools
        )
        before = self.at if self.lag == "0" else f"{self.at} - {self.lag}"
        scan = f" of {self.scan}" if self.scan else ""
        scan += f", then {self.recent}" if self.recent else ""
        table = f" ({self.table})" if self.table else ""
        return f"{self.history}: {self.column or 'pools'} before {before}, {pools}{scan}{table}"

    def to_yaml(self) -> dict[str, Any]:
        """The keys of the feature that reads it."""
        content: dict[str, Any] = {"history": self.history, "at": self.at}
        content |= {"tag": "pools"} if self.column is None else {"column": self.column}
        if [pool.name for pool in self.pools] == [""]:
            [pool] = self.pools
            content |= {"last": pool.last} | ({} if pool.where is None else {"where": pool.where})
        else:
            content["pools"] = {
                pool.name: {"last": pool.last} | ({} if pool.where is None else {"where": pool.where})
                for pool in self.pools
            }
        content |= {} if self.lag == "0" else {"lag": int(self.lag) if self.lag.isdecimal() else self.lag}
        content |= {"recent": self.recent} if self.recent else {}
        return content | ({"scan": self.scan} if self.scan else {})


def lag_ns(lag: str) -> int | None:
    """A lag in nanoseconds; None where it is a bare number."""
    match = _LAG.fullmatch(lag)
    return None if match is None else int(match[1]) * LAG_UNITS[match[2]]


def read_history(body: dict[str, Any], path: Path, problems: Problems) -> HistoryRead | None:
    """The events that a feature's entry selects, without a column; None after an error."""
    before = len(problems)
    if not str(path[-1]).strip() or has_range(str(path[-1])):
        rule = "must be a name of its own, without a range, for features of a history"
        problems.add(path, f"{rule}: got {path[-1]!r}. Name each, or use `columns:`", key=True)
    history = _name(body, "history", path, problems)
    at = _name(body, "at", path, problems) if "at" in body else ""
    pools = _read_pools(body, path, problems)
    scan = read_count(body, "scan", path, problems) if "scan" in body else 0
    recent = _name(body, "recent", path, problems) if "recent" in body else ""
    lag = body.get("lag", 0)
    if isinstance(lag, bool) or not (
        (isinstance(lag, int) and 0 <= lag <= MAX_INT) or (isinstance(lag, str) and lag_ns(lag) is not None)
    ):
        message = "must be a time that is not negative, such as 10m (ns, us, ms, s, m, h, d), or an integer of the"
        problems.add((*path, "lag"), f"{message} time's unit: got {describe_value(lag)}")
    if len(problems) > before or history is None or at is None or recent is None:
        return None
    text = str(lag).replace(" ", "")
    text = "0" if lag_ns(text) == 0 else text
    return HistoryRead(history=history, at=at, pools=pools, lag=text, scan=scan, recent=recent)


def _read_pools(body: dict[str, Any], path: Path, problems: Problems) -> tuple[Pool, ...]:
    if "pools" not in body:
        if "last" not in body:
            message = "missing key: expected `last: N`, the most events of a row, or `pools`. Write last: 512"
            problems.add(path, message)
            return ()
        return (_pool("", body, path, problems),)
    for key in ("last", "where"):
        if key in body:
            problems.add((*path, key), f"{key} beside pools: expected it in each pool. Move it there", key=True)
    pools = body["pools"]
    if not isinstance(pools, dict) or not 1 <= len(pools) <= MOST_POOLS:
        got = f"{len(pools)} pools" if isinstance(pools, dict) else describe_value(pools)
        message = f"must be a mapping of 1 to {MOST_POOLS} pools: got {got}. Write {{liked: {{where: …, last: 100}}}}"
        problems.add((*path, "pools"), message)
        return ()
    found = []
    for name, entry in pools.items():
        at = (*path, "pools", name)
        if not isinstance(entry, dict):
            problems.add(at, f"must be a mapping with last and where: got {describe_value(entry)}")
            continue
        for key in entry:
            if key not in _POOL_KEYS:
                problems.add((*at, key), unknown_message("key of a pool", key, _POOL_KEYS), key=True)
        if "last" not in entry:
            problems.add(at, "missing key: expected `last: N`, the most events of the pool")
            continue
        found.append(_pool(str(name), entry, at, problems))
    return tuple(found)


def _pool(name: str, body: dict[str, Any], path: Path, problems: Problems) -> Pool:
    where = _name(body, "where", path, problems, "an expression over the events' columns") if "where" in body else None
    return Pool(name=name, last=read_count(body, "last", path, problems), where=where)


def read_count(body: dict[str, Any], key: str, path: Path, problems: Problems) -> int:
    """A number of events, at least 1; adds errors to `problems`."""
    value = body[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
        problems.add((*path, key), f"must be an integer from 1 to {2**31 - 1}: got {describe_value(value)}")
        return 1
    return value


def _name(body: dict[str, Any], key: str, path: Path, problems: Problems, what: str = "a column") -> str | None:
    value = body.get(key)
    if isinstance(value, str) and value.strip():
        return value
    what = "the name of a history" if key == "history" else what
    problems.add((*path, key), f"must be {what}: got {describe_value(value)}, expected a non-empty string")
    return None
