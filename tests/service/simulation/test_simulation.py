"""Trainers get the plan's batches in every simulated run, a seed decides all of it, and faults of the code are found.

See `simulation.py`; a failing seed is replayed by `simulate.py --seed N -v`.
"""

from __future__ import annotations

import pytest
from mutations import MUTATIONS, SEEDS, first_seed
from simulation import Case, run_seed
from virtual_time import World

from feedline.native import rows as native

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not native.COMPILED, reason="slots are written by the compiled kernels, which are missing"),
]

NIGHT, CHUNK = 10_000, 500


def test_trainers_get_their_batches_whatever_happens() -> None:
    for seed in range(SEEDS):
        run_seed(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(SEEDS, NIGHT, CHUNK))
def test_they_do_for_a_night(first: int) -> None:
    for seed in range(first, min(NIGHT, first + CHUNK)):
        run_seed(seed)


def test_a_seed_replays() -> None:
    for seed in range(3):
        first, again = run_seed(seed), run_seed(seed)
        assert first.log == again.log
        assert first.digest != run_seed(seed + 3).digest


def test_seeds_draw_every_kind_of_run() -> None:
    cases = [Case.draw(World(seed, limit_s=1.0)) for seed in range(SEEDS)]
    drawn = {(case.backend, case.on_host, case.faults > 0) for case in cases}
    assert drawn >= {(kind, shared, True) for kind in ("threads", "pool", "workers") for shared in (True, False)}


@pytest.mark.nightly
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_fault_of_the_code_is_found(name: str) -> None:
    assert first_seed(MUTATIONS[name]) is not None, f"{SEEDS} seeds do not find that {name}"
