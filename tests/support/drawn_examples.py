"""The number of examples that a property test draws: all in `make test-nightly`, a third of them in `make test`."""

from __future__ import annotations

from hypothesis import settings

NIGHTLY = "nightly"  # the profile
FEWEST = 10


def examples(count: int, *, fewest: int = FEWEST) -> settings:
    """The settings of a test that draws this many examples in nightly runs; else no fewer than `fewest`."""
    return settings(max_examples=count if settings.get_current_profile_name() == NIGHTLY else max(fewest, count // 3))
