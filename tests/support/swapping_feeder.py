"""A feeder whose blocks have the wrong rows: two of them are swapped. Put it into FEEDLINE_COMMAND.

FEEDLINE_COMMAND="python swapping_feeder.py"
"""

from __future__ import annotations

from feedline.__main__ import main
from feedline.blocks import compute

_ordered_rows = compute.ordered_rows


def swapped(*arguments):
    rows = _ordered_rows(*arguments).copy()
    rows[[0, 1]] = rows[[1, 0]]
    return rows


if __name__ == "__main__":
    compute.ordered_rows = swapped
    main()
