"""Kill feeders, workers and trainers of a run of two ranks at random, and audit what the trainers received.

    python chaos.py FOLDER [--kills 200] [--seed 0]

A trainer that died starts again from its state, as a launcher would start it. In the end both trainers finish an epoch,
and `feedline verify` compares the receipts of all starts with the plan. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pipelines import Place, eventually, furnished
from processes import SUPPORT, Program, ended_here, free_port

RANKS = 2
ZOMBIE = psutil.STATUS_ZOMBIE
PATIENCE_S = 120.0  # for a batch, while everything starts anew


class Run:
    """The trainers of a run, and what it consists of."""

    def __init__(self, place: Place, path: Path, seed: int) -> None:
        self.place, self.path, self.random = place, path, random.Random(seed)
        self.folder = place.folder / "receipts"
        self.folder.mkdir()
        port = str(free_port())
        common = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1"}
        self._environments = [
            {**os.environ, **common, "MASTER_PORT": port, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            for rank in range(RANKS)
        ]
        self.kills: Counter[str] = Counter()
        self.starts = 0
        self.trainers = [self._start(rank) for rank in range(RANKS)]

    def _start(self, rank: int) -> Program:
        self.starts += 1
        words = [sys.executable, str(SUPPORT / "receipt_trainer.py"), str(self.path), str(self.folder)]
        return Program(words, env=self._environments[rank])

    def revive(self) -> None:
        """Start the trainers that have died."""
        for rank, trainer in enumerate(self.trainers):
            if trainer.process.poll() is not None:
                trainer.close()
                self.trainers[rank] = self._start(rank)

    def size(self, rank: int) -> int:
        """Bytes of a rank's receipts so far."""
        file = self.folder / f"{rank}.jsonl"
        return file.stat().st_size if file.exists() else 0

    def await_batches(self, ranks: list[int]) -> None:
        """Wait until these ranks have got another batch; trainers that give up meanwhile are started again."""
        before = {rank: self.size(rank) for rank in ranks}

        def arrived() -> bool:
            self.revive()
            return all(self.size(rank) > size for rank, size in before.items())

        assert eventually(arrived, within_s=PATIENCE_S), "\n".join(trainer.text for trainer in self.trainers)

    def feeders(self) -> list[psutil.Process]:
        """The run's feeders, whoever has started them."""
        return processes(lambda words: "feed" in words and str(self.path) in words)

    def kill(self) -> None:
        """Kill a feeder, a worker or a trainer, at once, during a start, or after a while."""
        kind = self.random.choice(["feeder", "worker", "trainer"])
        if kind == "feeder" or self.random.random() < 0.7:  # three feeders in a row without a batch are an error
            self.await_batches(list(range(RANKS)))
        time.sleep(self.random.random() * self.random.choice([0.05, 1.0]))
        victims: list[Any] = self.trainers
        if kind == "feeder":
            victims = self.feeders()
        elif kind == "worker":
            victims = [each for feeder in self.feeders() for each in workers(feeder)]
        if victims:
            self.random.choice(victims).kill()
            self.kills[kind] += 1
        self.revive()

    def finish(self) -> None:
        """Let both trainers end after an epoch that neither has finished."""
        epochs = []
        for rank in range(RANKS):
            self.await_batches([rank])
            epochs.append(json.loads((self.folder / f"{rank}.state").read_text())["epoch"])
        (self.folder / "last").write_text(str(max(epochs) + 1))
        for rank in range(RANKS):
            while self.trainers[rank].wait(600) != 0:
                assert self.trainers[rank].process.returncode < 0, self.trainers[rank].text
                self.revive()

    def close(self) -> None:
        for trainer in self.trainers:
            trainer.close()
        for feeder in self.feeders():
            feeder.kill()


def processes(wanted: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """The living processes whose command is wanted."""
    living = (each for each in psutil.process_iter(["cmdline", "status"]) if each.info["status"] != ZOMBIE)
    return [each for each in living if wanted(each.info["cmdline"] or [])]


def workers(feeder: psutil.Process) -> list[psutil.Process]:
    """The Dask worker processes of a feeder."""
    try:
        family = feeder.children(recursive=True)
        return [each for each in family if "spawn_main" in " ".join(each.cmdline())]
    except psutil.NoSuchProcess:
        return []


def chaos(place: Place, path: Path, *, kills: int, seed: int) -> dict[str, Any]:
    """Run until so many have been killed, then to the end of an epoch; returns the findings of `feedline verify`."""
    run = Run(place, path, seed)
    try:
        while run.kills.total() < kills:
            run.kill()
        run.finish()
        assert eventually(lambda: not run.feeders(), within_s=30), "feeders outlive their trainers"
    finally:
        run.close()
    audit = ended_here("verify", path, "--receipts", run.folder, "--json")
    findings = json.loads(audit.stdout) if audit.stdout else {"error": audit.stderr}
    last = int((run.folder / "last").read_text())
    return {**findings, "status": audit.returncode, "kills": dict(run.kills), "starts": run.starts, "last_epoch": last}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    table = arguments.folder / "clicks"
    from feedline.warehouse.synthetic.clicks import ClickRecipe
    from feedline.warehouse.synthetic.generate import generate_clicks

    recipe = ClickRecipe(rows=20_000, days=3, seed=7, histories=2, row_group_rows=1_024, part_rows=4_096)
    generate_clicks(str(table), recipe)
    (arguments.folder / "place").mkdir()
    with furnished(arguments.folder / "place", table) as place:
        findings = chaos(place, write(place), kills=arguments.kills, seed=arguments.seed)
    print(json.dumps({**findings, "differences": findings.get("differences", [])[:5]}))
    sys.exit(findings["status"])


def write(place: Place) -> Path:
    """A pipeline of many small steps and blocks, computed by worker processes."""
    cluster = {"workers": 1, "threads": 1, "dashboard": False}
    small = {"source": {"split_rows": 512}, "shuffle": {"window_rows": 1024}, "batch": {"size": 64, "tail": "pad"}}
    return place.write(lanes=4, cluster=cluster, **small)


if __name__ == "__main__":
    main()
