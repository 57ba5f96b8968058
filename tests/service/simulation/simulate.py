"""Run seeds of the simulation.

export PYTHONPATH=.:tests/support
python tests/service/simulation/simulate.py --seed 17 -v          one seed, with its log
python tests/service/simulation/simulate.py --first 0 --count 10000
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from simulation import run_seed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the log of each run")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.count)
    failed, start_s = [], time.perf_counter()
    for seed in seeds if arguments.seed is None else [arguments.seed]:
        try:
            world = run_seed(seed)
        except Exception as error:
            failed.append(seed)
            world = error.world  # type: ignore[attr-defined]
            traceback.print_exc()
        if arguments.verbose:
            print("\n".join(world.log))
        if arguments.seed is not None:
            print(f"seed {seed}: {world.turns} turns, {world.now_s - 1000:.1f} virtual s, log {world.digest}")
    print(f"{len(failed)} failed: {failed}; {time.perf_counter() - start_s:.1f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
