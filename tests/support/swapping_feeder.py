"""A feeder whose blocks have the wrong rows: two of them are swapped. Put it into FEEDLINE_COMMAND.

FEEDLINE_COMMAND="python swapping_feeder.py"
"""

from __future__ import annotations

from feedline.__main__ import main
from feedline.blocks import compute

_row_order = compute.row_order


def swapped(*arguments):
    rows = _row_order(*arguments).copy()
    rows[[0, 1]] = rows[[1, 0]]
    return rows


if __name__ == "__main__":
    compute.row_order = swapped
    main()
