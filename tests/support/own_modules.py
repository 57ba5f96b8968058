"""Modules that a test writes and a pipeline imports, removed afterwards so that the next test can have its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feedline.transforms.registry import function_code, user_functions


@contextmanager
def own_modules(folder: Path) -> Iterator[None]:
    """Remove the folder's modules from those imported, before and after the block."""
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(str(folder)):
                del sys.modules[name]
        function_code.forget_code()
        user_functions._homes.clear()
