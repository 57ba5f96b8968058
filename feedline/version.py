"""The version of this installation of Feedline."""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("feedline")
