"""The version of the function from a plan's values to the rows of each step.

Part of every plan's fingerprint: raised by any change that moves a row to another step or position. A state is
continued by the version that made it. `mixing` has what each version decides.
"""

from __future__ import annotations

from feedline.spec.sections import ShuffleSpec

PLAN_VERSION = 3


def newest_version(shuffle: ShuffleSpec | None) -> int:
    """The version of the plan of a new run."""
    return PLAN_VERSION if shuffle is not None and shuffle.rows else 1
