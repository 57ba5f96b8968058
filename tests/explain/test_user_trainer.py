"""A user's training step is called with batches on its device; what it raises is shown with its traceback."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from begun_plans import planned
from pipelines import Place, furnished
from profiles import binary, column, table

from feedline.commands.begin.train_script import train_script
from feedline.commands.run import RunRequest, feeder_accesses
from feedline.errors import FeedlineError, SpecError
from feedline.explain.explanation import Explanation
from feedline.explain.short_run import run_shortly
from feedline.explain.user_trainer import UserTrainer
from feedline.spec import load_spec

MODULE = """
import time
DEVICE = "cpu"
seen = []

def train_step(batch):
    seen.append(float(batch.dense.sum()))
    time.sleep(0.02)

def broken(batch):
    if len(seen) == 2:
        raise ZeroDivisionError("no rows are left")
    seen.append(batch.rows)

limit = 3
"""


@pytest.fixture
def place(tmp_path: Path, clicks: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with furnished(tmp_path, clicks) as place:
        monkeypatch.chdir(place.folder)
        monkeypatch.syspath_prepend(str(place.folder))
        yield place


def explained(place: Place, trainer: UserTrainer, **keys: Any) -> Explanation:
    path = place.write(**keys)
    spec = load_spec(path)
    request = RunRequest(spec=spec, ranks=[0], world_size=1)
    access = feeder_accesses(request)[0]
    return run_shortly(
        access, spec, seconds=0.6, trainer=trainer, cores=2.0, stop=lambda: False, sample_s=0.1, headspace=True
    )


def test_steps_of_a_function_set_the_pace_and_repeat_a_batch(place: Place):
    (place.folder / "own_trainer.py").write_text(MODULE)
    trainer = UserTrainer.of("own_trainer:train_step")
    found = explained(place, trainer)
    own = found.slowest.verdict().limits.get("trainer")
    assert own is not None
    assert own.rows_per_s <= 256 / 0.02 * 1.3, "samples may cut a step"
    assert found.headspace is not None
    assert found.headspace.rows_per_s <= 256 / 0.02, "256 rows take 20 ms at least"
    seen = sys.modules["own_trainer"].seen
    assert len(seen) > trainer.steps, "a batch was repeated"
    assert max(Counter(seen).values()) >= 20


def test_what_a_step_raises_ends_the_run_with_its_traceback(place: Place):
    (place.folder / "own_broken.py").write_text(MODULE)
    with pytest.raises(FeedlineError, match=r"own_broken:broken failed at step 2:\n") as caught:
        explained(place, UserTrainer.of("own_broken:broken"))
    lines = str(caught.value).splitlines()
    assert "own_broken.py" in lines[1]
    assert lines[2].strip() == 'raise ZeroDivisionError("no rows are left")'
    assert lines[-1] == "ZeroDivisionError: no rows are left"
    assert "user_trainer" not in str(caught.value)


def test_modules_that_do_not_have_a_step_are_refused(place: Place):
    (place.folder / "own_names.py").write_text(MODULE)
    (place.folder / "own_error.py").write_text("import no_such_library\n")
    with pytest.raises(SpecError, match=r"got a value of type int as limit in .*own_names.py, expected a function"):
        UserTrainer.of("own_names:limit")
    with pytest.raises(FeedlineError, match=r"import of own_error failed:\n.*own_error.py(.|\n)*no_such_library"):
        UserTrainer.of("own_error:step")


@pytest.mark.nightly  # torch compiles nothing, but imports for seconds what could
def test_the_program_that_init_writes_has_a_step(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(place.folder / "inductor"))
    plan = planned(table(binary("clicked"), column("dense_0")), label="clicked")
    (place.folder / "own_program.py").write_text(train_script(plan))
    features = {"dense": {"dense_0": [{"fill_null": 0}]}, "label": {"clicked": []}}
    trainer = UserTrainer.of("own_program:train_step")
    assert explained(place, trainer, features=features).headspace is not None
    assert trainer.steps > 0
