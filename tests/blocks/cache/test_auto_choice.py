"""Does a cache that decides for itself keep the features that cost more to compute than to read, and say why?"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from cache_entries import files_of, filled, ref_of

from feedline.blocks.cache import auto_choice
from feedline.blocks.cache.auto_choice import BUDGET, AutoChoice
from feedline.blocks.cache.cache_costs import CacheRates, FeatureCost
from feedline.blocks.cache.feature_costs import FeatureMeasurements, MeasuredFeatures
from feedline.blocks.request import ReadEpochs
from feedline.warehouse.cache.cache_folder import CacheFolder
from feedline.warehouse.cache.eviction import touched_ns

ROWS, GROUPS = 100_000, 50
MICRO = 1e-6


class Injected(FeatureMeasurements):
    """Measurements that were made: of features by name, microseconds of computing a row and bytes."""

    def __init__(self, features: dict[str, tuple[float, float]], wait_us: float = 0.0) -> None:
        super().__init__([])
        self._features, self._wait_s = features, wait_us * MICRO

    def costs(self, store_bytes: float = 0.0) -> MeasuredFeatures:
        waits = {"store_bytes": store_bytes / len(self._features)} if store_bytes else {}
        features = tuple(
            FeatureCost(name=name, cpu_s=us * MICRO, bytes=size, hit_cpu_s=size * 1e-10, **waits)
            for name, (us, size) in self._features.items()
        )
        return MeasuredFeatures(
            features=features,
            shared=FeatureCost(name=""),
            write_bytes_per_s=1e9,
            found_s={each.name: each.hit_cpu_s for each in features},
            wait_s=self._wait_s,
        )


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(ref_of(tmp_path / "cache", 10**12))


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 100 MB/s, nothing in memory, one thread: 1,000 bytes of a row take 10 us to read, and to write."""
    slow = CacheRates(read_bytes_per_s=1e8, write_bytes_per_s=1e8, memory_bytes_per_s=1e10)
    monkeypatch.setattr(auto_choice, "cache_rates", lambda folder: slow)
    monkeypatch.setattr(auto_choice, "available_cores", lambda: 1)


def choose(
    folder: CacheFolder, features: dict[str, tuple[float, float]], *, epochs: int = 4, wait_us: float = 0.0
) -> AutoChoice:
    store_bytes = 100 * GROUPS * ROWS if wait_us else 0
    job = ReadEpochs(epochs=epochs, rows=GROUPS * ROWS, row_groups=GROUPS, store_bytes=store_bytes)
    choice = AutoChoice(job, folder, [])
    choice.measurements = Injected(features, wait_us)
    assert choice.filling.names is None
    choice.measured()
    return choice


def test_features_are_kept_that_are_slower_to_compute_than_to_read(
    folder: CacheFolder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "feedline.cache"):
        choice = choose(folder, {"costly": (100, 10), "bulky": (1, 990)})
    filling = choice.filling
    assert (filling.names, filling.reads, filling.source) == ({"costly"}, True, False)
    assert filling.budget.share is None
    assert filling.reason.startswith("features (1 of 2): ")
    assert f"cache {folder.ref.folder}: epoch 0: {filling.reason}" in caplog.messages


def test_features_that_are_faster_to_compute_than_to_read_are_not_kept(folder: CacheFolder) -> None:
    filling = choose(folder, {"bulky": (1, 990)}).filling
    assert (filling.names, filling.reads) == (frozenset(), True)  # what others have put there is read
    assert filling.reason.startswith("off: ")


@pytest.mark.parametrize(("us", "share"), [(25, None), (15, BUDGET), (11, 0)])
def test_what_pays_only_with_many_readings_is_written_within_a_budget(
    folder: CacheFolder, us: float, share: float | None
) -> None:
    """With one reading more, computing takes 2 * us, keeping us + 10 + 10; with five more 6 * us, us + 10 + 50."""
    filling = choose(folder, {"feature": (us, 1_000)}, epochs=1).filling
    assert filling.names == ({"feature"} if share != 0 else frozenset())
    assert filling.budget.share == (share or None)
    assert ("written in 6% of the time, for later readings" in filling.reason) is (share == BUDGET)


