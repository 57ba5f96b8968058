"""The command line, which says on standard output that `optimize` begins to write."""

from __future__ import annotations

from typing import Any

import feedline.commands.table_layout as command
from feedline.__main__ import main


def show(line: Any, progress: Any) -> None:
    if progress.phase == "writing" and not progress.done:
        print(progress.text(), flush=True)


if __name__ == "__main__":
    command.ProgressLine.show = show
    main()
