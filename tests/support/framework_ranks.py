"""The ranks of a test of `examples/frameworks`: run its programs, stopped, and record the rows that they train on.

    framework_ranks.py FOLDER RANKS PORTS STOPS PROGRAM...

FOLDER holds the example; checkpoints are written to the current folder. Each program is run once per stop, and then to
its end. A stop is the number of steps after which the model raises, on all ranks at the same step. A run has a port of
PORTS (joined by commas, as STOPS) for its process group. Writes PROGRAM.RANK.json to the current folder: per run
[epoch, step, row ids] of each step.

The ranks are forked from a process that has imported the frameworks, which takes longer than the runs, and no more.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class StoppedError(Exception):
    """Raised in the model's forward, as a crash between two checkpoints."""


class Recorder:
    """Records what the model is given, and stops it after so many steps."""

    def __init__(self, model: type) -> None:
        self.steps: list[tuple[int, int, list[int]]] = []
        self.stop: int | None = None
        forward = model.forward

        def recorded(module: Any, batch: Any) -> Any:
            if len(self.steps) == self.stop:
                raise StoppedError
            self.steps.append((batch.epoch, batch.step, batch["request_id"].tolist()))
            return forward(module, batch)

        model.forward = recorded

    def run(self, program: Any, stop: int | None) -> list[tuple[int, int, list[int]]]:
        """Run a program to its end, or to the stop; return its steps."""
        self.steps, self.stop = [], stop
        try:
            program.main()
        except StoppedError:
            assert stop is not None
        else:
            assert stop is None, f"{program.__name__} ended after {len(self.steps)} steps, before {stop}"
        return self.steps


def leave_group() -> None:
    """As a process that ends: no process group, and none that Accelerate remembers."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)


def set_environment(rank: int, ranks: int, ports: Iterator[str]) -> None:
    """As torchrun, on one host; nothing for a single process."""
    if ranks > 1:
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ.update({name: str(number) for name, number in numbers.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=next(ports))


def train(rank: int, ranks: int, ports: Iterator[str], stops: Sequence[int | None], programs: Sequence[Any]) -> None:
    """Run all programs as one rank."""
    recorder = Recorder(importlib.import_module("clicks").Clicks)
    for program in programs:
        runs = []
        for stop in stops:
            set_environment(rank, ranks, ports)
            runs.append(recorder.run(program, stop))
            leave_group()
        Path(f"{program.__name__}.{rank}.json").write_text(json.dumps(runs))


def main(folder: str, ranks: str, ports: str, stops: str, *names: str) -> None:
    sys.path.insert(0, folder)
    programs = [importlib.import_module(name) for name in names]
    importlib.import_module("torch._dynamo")  # which an optimizer's first step loads
    work = int(ranks), iter(ports.split(",")), (*map(int, stops.split(",")), None), programs
    if int(ranks) == 1:
        train(0, *work)
        return
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=train, args=(rank, *work)) for rank in range(int(ranks))]
    for process in processes:
        process.start()
    ended = [process.join() or process.exitcode for process in processes]
    sys.exit(any(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
