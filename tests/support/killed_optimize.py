"""A run of `optimize` in a child process that kills itself just before the n-th call of a method."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optimized import rewrite

from feedline.warehouse.optimize import landing
from feedline.warehouse.parquet import writer
from feedline.warehouse.storage.claim import Claim


class Moves:
    """A local filesystem that counts its moves, and those of its run's claim."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def move(self, *args: Any) -> None:
        Moves.count()
        self.inner.move(*args)

    @staticmethod
    def count() -> None:
        """A file is about to be moved."""


def killed_rewrite(source: str, target: str, where: str, turn: int, settings: dict[str, Any]) -> None:
    """Rewrite a table, and die at this event: "group", "file", "land", "move", "rename", "exchange" or "removal"."""
    if where == "rename":
        where, landing.exchange = "move", lambda one, other: False
    if where == "move":
        begin = landing.Target.land

        def land(self: Any, *args: Any, **kwargs: Any) -> Any:
            self.filesystem = Moves(self.filesystem)
            return begin(self, *args, **kwargs)

        landing.Target.land = land
        moved = Claim.move

        def move(self: Claim, files: Iterable[tuple[str, str]]) -> None:
            for file in files:
                Moves.count()
                moved(self, [file])

        Claim.move = move
        _deadly(Moves, "count", turn)
    elif where == "exchange":
        _deadly(landing, "exchange", turn)
    elif where == "removal":
        exchange = landing.exchange

        def last(*args: Any) -> None:
            exchange(*args)
            os.kill(os.getpid(), signal.SIGKILL)

        landing.exchange = last
    else:
        owner = landing.Target if where == "land" else writer.TableWriter
        _deadly(owner, {"group": "_write_group", "file": "_end_file", "land": "land"}[where], turn)
    rewrite(Path(source), Path(target), **settings)


def _deadly(owner: Any, name: str, turn: int) -> None:
    """Make the n-th call of a method kill the process."""
    calls, method = [], getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == turn:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)

    setattr(owner, name, call)
