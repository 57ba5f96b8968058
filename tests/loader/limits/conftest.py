"""Facts of staged runs, as numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.run_facts import RunFacts


@pytest.fixture
def staged() -> Callable[..., RunFacts]:
    """A second of a run of a million rows: a trainer's wait, seconds of the block stages, all of them of CPUs but
    `fetch_s` and `slept_s`, which ops wait."""

    def facts(
        *,
        wait_s: float | None = 0.0,
        decode_s: float = 0.0,
        ops_s: float = 0.0,
        encode_s: float = 0.0,
        fetch_s: float = 0.0,
        slept_s: float = 0.0,
        queued_s: float = 0.0,
        **more: float,
    ) -> RunFacts:
        return RunFacts(
            wall_s=1.0,
            rows=1_000_000,
            batches=1000,
            trainer_wait_s=wait_s,
            blocks=10,
            block_rows=1_000_000,
            nbytes_read=50_000_000,
            nbytes_encoded=100_000_000,
            times=BlockTimes(
                read_s=decode_s + fetch_s,
                read_cpu_s=decode_s,
                fetch_s=fetch_s,
                transform_s=ops_s + slept_s,
                transform_cpu_s=ops_s,
                encode_s=encode_s,
                encode_cpu_s=encode_s,
                queued_s=queued_s,
            ),
            **more,  # type: ignore[arg-type]
        )

    return facts
