"""The version is that of the installed package."""

from __future__ import annotations

import importlib.metadata
import re

from feedline.version import VERSION


def test_the_version_is_that_of_the_installation():
    assert importlib.metadata.version("feedline") == VERSION
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", VERSION)
