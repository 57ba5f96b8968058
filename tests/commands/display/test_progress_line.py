"""Progress is shown in one line on a terminal, and every few seconds elsewhere."""

from __future__ import annotations

import io

from feedline.commands.check import check_progress
from feedline.commands.display.progress_line import ProgressLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_line():
    now = [0.0]
    lines = io.StringIO()
    line = ProgressLine(lines, now_s=lambda: now[0])
    show = check_progress(line)
    for second in range(13):
        now[0] = float(second)
        show("footers", second, 12)
    line.close()
    assert lines.getvalue() == "footers: 5 of 12 files\nfooters: 10 of 12 files\n"
    shown = Terminal()
    line = ProgressLine(shown, now_s=lambda: now[0])
    show = check_progress(line)
    show("pages", 1, 2)
    show("pages", 2, 2)
    line.note("done")
    line.close()
    assert shown.getvalue() == "pages: 2 of 2 tasks\r\033[Kdone\n"
