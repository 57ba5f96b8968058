"""Which version of Feedline is this?"""

from __future__ import annotations

from importlib.metadata import version

VERSION = version("feedline")
