"""How far one Dask scheduler carries: many workers and ranks simulated, a small cluster real, and both compared.

    python benchmarks/scale.py             64 workers with 8 feeders, real and simulated; then 1,000 workers and 256
                                           ranks on 1,000,000 files, simulated
    python benchmarks/scale.py --only-real only the comparison: two minutes
    python benchmarks/scale.py --simulated only the simulation, with the costs of an earlier machine
    python benchmarks/scale.py --without-routes   the last scenario without routes, too
    python benchmarks/scale.py --tiny      a small simulation: a test that all works

Simulated is what a feeder acts on; the feeder's decisions are the real code (`scale_feeder`, `scale_simulation`). The
costs come from the real cluster, on this machine, now. Its workers are in one process and their blocks sleep, so that
hundreds of blocks run at once on few cores. How far the simulation is from the real cluster in the comparison are the
error bars of its figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import scale_real
from rich.console import Console
from rich.table import Table
from scale_feeder import Workload
from scale_scenario import LOST_SHARE, MEASURED_S, WARM_S, Outcome, Scenario, counts_of, recovery
from scale_simulation import Costs, Loop, SimulatedCluster, SimulatedRank, SimulatedScheduler

MEASURED = Costs(task_s=0.0021, worker_s=0.0004, awake_s=0.032, messages=11.0, wire_bytes=4_900.0)


def simulate(scenario: Scenario, costs: Costs, *, warm_s: float | None = None) -> Outcome:
    """Run a scenario in simulated time: warm up (default: `WARM_S`), measure, lose workers, watch for as long again."""
    began_s = time.perf_counter()
    warm_s = WARM_S if warm_s is None else warm_s
    loop, workload = Loop(), scenario.workload
    scheduler = SimulatedScheduler(loop, costs, scenario.workers, scenario.threads)
    schedule = workload.schedule()
    ranks = [
        SimulatedRank(
            loop,
            SimulatedCluster(scheduler, has_route=scenario.has_routes),
            workload,
            schedule,
            lane=lane,
            step_s=scenario.step_s,
        )
        for lane in range(scenario.ranks)
    ]
    loop.run(warm_s)
    before = counts_of([rank.feeder for rank in ranks])
    busy_s = scheduler.busy_s
    loop.run(warm_s + MEASURED_S)
    after = counts_of([rank.feeder for rank in ranks])
    load = (scheduler.busy_s - busy_s) / MEASURED_S
    in_flight = sum(rank.feeder.window.in_flight for rank in ranks)
    connections = [len(rank.cluster.connections) for rank in ranks]
    clients = [len(worker.clients) for worker in scheduler.members.values()]
    scheduler.lose(list(scheduler.members)[: max(1, round(scenario.workers * LOST_SHARE))])
    loop.run(warm_s + 2 * MEASURED_S)
    recovery_s = recovery([rank.feeder for rank in ranks], warm_s + MEASURED_S, loop.now_s)
    for rank in ranks:
        rank.close()
    return Outcome(
        blocks_per_s=(after[0] - before[0]) / MEASURED_S,
        delivered=(after[1] - before[1]) * scenario.step_s / MEASURED_S / scenario.ranks,
        scheduler=load,
        in_flight=in_flight,
        feeder_connections=(statistics.median(connections), max(connections)),
        worker_connections=(statistics.median(clients), max(clients)),
        recovery_s=recovery_s,
        real_s=time.perf_counter() - began_s,
    )


def fairness(costs: Costs, *, workers: int, seconds: float) -> Table:
    """Three jobs of four ranks on a cluster with half of the threads that they want: one hungry, one that wants as much
    as it gets, one that uses little."""
    loop = Loop()
    workload = Workload(files=200_000, lanes=4)
    scheduler = SimulatedScheduler(loop, costs, workers, 1)
    schedule = workload.schedule()
    per_rank = workers / 4 / workload.block_s * workload.steps_per_block  # steps/s of all workers, for each of a job
    jobs = {"fast": 8.0, "even": 1.2, "slow": 0.1}
    ranks = {
        job: [
            SimulatedRank(
                loop, SimulatedCluster(scheduler), workload, schedule, lane=lane, step_s=1 / (part * per_rank), job=job
            )
            for lane in range(4)
        ]
        for job, part in jobs.items()
    }
    loop.run(seconds)
    before = {job: counts_of([rank.feeder for rank in own]) for job, own in ranks.items()}
    loop.run(2 * seconds)
    table = Table("job", "wants, of the threads", "gets", "of its pace")
    for job, own in ranks.items():
        blocks, steps = counts_of([rank.feeder for rank in own])
        got = (blocks - before[job][0]) * workload.block_s / seconds / workers
        pace = (steps - before[job][1]) / 4 / seconds / (jobs[job] * per_rank)
        table.add_row(job, f"{jobs[job]:.0%}", f"{got:.0%}", f"{min(1.0, pace):.0%}")
        for rank in own:
            rank.close()
    return table


# -- the report -------------------------------------------------------------------------------------------------------


def report(
    scenarios: Sequence[Scenario], costs: Costs, console: Console, *, warm_s: float | None = None
) -> list[Outcome]:
    """Simulate and print."""
    table = Table(title="simulated", title_justify="left")
    for name in ("", "blocks/s wanted", "done", "scheduler", "trainers' pace", "in flight", "connections: feeder",
                 "worker", "recovery s", "messages/M rows", "MB/M rows", "took s"):  # fmt: skip
        table.add_column(name, justify="right" if name else "left")
    outcomes = []
    for scenario in scenarios:
        console.print(f"simulating {scenario.name} …", style="dim")
        outcome = simulate(scenario, costs, warm_s=warm_s)
        outcomes.append(outcome)
        per_million = 1e6 / scenario.workload.rows
        table.add_row(
            scenario.name,
            f"{scenario.blocks_per_s:,.0f}",
            f"{outcome.blocks_per_s:,.0f}",
            f"{outcome.scheduler:.0%}",
            f"{outcome.delivered:.0%}",
            f"{outcome.in_flight:,}",
            "{:g}, {}".format(*outcome.feeder_connections),
            "{:g}, {}".format(*outcome.worker_connections),
            f"not within {MEASURED_S:.0f}" if outcome.recovery_s is None else f"{outcome.recovery_s:.1f}",
            f"{costs.messages * per_million:,.0f}",
            f"{costs.wire_bytes * per_million / 1e6:,.2f}",
            f"{outcome.real_s:.0f}",
        )
    console.print(table)
    return outcomes


def large_scenarios() -> list[Scenario]:
    """1,000 workers of 8 threads, 256 ranks of 50,000 rows/s, 1,000,000 files: with blocks of several sizes."""
    scenarios = []
    for rows in (8_192, 32_768, 131_072):
        batch = 2_048
        workload = Workload(
            files=1_000_000, lanes=256, rows=rows, batch_size=batch, block_s=rows / 25_000, block_bytes=rows * 300
        )
        name = f"256 ranks, blocks of {rows:,} rows"
        scenarios.append(
            Scenario(name=name, workers=1_000, threads=8, ranks=256, step_s=batch / 50_000, workload=workload)
        )
    return scenarios


def without_routes(scenario: Scenario) -> Scenario:
    """The same where every feeder may use all workers."""
    return dataclasses.replace(scenario, name=f"{scenario.name}, without routes", has_routes=False)


def small_scenario(workers: int = 64, ranks: int = 8, block_s: float = 2.0, use: float = 0.8) -> Scenario:
    """What a real cluster is compared with: workers of one thread, of which trainers want 80 %."""
    workload = Workload(files=20_000, lanes=ranks, block_s=block_s)
    step_s = ranks / workload.steps_per_block * block_s / (use * workers)
    return Scenario(
        name=f"{ranks} ranks, {workers} workers",
        workers=workers,
        threads=1,
        ranks=ranks,
        step_s=step_s,
        workload=workload,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far simulated figures are from real ones: of blocks/s and load the largest ratio less 1, of recovery s."""

    blocks: float
    scheduler: float
    recovery_s: float

    def words(self) -> str:
        """The error bars as a line."""
        return (
            f"error bars, from the comparison: blocks/s ±{self.blocks:.0%}, scheduler ±{self.scheduler:.0%}, "
            f"recovery ±{self.recovery_s:.1f} s"
        )