def test_a_smaller_budget_of_the_pipeline_holds(tmp_path: Path) -> None:
    folder = CacheFolder(ref_of(tmp_path / "cache", 10**12, write_budget=0.01))
    for us in (15, 25):
        assert choose(folder, {"feature": (us, 1_000)}, epochs=1).filling.budget is folder.budget
    assert folder.budget.share == 0.01


@pytest.mark.parametrize(("epochs", "share"), [(1, BUDGET), (2, None)])
def test_before_the_decision_a_single_epoch_is_not_slowed_by_writing(
    folder: CacheFolder, epochs: int, share: float | None
) -> None:
    choice = AutoChoice(ReadEpochs(epochs=epochs, rows=ROWS, row_groups=1), folder, [frozenset({"feature"})])
    assert choice.is_undecided
    assert choice.filling.budget.share == share
    assert not choose(folder, {"feature": (25, 1_000)}, epochs=epochs).is_undecided


def test_uses_that_the_folder_has_seen_are_expected_again(tmp_path: Path) -> None:
    folder = filled(tmp_path / "cache", size=10**12)
    for path in files_of(tmp_path / "cache"):
        os.utime(path, ns=(0, touched_ns(1.7e9, 5)))
    folder.space.rescan()
    assert choose(folder, {"feature": (15, 1_000)}, epochs=1).filling.budget.share is None


def test_what_was_written_in_an_epoch_is_read_in_the_next_ones(folder: CacheFolder) -> None:
    choice = choose(folder, {"feature": (100, 1_000)})
    first = choice.filling
    choice.count([], ["feature"], rows=ROWS, seconds=0.0)
    choice.begin(0)
    assert choice.filling is first
    choice.begin(1)
    assert (choice.filling.names, choice.filling.reads) == (frozenset(), True)
    assert "from what is there; 3 epochs are left" in choice.filling.reason
    second = choice.filling
    choice.begin(0)  # of blocks that are late
    assert choice.filling is second


def test_reading_that_is_slower_than_computing_ends_with_the_epoch(folder: CacheFolder) -> None:
    choice = choose(folder, {"feature": (100, 1_000)}, epochs=9)
    choice.count([], ["feature"], rows=ROWS, seconds=0.0)
    choice.begin(1)
    choice.count(["feature"], [], rows=ROWS, seconds=200 * MICRO * ROWS)
    choice.begin(2)
    assert (choice.filling.names, choice.filling.reads) == (frozenset(), False)
    choice.begin(3)
    assert not choice.filling.reads


def test_a_trainer_that_goes_on_is_expected_to_do_so(folder: CacheFolder) -> None:
    choice = choose(folder, {"feature": (15, 1_000)}, epochs=1)
    assert choice.filling.budget.share == BUDGET
    choice.begin(5)
    assert choice.filling.budget.share is None
    assert choice.filling.reason.endswith("6 epochs are left")


def test_chunks_of_a_remote_table_are_kept_where_features_do_not_pay(folder: CacheFolder) -> None:
    filling = choose(folder, {"bulky": (1, 10_000)}, wait_us=50).filling
    assert (filling.names, filling.source) == (frozenset(), True)
    assert filling.reason.startswith("source: ")
    filling = choose(folder, {"costly": (100, 10)}, wait_us=50).filling
    assert (filling.names, filling.source) == ({"costly"}, False)


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_choice, "cache_rates", lambda folder: None)
    filling = choose(folder, {"feature": (100, 10)}).filling
    assert (filling.names, filling.reason) == (frozenset(), "off: nothing can be written there")


def test_a_folder_that_takes_nothing_is_asked_again_in_the_next_epoch(folder: CacheFolder) -> None:
    job = ReadEpochs(epochs=3, rows=ROWS, row_groups=1)
    choice = AutoChoice(job, folder, [frozenset({"feature"})])
    choice.refuse()
    assert choice.filling.names == frozenset()
    choice.begin(1)
    assert choice.filling.names is None


def test_a_job_that_does_not_choose_keeps_all(folder: CacheFolder) -> None:
    choice = AutoChoice(None, folder, [frozenset({"feature"})])
    first = choice.filling
    assert (first.names, first.budget) == (None, folder.budget)
    choice.refuse()
    choice.begin(3)
    choice.measured()
    assert choice.filling is first
    assert not choice.measurements.needs_hits({"feature"})
