"""One thread has the turn, as often as it takes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from feedline.native.turns import TURN


def test_one_thread_at_a_time_has_the_turn():
    with ThreadPoolExecutor(1) as other:

        def free() -> bool:
            taken = TURN.acquire(blocking=False)
            if taken:
                TURN.release()
            return taken

        with TURN, TURN:
            assert not other.submit(free).result(60)
        assert other.submit(free).result(60)