def compare(console: Console) -> tuple[Costs, Errors]:
    """Measure the costs, then run the small scenario for real and simulated. Returns the costs, and the error bars."""
    costs, counts = scale_real.measure_costs(MEASURED)
    console.print(counts)
    scenario = small_scenario()
    hungry = dataclasses.replace(scenario, step_s=scenario.step_s / 20)
    table = Table("", "real", "simulated", "simulated / real", title="8 feeders, 64 workers", title_justify="left")
    rows: list[tuple[str, float, float]] = []
    for name, each in (("trainers that wait", hungry), ("trainers at their pace", scenario)):
        console.print(f"running {name} …", style="dim")
        real, simulated = scale_real.run(each), simulate(each, costs)
        rows += [
            (f"{name}: blocks/s", real.blocks_per_s, simulated.blocks_per_s),
            (f"{name}: scheduler's CPU share", real.scheduler, simulated.scheduler),
        ]
        if each is scenario:
            rows.append(("steps, of the trainers' pace", real.delivered, simulated.delivered))
            phases = [simulate(each, costs, warm_s=WARM_S + phase).recovery_s or 0.0 for phase in range(-2, 3)]
            recovered = real.recovery_s or 0.0, statistics.median(phases)
            rows.append(("recovery from losing 6 workers, s", *recovered))
    for name, left, right in rows:
        table.add_row(name, f"{left:.2f}", f"{right:.2f}", f"{right / left:.2f}" if left else "")
    console.print(table)

    def error(figure: str) -> float:
        ratios = [right / left for name, left, right in rows if figure in name and left]
        return max((abs(ratio - 1) for ratio in ratios), default=0.0)

    recovery_s = abs(recovered[0] - recovered[1])
    errors = Errors(blocks=error("blocks/s"), scheduler=error("scheduler"), recovery_s=recovery_s)
    console.print(errors.words())
    return costs, errors


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-real", action="store_true", help="only the comparison with a real cluster")
    parser.add_argument("--simulated", action="store_true", help="no real cluster: the costs of an earlier machine")
    parser.add_argument("--without-routes", action="store_true", help="the last scenario without routes, too: a minute")
    parser.add_argument("--tiny", action="store_true", help="a small simulation")
    parser.add_argument("--warm-s", type=float, help="simulated seconds before the measured ones (default: 15)")
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    costs, errors = (MEASURED, None) if options.tiny or options.simulated else compare(console)
    if options.only_real:
        return
    scenarios = [small_scenario(16, 4, 0.5)] if options.tiny else large_scenarios()
    if options.without_routes:
        scenarios.append(without_routes(scenarios[-1]))
    outcomes = report(scenarios, costs, console, warm_s=options.warm_s)
    console.print("fairness: three jobs")
    console.print(fairness(costs, workers=16 if options.tiny else 400, seconds=10 if options.tiny else 15))
    if errors is not None:
        console.print(errors.words())
    console.print(f"median scheduler load: {statistics.median(each.scheduler for each in outcomes):.0%}")


if __name__ == "__main__":
    main(sys.argv[1:])
