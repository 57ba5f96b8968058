"""The programs of an example as modules, which import others from beside them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch


@contextmanager
def example_programs(example: Path, *, threads: int | None = None) -> Iterator[dict[str, ModuleType]]:
    """All programs of the folder by name. They are forgotten at the end, and while they are known, modules of other
    examples that have the same names are not; torch has as many threads as before. threads: of torch meanwhile."""
    before = torch.get_num_threads()
    names = [file.stem for file in sorted(example.glob("*.py"))]
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    torch.set_num_threads(threads or before)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(example))
        try:
            yield {name: importlib.import_module(name) for name in names}
        finally:
            for name in names:
                sys.modules.pop(name, None)
            sys.modules.update(others)
    torch.set_num_threads(before)
