"""Free memory and cores are what the tightest cgroup leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from feedline.resources import cgroups


def limits(folder: Path, names: tuple[str, str], limit: str, used: int, stat: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names, "memory.stat"), (limit, str(used), stat), strict=True):
        (folder / name).write_text(text + "\n")


def test_free_memory_is_that_of_the_tightest_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Own cgroup or one above it, version 2 or 1; cached files are free, since the kernel drops them first."""
    own, group = tmp_path / "own", tmp_path / "sys"
    monkeypatch.setattr(cgroups, "_PROC_CGROUP", own)
    monkeypatch.setattr(cgroups, "_CGROUP", group)
    machine = cgroups.available_memory_bytes()
    assert machine > 10_000
    v2 = ("memory.max", "memory.current")
    own.write_text("0::/slurm/job_7/step_0\n")
    limits(group / "slurm/job_7/step_0", v2, "max", 900, "inactive_file 0")
    limits(group / "slurm/job_7", v2, "5000", 4000, "anon 1000\ninactive_file 1500\nactive_file 500")
    limits(group / "slurm", v2, "90000", 4000, "")
    assert cgroups.available_memory_bytes() == 5000 - 4000 + 2000
    own.write_text("0::/../outside\n")  # a namespace below: only its root is visible
    limits(group, v2, "300", 400, "")
    assert cgroups.available_memory_bytes() == 0
    own.write_text("12:cpu:/x\n4:memory:/box\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limits(group / "memory", names, str(2**63 - 4096), 10, "")
    limits(group / "memory/box", names, "7000", 6000, "total_inactive_file 10\ntotal_active_file 5")
    assert cgroups.available_memory_bytes() == 1015
    own.unlink()
    (group / "memory.max").unlink()
    assert abs(cgroups.available_memory_bytes() - machine) < machine / 2, "no limit: the machine's"


def test_cores_are_those_of_the_tightest_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the own cgroup or one above it: a container's limit may lie on either."""
    own, group = tmp_path / "own", tmp_path / "sys"
    monkeypatch.setattr(cgroups, "_PROC_CGROUP", own)
    monkeypatch.setattr(cgroups, "_CGROUP", group)
    monkeypatch.setattr(cgroups, "affinity", lambda process=0: frozenset(range(64)))
    assert cgroups.available_cores() == 64
    own.write_text("0::/slurm/job_7/step_0\n")
    for path, quota in (("slurm/job_7/step_0", "max 100000"), ("slurm/job_7", "750000 100000"), ("slurm", "9900000 1")):
        (group / path).mkdir(parents=True, exist_ok=True)
        (group / path / "cpu.max").write_text(quota + "\n")
    assert cgroups.available_cores() == 8, "7.5 cores"
    own.write_text("4:cpu,cpuacct:/box\n")
    (group / "cpu/box").mkdir(parents=True)
    (group / "cpu/box/cpu.cfs_quota_us").write_text("-1\n")
    (group / "cpu/cpu.cfs_quota_us").write_text("300000\n")
    for folder in ("cpu", "cpu/box"):
        (group / folder / "cpu.cfs_period_us").write_text("100000\n")
    assert cgroups.available_cores() == 3


@pytest.mark.parametrize(
    ("own", "launcher", "cores"),
    [
        (128, 128, 16),  # not bound
        (16, 128, 16),  # bound to its own cores: they are not divided again
        (64, 128, 16),  # bound to those of its NUMA node, which it shares with three others
        (16, 16, 2),  # the launcher is bound, too
        (2, 4, 1),
    ],
)
def test_a_rank_has_its_share_of_the_launchers_cores(
    own: int, launcher: int, cores: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cgroups, "_PROC_CGROUP", Path("/nowhere"))
    monkeypatch.setattr(cgroups, "_CGROUP", Path("/nowhere"))
    monkeypatch.setattr(cgroups, "affinity", lambda process=0: frozenset(range(launcher if process else own)))
    assert cgroups.rank_cores(8) == cores
    assert len(cgroups.launcher_affinity()) == launcher


def test_a_process_on_one_cpu_widens_to_its_cpuset():
    allowed = os.sched_getaffinity(0)
    code = (
        "import os; from feedline.resources.cgroups import launcher_affinity, widen_affinity; "
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "widen_affinity({*launcher_affinity(), 1000}); print(sorted(os.sched_getaffinity(0)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == sorted(allowed)
