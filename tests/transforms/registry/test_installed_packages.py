"""Files belong to the distribution whose record lists them, and are named by its version."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydantic
import pytest

from feedline.transforms.registry import installed_packages
from feedline.transforms.registry.installed_packages import distribution_of, package_version, required_versions


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path with the package `tool` of the distribution My.Tools, which requires numpy."""
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__init__.py").write_text("")
    facts = tmp_path / "my_tools-1.2.dist-info"
    facts.mkdir()
    facts.joinpath("RECORD").write_text("my_tools-1.2.dist-info/METADATA,,\ntool/__init__.py,sha256=x,0\n")
    lines = ["Name: My.Tools", "Version: 1.2", "Requires-Dist: numpy>=1", "Requires-Dist: absent"]
    facts.joinpath("METADATA").write_text("\n".join([*lines, "Requires-Dist: pydantic; extra == 'x'"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for function in ("_owner", "_metadata_folders", "_origin", "_facts", "_named"):
        getattr(installed_packages, function).cache_clear()


def test_files_belong_to_the_distribution_that_lists_them(site: Path) -> None:
    assert distribution_of(str(site / "tool" / "__init__.py")) == str(site / "my_tools-1.2.dist-info")
    assert distribution_of(str(site / "tool" / "added.py")) is None
    assert distribution_of(str(site / "other.py")) is None
    assert distribution_of(__file__) is None
    for module in (np, pydantic):
        found = distribution_of(str(module.__file__))
        assert found is not None
        assert package_version(found) == (module.__name__, importlib.metadata.version(module.__name__))


@pytest.mark.parametrize(
    ("origin", "is_named"),
    [
        ({"url": "file:///here", "dir_info": {}}, False),
        ({"url": "file:///here", "dir_info": {"editable": True}}, False),
        ({"url": "file:///a.whl", "archive_info": {}}, False),
        ({"url": "file:///a.whl", "archive_info": {"hashes": {"sha256": "00"}}}, True),
        ({"url": "https://host/x", "vcs_info": {"vcs": "git", "commit_id": "00ff"}}, True),
    ],
)
def test_a_version_names_no_files_of_local_sources(site: Path, origin: dict[str, object], is_named: bool) -> None:
    facts = site / "my_tools-1.2.dist-info"
    facts.joinpath("direct_url.json").write_text(json.dumps(origin))
    assert (distribution_of(str(site / "tool" / "__init__.py")) is not None) == is_named
    if is_named:
        version = package_version(str(facts))[1]
        assert version.startswith("1.2 ")
        assert "00" in version


def test_what_a_distribution_requires_is_named_with_it(site: Path) -> None:
    found = required_versions([str(site / "my_tools-1.2.dist-info")])
    assert found["my-tools"] == "1.2"
    assert found["numpy"] == np.__version__
    assert found["pydantic"] == pydantic.VERSION
    assert "typing-extensions" in found  # of pydantic
    assert "absent" not in found


def test_an_unreadable_path_has_no_distributions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), *sys.path])
    assert distribution_of(str(tmp_path / "none" / "x.py")) is None
