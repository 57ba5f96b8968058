"""The tables of `mixed_tables`, for all tests of this folder; read them only."""

from __future__ import annotations

from pathlib import Path

import pytest
from mixed_tables import write_tables


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("mixed"))
