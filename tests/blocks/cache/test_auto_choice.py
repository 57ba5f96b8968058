"""Does a cache that decides for itself keep what costs more to compute than to read, and say why?"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from feedline.blocks.cache import auto_choice
from feedline.blocks.cache.auto_choice import SEGMENTS, AutoChoice
from feedline.blocks.cache.cache_costs import CacheRates
from feedline.blocks.request import ReadEpochs
from feedline.warehouse.cache.cache_folder import CacheFolder, CacheRef

ROWS = 100_000


@pytest.fixture
def folder(tmp_path: Path) -> CacheFolder:
    return CacheFolder(CacheRef(str(tmp_path / "cache"), size=10**12, free=1, shared=False))


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 100 MB/s, and nothing in memory."""
    slow = CacheRates(read_bytes_per_s=1e8, write_bytes_per_s=1e8, memory_bytes_per_s=5e9)
    monkeypatch.setattr(auto_choice, "cache_rates", lambda folder: slow)


def choose(folder: CacheFolder, *, ns_per_row: float, epochs: int = 4) -> AutoChoice:
    choice = AutoChoice(ReadEpochs(epochs=epochs, rows=50 * ROWS, row_groups=50), folder)
    for _ in range(SEGMENTS):
        assert choice.keeps
        assert not choice.reason
        choice.measured(rows=ROWS, nbytes=1_000 * ROWS, seconds=ns_per_row * ROWS / 1e9)
    return choice


@pytest.mark.usefixtures("rates")
def test_features_that_are_slow_to_compute_are_kept(folder: CacheFolder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "feedline.cache"):
        choice = choose(folder, ns_per_row=100_000)
    assert choice.keeps
    assert choice.reason.startswith("features: ")
    assert f"cache {folder.ref.folder}: {choice.reason}" in caplog.messages


@pytest.mark.usefixtures("rates")
def test_features_that_are_faster_to_compute_than_to_read_are_not_kept(folder: CacheFolder) -> None:
    choice = choose(folder, ns_per_row=1_000)
    assert not choice.keeps
    assert choice.reason.startswith("off: ")


@pytest.mark.usefixtures("rates")
def test_writing_pays_only_if_epochs_are_left(folder: CacheFolder) -> None:
    """Reading a row takes 10 us, writing it as long."""
    assert not choose(folder, ns_per_row=25_000, epochs=2).keeps
    assert choose(folder, ns_per_row=25_000, epochs=50).keeps


def test_a_folder_that_cannot_be_written_keeps_nothing(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_choice, "cache_rates", lambda folder: None)
    assert choose(folder, ns_per_row=100_000).reason == "off: nothing can be written there"
