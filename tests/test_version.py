"""The version stands in pyproject.toml; what must repeat it agrees."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

from feedline.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_is_that_of_the_installation():
    assert importlib.metadata.version("feedline") == VERSION == PROJECT["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", VERSION)


def test_images_have_the_version_of_the_package():
    tags = re.findall(r'newTag: "(.*)"', (ROOT / "deploy/kubernetes/kustomization.yaml").read_text(encoding="utf-8"))
    assert tags == [VERSION, VERSION]


def test_the_lowest_versions_are_those_that_the_package_allows():
    """Of what Feedline needs, and of the extras of its own parts, but Dask's for clusters elsewhere."""
    extras = PROJECT["optional-dependencies"]
    parts = ("dashboard", "dataframe", "zarr", "delta", "iceberg", "tls", "otel")
    required = [*PROJECT["dependencies"], *(each for part in parts for each in extras[part])]
    allowed = dict(re.match(r"([\w.-]+)>=([\d.]+)", each).groups() for each in required)
    lines = (ROOT / "constraints-min.txt").read_text(encoding="utf-8").splitlines()
    lowest = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {name: re.sub(r"(\.0)+$", "", version) for name, version in lowest.items()} == {
        name: re.sub(r"(\.0)+$", "", version) for name, version in allowed.items()
    }
