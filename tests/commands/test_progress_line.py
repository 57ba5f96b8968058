"""Progress is one line on a terminal, which fits its width and leaves nothing; elsewhere it is not shown."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feedline.commands import progress_line
from feedline.commands.progress_line import PhasePace, ProgressLine, format_duration, progress_text
from feedline.progress import Progress, report_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def counting(done: int, total: int | None = 100, unit: str = "rows") -> Progress:
    return Progress(phase="counting", done=done, total=total, unit=unit)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def test_a_line_is_overwritten_and_cleared():
    now = [0.0]
    out = Terminal()
    line = ProgressLine(out, now_s=lambda: now[0])
    line.draw()  # nothing yet
    for second in (0.0, 10.0):
        now[0] = second
        line.show(counting(int(second)))
        line.draw()
    line.note("warning: x")
    line.clear()
    assert out.getvalue() == (
        "\rcounting: 0 of 100 rows (0%)\033[K\r"
        "\rcounting: 10 of 100 rows (10%), 1.0 rows/s, ETA 1:30\033[K\r"
        "\r\033[Kwarning: x\n"
    )


def test_work_in_a_block_is_shown_by_redrawing(monkeypatch):
    monkeypatch.setattr(progress_line, "_REDRAW_S", 0.001)
    drawn = threading.Event()

    class Screen(Terminal):
        def write(self, text: str) -> int:
            if "25%" in text:
                drawn.set()
            return super().write(text)

    def interrupted_work() -> None:
        with ProgressLine(out):
            report_progress("counting", 25, 100, "rows")
            assert drawn.wait(30)
            raise KeyboardInterrupt

    out = Screen()
    with pytest.raises(KeyboardInterrupt):
        interrupted_work()
    assert out.getvalue().endswith("\r\033[K")
    assert "feedline-progress" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["a file", "a dumb terminal"])
def test_elsewhere_only_notes_are_written(out: io.StringIO, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with ProgressLine(out) as line:
        report_progress("counting", 25, 100, "rows")
        line.draw()
        line.note("stopped")
    assert out.getvalue() == "stopped\n"


def test_the_width_is_that_of_the_terminal():
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as out:
            line = ProgressLine(out, now_s=lambda: 0.0)
            _resize(theirs, 30)
            line.show(counting(50_000_000, 100_000_000))
            line.draw()
            assert os.read(ours, 1_000).decode() == "\rcounting: 50%\033[K\r"
    finally:
        os.close(ours)


def _resize(fd: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


@given(
    st.builds(
        Progress,
        phase=st.sampled_from(["counting", "fitting, pass 1 of 2"]),
        done=st.integers(0, 10**13),
        total=st.none() | st.integers(0, 10**13),
        unit=st.sampled_from(["rows", "bytes"]),
    ),
    st.floats(0, 1e12),
    st.none() | st.floats(0, 1e9),
    st.integers(0, 150),
)
@example(counting(0, 0), 0.0, None, 80)
def test_the_text_fits(progress: Progress, rate: float, left_s: float | None, width: int):
    text = progress_text(progress, rate, left_s, width=width)
    assert len(text) <= width
    wider = progress_text(progress, rate, left_s, width=width + 40)
    assert len(wider) >= len(text)
    assert wider.startswith(progress.phase[:width])


def test_a_narrow_terminal_shows_less():
    progress = counting(50_000, 100_000)
    texts = [progress_text(progress, 100, 500, width=width) for width in (80, 50, 30, 14, 8)]
    assert texts == [
        "counting: 50,000 of 100,000 rows (50%), 100 rows/s, ETA 8:20",
        "counting: 50,000 of 100,000 rows (50%), ETA 8:20",
        "counting: 50%, ETA 8:20",
        "counting: 50%",
        "counting",
    ]
    assert progress_text(counting(7, None, "files"), 3.5, None, width=80) == "counting: 7 files, 3.5 files/s"
    assert progress_text(counting(2_500_000_000, None, "bytes"), 1e6, None, width=80) == "counting: 2.5 GB, 1.0 MB/s"


def test_a_rate_is_that_of_the_phase_and_of_the_last_seconds():
    pace = PhasePace()
    assert (pace.rate, pace.left_s(0.0)) == (0.0, None)
    pace.add(counting(50), 0.0)  # resumed: these took no time
    assert pace.rate == 0
    pace.add(counting(60), 5.0)
    assert (pace.rate, pace.left_s(5.0), pace.left_s(15.0), pace.left_s(99.0)) == (2.0, 20.0, 10.0, 0.0)
    for second in range(6, 40):
        pace.add(counting(60), float(second))
    assert pace.rate == 0  # stalled
    pace.add(counting(70, None), 40.0)
    assert pace.rate == pytest.approx(1.0, rel=0.1)
    assert pace.left_s(40.0) is None
    pace.add(Progress(phase="writing", done=0, total=5, unit="rows"), 41.0)
    assert pace.rate == 0


def test_durations():
    assert [format_duration(each) for each in (None, 42.4, 3723, 90_000)] == ["-", "0:42", "1:02:03", "1d 1h"]
