"""Define the section `source.follow`: what of a growing table has landed, until when, and what an epoch reads.

Runs in: every process that reads a pipeline.yaml. Pure.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from feedline.spec.sections import NonEmptyString, Section, value_error

LOG, SUCCESS = "log", "_SUCCESS"
_QUIET = re.compile(r"quiet ([1-9][0-9]*)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def checked_moment(value: str) -> str:
    """An ISO date or time."""
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
