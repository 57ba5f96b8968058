"""Keep with each partition what it was built from, and how many rows were joined, late, unmatched or dropped.

Runs where a table is built or its status is shown. The record of a partition is the file `_build.json` in its folder,
which readers skip. It lands with the partition's files; counts of late rows are written to it later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Self

from feedline.dataclass import dataclass
from feedline.errors import TableError

RECORD = "_build.json"
_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """Outcomes of one log. joined: those that count for rows of the partition.

    Of the partition's own time: `logged`; `duplicates`, which equal another one; `keyless`, with a null in the key;
    `unmatched`, which follow no impression. late: rows that the log has gained since in the times that were read.
    """

    logged: int = 0
    duplicates: int = 0
    keyless: int = 0
    unmatched: int = 0
    joined: int = 0
    late: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Rows of a partition. impressions: those logged; duplicates: those that equal another one; conflicting: others of
    an impression that has a row; keyless: those with a null in the key; sampled_away: negatives that were left out;
    late: impressions and rows of features that came later; rows: those of the table."""

    impressions: int = 0
    duplicates: int = 0
    conflicting: int = 0
    keyless: int = 0
    sampled_away: int = 0
    late: int = 0
    rows: int = 0
    outcomes: Mapping[str, OutcomeCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Files of a log that a partition was built from, and their rows in the times that it read.

    files: path -> size, modification time and tag of each, as far as the store has them.
    """

    files: Mapping[str, tuple[int, int, str]]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a partition was built from. spec: the digest of samples.yaml. inputs: by log. seen: a digest of the files
    whose late rows were counted last; empty before."""

    spec: str
    counts: Counts
    inputs: Mapping[str, Inputs]
    seen: str = ""

    def to_json(self) -> bytes:
        inputs = {name: {"rows": each.rows, "files": each.files} for name, each in self.inputs.items()}
        content = {"version": _VERSION, "spec": self.spec, "counts": asdict(self.counts), "inputs": inputs}
        return json.dumps({**content, "seen": self.seen}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_json(cls, content: bytes, name: str) -> Self:
        """Raises TableError, naming the file, for anything that `to_json` did not write."""
        try:
            document = json.loads(content)
            if document["version"] != _VERSION:
                raise TableError(
                    f"{name} is of another version: got {document['version']!r}, expected {_VERSION}. Build with the "
                    "version of Feedline that wrote it, or build into a new folder"
                )
            counts = dict(document["counts"])
            outcomes = {each: OutcomeCounts(**values) for each, values in counts.pop("outcomes").items()}
            inputs = {
                each: Inputs(rows=values["rows"], files={path: tuple(file) for path, file in values["files"].items()})
                for each, values in document["inputs"].items()
            }
            return cls(
                spec=document["spec"],
                counts=Counts(**counts, outcomes=outcomes),
                inputs=inputs,
                seen=document["seen"],
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if isinstance(error, TableError):
                raise
            raise TableError(
                f"{name} is no record of a build: {error!r}. Delete its partition, and build it again"
            ) from None


def summed(parts: list[Mapping[str, Any]]) -> dict[str, int]:
    """The sums of counts of the same names."""
    totals: dict[str, int] = {}
    for part in parts:
        for name, count in part.items():
            totals[name] = totals.get(name, 0) + count
    return totals
