"""Have a second writer come while a first one writes: what both change of one file must not be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

_HELD_BACK_S = 0.1  # a writer without a lock needs a few milliseconds


def write_meanwhile(
    patch: pytest.MonkeyPatch, module: ModuleType, name: str, second: Callable[[], object]
) -> threading.Thread:
    """Run `second` in a thread when a function of a module is called for the first time, before that goes on."""
    write, thread = getattr(module, name), threading.Thread(target=second)

    def first(*arguments: Any, **options: Any) -> Any:
        patch.setattr(module, name, write)
        thread.start()
        thread.join(_HELD_BACK_S)
        return write(*arguments, **options)

    patch.setattr(module, name, first)
    return thread
