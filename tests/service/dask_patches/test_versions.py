"""Patches of Dask are refused, or left out with one warning, for versions of distributed that are not supported."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from feedline.errors import ClusterError
from feedline.service.dask_patches import versions

ROOT = Path(__file__).resolve().parents[3]


def test_supported_versions_are_those_that_are_installed_with_feedline():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"distributed{versions.SUPPORTED}" in project["dependencies"]
    assert f"distributed{versions.SUPPORTED}" in (ROOT / "docker/requirements-worker.txt").read_text().splitlines()
    versions.require("tests pass")


@pytest.mark.parametrize("version", ["2026.8.0", "2026.8.1+3.g0123abc", "2026.12.0"])
def test_supported_versions_are_patched(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(versions, "INSTALLED", version)
    versions.require("clocks go on")
    assert versions.allow("speed")
    assert not caplog.records


@pytest.mark.parametrize("version", ["2026.7.1", "2025.12.0", "2027.1.0", "2030.1.0.dev1"])
def test_other_versions_are_refused_or_warned_of_once(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(versions, "INSTALLED", version)
    with pytest.raises(ClusterError, match=rf"distributed {version} is not supported: expected >=2026.8,<2027, .*"):
        versions.require("clocks go on")
    assert not versions.allow(f"speed of {version}")
    assert not versions.allow(f"speed of {version}")
    [warning] = caplog.messages
    assert warning == (
        f"distributed {version} is not supported, expected >=2026.8,<2027: Feedline works without speed of {version}. "
        "Install one of them (pip install 'distributed>=2026.8,<2027')"
    )
