"""The programs of an example as modules, which import others from beside them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch


@contextmanager
def example_programs(example: Path) -> Iterator[dict[str, ModuleType]]:
    """`generate` and `train`; model.py is forgotten at the end, and torch has as many threads as before."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(example))
        yield {name: _load(example, name) for name in ("generate", "train")}
        sys.modules.pop("model")
    torch.set_num_threads(threads)


def _load(example: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{example.name}_{name}", example / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
