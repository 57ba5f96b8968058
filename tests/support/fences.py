"""Blocks of code in a page of the documentation."""

from __future__ import annotations

import re

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
