"""The feeder keeps nothing of epochs that are over: objects and bytes, counted in this process."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from pathlib import Path

from pipelines import eventually
from ringless_trainers import trainers_of, write_pipeline

STEPS = 3
WARM, MEASURED = 120, 60  # epochs; Dask's logs of its last 100 messages fill up meanwhile
# In all of them. A group of tasks that is kept, with all that it refers to, is 10 objects and 14 KB.
OBJECTS = 4 * MEASURED  # the logged messages hold more or fewer tasks
BYTES = 3000 * MEASURED  # 400 of them in Dask's cache of parsed keys, which is cleared every 1,000 tasks


def objects() -> Counter[str]:
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())


def test_epochs_leave_no_objects_behind(tmp_path: Path):
    with trainers_of(write_pipeline(tmp_path, steps=STEPS)) as (trainer,):

        def run(epochs: int) -> None:
            """Read epochs, after the last of which the feeder has nothing to do."""
            for number in range(epochs):
                trainer.begin(last=number == epochs - 1)
                assert len(trainer.read()) == STEPS

        gc.freeze()  # what is there already is not counted; it stays frozen, as conftest.py has frozen most of it
        tracemalloc.start()
        try:
            objects()  # whose own first call leaves some
            run(WARM)
            before, bytes_before = objects(), tracemalloc.get_traced_memory()[0]
            run(MEASURED)
            # what the last epoch's tasks leave is released soon
            assert eventually(lambda: (objects() - before).total() < OBJECTS, within_s=120), (
                objects() - before
            ).most_common(10)
            assert tracemalloc.get_traced_memory()[0] - bytes_before < BYTES
        finally:
            tracemalloc.stop()
