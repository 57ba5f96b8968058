"""A trainer for a short run whose steps are a user's: `feedline explain --train module:function`.

Runs in: the process of `feedline explain`; `step` in the thread that drains the ring. Imports torch. The function gets
each batch and trains on it; its device is the module's `DEVICE`, if it has one.
"""

from __future__ import annotations

import importlib
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import torch

from feedline.errors import FeedlineError, SpecError
from feedline.loader.batch import Batch
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.encoding.sparse_features import SparseFeatures
from feedline.loader.limits.trainer_verdict import Headspace
from feedline.loader.ring.client import Slot
from feedline.loader.wire.facts import PlanFacts

_LOOK_S = 0.05
_REPEATS = 20  # steps with a batch that is there, for the trainer's own pace
_REPEATS_S = 5.0  # and the seconds after which no other begins


class UserTrainer:
    """Calls a function with each batch, on a device; waits until the device has done the step. name: for errors."""

    def __init__(self, function: Callable[[Batch], Any], name: str, device: torch.device) -> None:
        self._function, self._name, self._device = function, name, device
        self._facts: PlanFacts | None = None
        self._layout: SlotLayout | None = None
        self._asked, self._repeated = threading.Event(), threading.Event()
        self._pace: float | None = None
        self.steps = 0

    @classmethod
    def of(cls, name: str) -> Self:
        """The trainer whose function is `module:function`, of this folder or installed. Raises SpecError if there is
        none, and FeedlineError with what the import raised."""
        module_name, colon, function_name = name.partition(":")
        if not (module_name and colon and function_name):
            raise SpecError(f"--train is no function: got {name!r}, expected module:function, such as train:train_step")
        module = _import(module_name)
        function = getattr(module, function_name, None)
        if not callable(function):
            what = "nothing of that name" if function is None else f"a value of type {type(function).__name__}"
            raise SpecError(
                f"--train needs a function that takes a batch: got {what} as {function_name} in {module.__file__}, "
                f"expected a function. Define {function_name}(batch), which trains one step"
            )
        cuda = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(function, name, torch.device(getattr(module, "DEVICE", cuda)))

    def step(self, facts: PlanFacts, slot: Slot, ended: threading.Event) -> None:
        """Train on a batch. Raises FeedlineError with what the function raised."""
        if self._layout is None or self._facts is not facts:
            self._facts, self._layout = facts, SlotLayout(facts.schema, SparseFeatures(), facts.bounds(1))
        epoch, step, rows, nbytes, lease = slot
        batch = Batch(self._layout, epoch, step, rows, nbytes, lease, lease)
        if self._device.type != "cpu":
            batch = batch.to(self._device)
        self._train(batch)
        self.steps += 1
        if self._asked.is_set() and not self._repeated.is_set():
            self._repeat(batch, ended)

    def pace(self, _rows_per_step: float, ended: Callable[[], bool]) -> float | None:
        """Rows per second of steps that repeat a batch; None if the run ends before. Waits for the thread of `step`."""
        self._asked.set()
        while not (self._repeated.wait(_LOOK_S) or ended()):
            pass
        return self._pace

    def _repeat(self, batch: Batch, ended: threading.Event) -> None:
        probe = Headspace(batch, batch.rows, steps=_REPEATS, rows_per_s=1.0)
        for each in probe:
            if ended.is_set() or probe.seconds > _REPEATS_S:
                break
            self._train(each)
        self._pace = probe.rows_per_s or None
        self._repeated.set()

    def _train(self, batch: Batch) -> None:
        try:
            self._function(batch)
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
        except BaseException as error:
            raise FeedlineError(f"{self._name} failed at step {self.steps}:\n{_own_traceback(error)}") from None


def _import(name: str) -> ModuleType:
    """A module of the current folder, or an installed one."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            raise SpecError(
                f"--train names a module that is missing: got {name}, expected {name}.py in {folder}, or an installed "
                "one. Start in the folder of the module"
            ) from None
        raise FeedlineError(f"--train: the import of {name} failed:\n{_own_traceback(error)}") from None


def _own_traceback(error: BaseException) -> str:
    """The traceback without the calls of this package and of the import machinery."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    return "".join([*traceback.format_list(own), *traceback.format_exception_only(error)]).rstrip()
