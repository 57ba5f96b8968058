"""Files for other programs are what these accept: the Dockerfile by hadolint, PodMonitors by the types of Prometheus'
operator, of npm (`make stores`)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import finished
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "build" / "stores" / "node_modules"
OPERATOR = "@kubernetes-models/prometheus-operator"
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent))


@pytest.mark.skipif(HADOLINT is None, reason="needs hadolint, which PyPI has for x86-64")
def test_hadolint_finds_nothing(tmp_path: Path):
    done = finished(HADOLINT, ROOT / "docker" / "Dockerfile")
    assert done.returncode == 0, done.stdout
    (tmp_path / "Dockerfile").write_text("FROM python\nRUN cd /tmp\n")
    wrong = finished(HADOLINT, tmp_path / "Dockerfile")
    assert wrong.returncode != 0
    assert {"DL3006", "DL3003"} <= {word for word in wrong.stdout.split() if word.startswith("DL")}


def pod_monitors() -> list[dict[str, Any]]:
    text = (ROOT / "deploy" / "prometheus" / "pod-monitor.yaml").read_text(encoding="utf-8")
    return list(YAML(typ="safe", pure=True).load_all(text))


def findings(monitors: list[dict[str, Any]], folder: Path) -> list[str]:
    """What TypeScript says of objects as the operator's PodMonitor: unknown keys, values of another type."""
    lines = [f'import type {{ IPodMonitor }} from "{OPERATOR}/monitoring.coreos.com/v1/PodMonitor";']
    lines += [f"export const m{number}: IPodMonitor = {json.dumps(each)};" for number, each in enumerate(monitors)]
    (folder / "monitors.mts").write_text("\n".join(lines))
    (folder / "node_modules").symlink_to(MODULES)
    compiler = MODULES / ".bin" / "tsc"
    done = finished(
        compiler, "--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "monitors.mts", cwd=folder
    )
    assert (done.returncode == 0) == (not done.stdout), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "error TS" in line]


@pytest.mark.skipif(not (MODULES / OPERATOR).exists(), reason="needs the types of the operator, by `make stores`")
@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_pod_monitors_are_the_operators(tmp_path: Path):
    (tmp_path / "right").mkdir()
    assert len(pod_monitors()) == 2
    assert not findings(pod_monitors(), tmp_path / "right")
    unknown, wrong = pod_monitors()
    [endpoint] = wrong["spec"]["podMetricsEndpoints"]
    unknown["spec"]["podMetricEndpoints"] = unknown["spec"].pop("podMetricsEndpoints")
    endpoint["port"] = 9400
    (tmp_path / "wrong").mkdir()
    assert len(findings([unknown, wrong], tmp_path / "wrong")) == 2
