"""One thread at a time, for stretches of many short calls.

Runs in: every process that computes blocks. Such calls release the interpreter's lock for microseconds each. With a
second thread in the same stretch, each of them waits to get it back: two threads took 1.4 times the CPU time of one,
and together were no faster. Long calls, and whatever reads files, run outside of it.
"""

from __future__ import annotations

import threading

TURN = threading.RLock()
