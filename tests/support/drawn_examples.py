"""The number of examples that a property test draws: all in `make test-nightly`, a third of them in `make test`."""

from __future__ import annotations

from hypothesis import settings

NIGHTLY = "nightly"  # the profile
FEWEST = 10


def examples(count: int, *, by_day: int | None = None) -> settings:
    """The settings of a test that draws this many examples in nightly runs. by_day: how many it draws in `make test`,
    where a third, or ten, would be too dear."""
    few = max(FEWEST, count // 3) if by_day is None else by_day
    return settings(max_examples=count if settings.get_current_profile_name() == NIGHTLY else few)
