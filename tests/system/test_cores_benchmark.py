"""The benchmark of cores: its model bounds a rate by the part that is busy first, and it measures, tiny."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import cores_page  # noqa: E402
from cores_model import Costs, apart, copied_bytes_per_s, predict, threads_alone  # noqa: E402

US = 1e-6
COSTS = Costs(
    block_s=8 * US,
    loop_s=0.5 * US,
    feeder_s=0.5 * US,
    trainer_s=1 * US,
    copied_bytes=1_000,
    blocks_in_memory=100,
)
COPIES = {1: 8e9, 2: 16e9}


@pytest.mark.parametrize(
    ("changes", "cores", "rows_per_s", "bound"),
    [
        ({}, 1, 1e5, "cores"),
        ({}, 8, 8e5, "cores"),
        ({}, 16, 1e6, "trainers"),
        ({"trainer_s": 0.0, "loop_s": 2 * US}, 16, 5e5, "feeder's loop"),
        ({"copied_bytes": 200_000}, 8, 64e9 / 200_000, "memory bandwidth"),
        ({"blocks_in_memory": 2}, 8, 2.5e5, "memory for blocks"),
        ({"block_s": 0.0}, 1, 5e5, "cores"),
    ],
)
def test_a_rate_is_that_of_the_part_that_is_busy_first(
    changes: dict[str, float], cores: int, rows_per_s: float, bound: str
) -> None:
    found = predict(dataclasses.replace(COSTS, **changes), COPIES, cores)
    assert found.rows_per_s == pytest.approx(rows_per_s)
    assert (found.bound, found.bounds[bound]) == (bound, found.rows_per_s)
    assert min(found.bounds.values()) == found.rows_per_s


def test_each_rank_is_a_thread_of_its_own() -> None:
    assert predict(COSTS, COPIES, 16, ranks=8).rows_per_s == pytest.approx(1.6e6)


def test_copies_grow_with_threads_until_they_have_reached_the_memorys_limit() -> None:
    assert [copied_bytes_per_s(COPIES, cores) for cores in (1, 2, 4, 16)] == [8e9, 16e9, 32e9, 128e9]
    assert copied_bytes_per_s({1: 10e9, 2: 11e9}, 16) == 11e9
    assert copied_bytes_per_s({2: 20e9, 4: 30e9, 8: 38e9}, 3) == 25e9
    assert copied_bytes_per_s({2: 20e9, 4: 30e9, 8: 38e9}, 64) == 38e9
    assert copied_bytes_per_s({4: 40e9}, 1) == 10e9
    assert copied_bytes_per_s({2: 20e9}, 4) == 40e9, "one measurement shows no limit"


def test_threads_of_one_process_share_its_lock() -> None:
    assert [threads_alone(1 * US, 0.25, threads) for threads in (1, 4, 16)] == pytest.approx([1e6, 4e6, 4e6])
    assert threads_alone(1 * US, 0.0, 16) == pytest.approx(16e6)
    assert apart(110, 100) == pytest.approx(0.1)


def test_ranks_are_measured_while_all_have_batches() -> None:
    import rank_trainers

    arrivals = [np.array([[1.0, 2.0, 3.0], [10, 10, 10]]), np.array([[1.5, 2.5, 4.5], [10, 10, 5]])]
    base = {"import_s": 1.0, "import_cpu_s": 1.0, "first_batch_s": 0.5, "first_batch_cpu_s": 2.0, "steps": 3}
    base |= {"batch_bytes_per_row": 8.0, "parts_cpu_s": None, "parts_rows": 20}
    found = [{**base, "rows": rows, "run_s": 3.0, "checksums": {"rows": rows, "ids": [rows, 1]}} for rows in (30, 25)]
    whole = rank_trainers.together(found, arrivals)
    assert whole["after_first_rows_per_s"] == pytest.approx((10 + 10 + 10) / (3.0 - 1.5))
    assert (whole["rows"], whole["first_batch_rows"]) == (55, 20)
    assert (whole["import_cpu_s"], whole["parts_rows"]) == (2.0, 40)
    assert whole["checksums"] == {"rows": 55, "ids": [55, 2]}


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
def test_cores_and_ranks_are_measured_and_predicted(ranks: int, tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "cores.py"), "--tiny", "--shapes", "flat", "--cores", "1,4096"]
    command += ["--contenders", "feedline-off,thread-pool", "--ranks", str(ranks), "--json", str(tmp_path / "all.json")]
    command += ["--no-lock"] * (ranks > 1)
    run = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4096 cores: skipped, this machine has" in run.stdout
    found = json.loads((tmp_path / "all.json").read_text())
    assert len(found["machine"]["cpus"]) == 1
    [part] = found["parts"]
    assert (part["shape"], part["rows"], part["ranks"], part["counted_on"]) == ("flat", 20_000, ranks, 1)
    measured = {each["contender"]: each for each in part["measured"]}
    assert set(measured) == {"feedline-off", "thread-pool"}
    assert all(each["cpu_s_per_million_rows"] > 0 for each in measured.values())
    counted = part["counted"]
    assert min(counted["loop_row_s"], counted["block_bytes_per_row"], counted["batch_bytes_per_row"]) > 0
    rate, one = measured["feedline-off"]["rows_per_s"], part["predicted"][0]
    assert (one["cores"], one["measured_rows_per_s"]) == (1, rate)
    if ranks == 1:  # two that are so short need not have batches at the same time
        assert 0 <= counted["lock_share"] < 1
        assert rate > 0
        assert one["apart"] == pytest.approx(one["rows_per_s"] / rate - 1)
    rates = [each["rows_per_s"] for each in part["predicted"]]
    assert rates == sorted(rates)


def part_of(shape: str, *, ranks: int = 1) -> dict[str, Any]:
    """What `cores.py` writes of a shape: measured on one and two cores, predicted for four and sixteen."""
    run = {"shape": shape, "ranks": ranks, "threads": None, "rounds": 1, "cpu_s_per_million_rows": 1.0}
    rates = {("feedline-off", 1): 6e5, ("feedline-off", 2): 1.2e6, ("feedline", 2): 1e6, ("grain-processes", 2): 8e5}
    rates |= {("dataloader", 2): 4e5, ("thread-pool", 1): None}
    measured = [{**run, "contender": name, "cores": cores, "rows_per_s": rate} for (name, cores), rate in rates.items()]
    predicted = [
        {"cores": cores, "rows_per_s": cores * 6.6e5, "bound": "cores", "threads_alone_rows_per_s": 2e6, "apart": apart}
        for cores, apart in ((1, 0.1), (2, 0.1), (4, None), (16, None))
    ]
    counted = {"lock_share": 0.25}
    facts = {"shape": shape, "ranks": ranks, "rows": 5_000_000, "measured": measured, "predicted": predicted}
    return facts | {"counted": counted}


def test_figures_are_written_into_the_pages_again_and_again() -> None:
    parts = [part_of("lists"), part_of("flat"), part_of("flat", ranks=8)]
    page = f"before\n{cores_page.BEGIN}\nold\n{cores_page.END}\nafter\n"
    filled = cores_page.with_figures(page, parts)
    assert filled == cores_page.with_figures(filled, parts)
    assert (filled[:7], filled[-7:], "old" in filled) == ("before\n", "\nafter\n", False)
    lists = next(line for line in filled.split("\n") if line.startswith("| lists"))
    expected = "5,000,000 rows | 600 k | 1.2 M | *2.64 M* | *10.6 M* | cores | 1.10; 1.10 | 1.50 | 4.0 cores |"
    assert lists == f"| lists, {expected}"
    assert "| flat, 5,000,000 rows, 8 ranks |" in filled
    with pytest.raises(ValueError, match="no place for the figures"):
        cores_page.with_figures("before", parts)


def test_columns_are_added_to_the_table_of_shapes_once() -> None:
    table = (
        "text\n\n| table (`--shape`) | aim |\n|---|---|\n| `flat --group-rows 82000`, more | 1 |\n| `wide` | 2 |\n\nend"
    )
    filled = cores_page.with_columns(table, [part_of("flat"), part_of("lists")])
    assert filled.split("\n")[2:6] == [
        "| table (`--shape`) | aim | rows/s on 2 cores | rows/s on 16 cores (*predicted*) |",
        "|---|---|---|---|",
        "| `flat --group-rows 82000`, more | 1 | 1.2 M | *10.6 M* |",
        "| `wide` | 2 | - | - |",
    ]
    assert filled == cores_page.with_columns(filled, [part_of("flat"), part_of("lists")])
    assert (filled[:6], filled[-5:]) == ("text\n\n", "\n\nend")
    with pytest.raises(ValueError, match="README has no table of shapes"):
        cores_page.with_columns("text", [part_of("flat")])


def test_the_picture_has_a_panel_for_each_shape_and_a_legend() -> None:
    svg = ElementTree.fromstring(cores_page.picture([part_of("lists"), part_of("flat")]))
    words = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert {"lists", "flat", "1", "2", "4", "16", "500 k", "20 M", *cores_page.WORDS.values()} <= set(words)
    assert cores_page.curves(part_of("lists"))["best"] == [(2, 8e5)]
