"""Do the roles of docker/ work together? Images cannot be pulled everywhere, so the commands run as plain processes.

Command and environment of each service are taken out of compose.yaml; its host names become 127.0.0.1, its ports free
ones and its volumes folders of this test. What the Dockerfile itself promises is read off its text.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer.main
from pipelines import eventually
from ruamel.yaml import YAML

from feedline.cli import app
from feedline.config import PipelineSpec
from feedline.config.sections import keys_of, section_at
from feedline.resources.instructions import choose_cpu
from feedline.service.worker.departure import DRAIN_S

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
DOCKERFILE = ROOT / "docker" / "Dockerfile"
START_S, RUN_S, STOP_S = 60, 100, 15

SETTINGS = {  # what a person would put into the environment of `docker compose`, to keep it short
    "EPOCHS": "5",
    "TRAIN_WHERE": "arr_delay is not None and month == 1",
    "HELD_OUT": "arr_delay is not None and month == 2 and day <= 7",
}
SPEED = {"rows_per_s": None, "wait_fraction": None}


def compose(settings: Mapping[str, str]) -> dict:
    """compose.yaml with its `${NAME:-default}` replaced, as compose does it."""
    text = re.sub(
        r"\$\{(\w+):-([^}]*)\}", lambda match: settings.get(match[1], match[2]), COMPOSE.read_text(encoding="utf-8")
    )
    assert "${" not in text
    return YAML(typ="safe", pure=True).load(text)


def mounts(service: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The volumes of a service, and where they are."""
    return [tuple(each.split(":")[:2]) for each in service.get("volumes", [])]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Host:
    """This machine in the place of all of compose's containers; leaving the context ends them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services = compose(SETTINGS)["services"]
        self.ports = {"8786": free_port(), "8787": free_port(), "8788": free_port()}
        self.volumes: dict[str, Path] = {}  # by name; at the place of their first mount, below one folder
        self.running: list[subprocess.Popen] = []
        for service in self.services.values():
            for volume, target in mounts(service):
                self.volumes.setdefault(volume, folder / target.removeprefix("/")).mkdir(parents=True, exist_ok=True)
        (folder / "home").mkdir()
        (folder / "no-torch").mkdir()
        (folder / "no-torch" / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")

    def here(self, word: str, service: dict) -> str:
        """A word of a service's command with this machine's names in it."""
        for name in (*self.services, "0.0.0.0"):
            word = re.sub(rf"(?<![\w.]){re.escape(name)}:(?=\d)", "127.0.0.1:", word)
        word = word.replace("=0.0.0.0", "=127.0.0.1")
        word = re.sub(r"(?<!\d)(878[678])(?!\d)", lambda match: str(self.ports[match[0]]), word)
        places = {target: self.volumes[volume] for volume, target in mounts(service)}
        roots = r"(?<![\w/])(/certs|/warehouse|/work)(?=/|$)"
        return re.sub(roots, lambda match: str(places.get(match[0], self.folder / match[0].removeprefix("/"))), word)

    def start(self, name: str) -> list[subprocess.Popen]:
        """One process per replica, its output in a file of the service's name; those of the image without torch cannot
        import it."""
        service = self.services[name]
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder),
            "PYTHONUNBUFFERED": "1",
            **({"PYTHONPATH": str(self.folder / "no-torch")} if service["image"] == "feedline-worker" else {}),
            **{key: self.here(str(value), service) for key, value in service.get("environment", {}).items()},
        }
        started = []
        for _ in range(service.get("deploy", {}).get("replicas", 1)):
            self.ports["8788"] = free_port()  # the replicas of compose have an address each
            command = [self.here(word, service) for word in service["command"]]
            with (self.folder / f"{name}.log").open("ab") as log:
                started.append(
                    subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
        self.running += started
        return started

    def finish(self, name: str) -> None:
        """Run a service to its end."""
        for process in self.start(name):
            assert process.wait(timeout=RUN_S) == 0, self.log(name)

    def healthy(self, name: str) -> None:
        """Wait until the service's health check passes: for the last of its replicas."""
        _, *words = self.services[name]["healthcheck"]["test"]
        command = [sys.executable if word == "python" else self.here(word, self.services[name]) for word in words]
        assert eventually(lambda: subprocess.run(command, capture_output=True, check=False).returncode == 0), self.log(
            name
        )

    def results(self) -> dict:
        """What the training wrote down."""
        return json.loads((self.volumes["work"] / "flights.json").read_text())

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def stop(self) -> list[int]:
        """SIGTERM to one after the other, last started first, as `docker compose down` does; their exit codes."""
        codes = []
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            codes.append(process.wait(timeout=STOP_S))
        return codes

    def left(self) -> list[str]:
        """Which processes are still in a session that a service began, and what files they left in TMPDIR."""
        sessions = {process.pid for process in self.running}
        here = [
            process
            for process in psutil.process_iter()
            if process.pid not in sessions and _session(process) in sessions
        ]
        alive = [process for process in psutil.wait_procs(here, timeout=STOP_S)[1] if process.status() != "zombie"]
        kept = {self.folder / name for name in ("certs", "warehouse", "work", "home", "no-torch")}
        made = [path for path in self.folder.iterdir() if path not in kept and path.suffix != ".log"]
        files = [path for folder in made for path in (folder, *folder.rglob("*")) if not path.is_dir()]
        return [*map(str, alive), *(str(path) for path in files if path.parent.name != "dask-scratch-space")]

    def kill(self) -> None:
        """The end of whatever is still there, whatever went wrong before."""
        for process in self.running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _session(process: psutil.Process) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return None


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        host = Host(tmp_path)
        stack.callback(host.kill)
        yield host


@pytest.mark.nightly
def test_services_work_together(host: Host):
    for _ in range(2):  # the second time it makes certificates of the same authority
        host.finish("certs")
    host.finish("prepare")
    host.start("scheduler")
    host.healthy("scheduler")
    assert len(host.start("worker")) == 2
    host.healthy("worker")
    host.finish("host")

    results = host.results()
    assert results["steps"] == 5 * (26_398 // 2_048)
    assert 0.55 < results["auc"] < 1
    assert results["held_out_rows"] == 5_991
    assert "127.0.0.1" in host.log("worker")

    page = f"http://127.0.0.1:{host.ports['8787']}"
    with urllib.request.urlopen(f"{page}/json/counts.json", timeout=START_S) as answer:
        assert json.load(answer)["workers"] == 2
    with urllib.request.urlopen(f"{page}/status", timeout=START_S) as answer:
        assert answer.status == 200
    assert "scheduler at tls://" in host.log("scheduler")
    assert host.stop() == [0] * 7
    assert host.left() == []

    # Where blocks are computed changes nothing: the same training over threads of the feeder ends with the same bits.
    remote = [word for word in host.services["host"]["command"] if word.startswith("--set=cluster.")]
    local = [word for word in host.services["host"]["command"] if word not in remote]
    host.services["host"]["command"] = [*local, f"--set=cluster.cpu={choose_cpu(None, shared=True)}"]
    host.finish("host")
    assert len(remote) == 4
    assert {**host.results(), **SPEED} == {**results, **SPEED}


def test_commands_have_the_options_that_are_given():
    group, seen = typer.main.get_command(app), set()
    for service in compose({})["services"].values():
        program, name, *words = service["command"]
        if program == "feedline":
            command = group.get_command(typer.Context(group), name)
            assert command is not None, name
            command.make_context(name, words)
            seen.add(name)
    assert seen == {"certs", "scheduler", "worker"}


def test_programs_have_the_options_that_are_given():
    services = compose({})["services"]
    _, prepare, *places = services["prepare"]["command"]
    assert (ROOT / prepare).is_file()
    assert len(places) == 1
    _, train, *words = services["host"]["command"]
    known = set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', (ROOT / train).read_text(encoding="utf-8")))
    assert {word.partition("=")[0] for word in words} <= known
    keys = [word.split("=")[1] for word in words if word.startswith("--set=")]
    assert "cluster.scheduler" in keys
    for key in keys:
        *path, name = key.split(".")
        model = section_at(PipelineSpec, tuple(path))
        assert model is not None, key
        assert name in keys_of(model), key


def test_services_start_after_what_they_need():
    services = compose({})["services"]
    needs = {name: service.get("depends_on", {}) for name, service in services.items()}
    assert needs["host"]["prepare"] == needs["worker"]["prepare"] == {"condition": "service_completed_successfully"}
    assert needs["scheduler"] == {"certs": {"condition": "service_completed_successfully"}}
    for name, awaited in (("host", "scheduler"), ("host", "worker"), ("worker", "scheduler")):
        assert needs[name][awaited] == {"condition": "service_healthy"}
        assert "healthcheck" in services[awaited]
    assert services["worker"]["deploy"]["replicas"] == 2


def test_every_long_running_service_is_limited_and_a_worker_has_time_to_drain():
    services = compose({})["services"]
    for name in ("scheduler", "worker", "host"):
        assert services[name]["deploy"]["resources"]["limits"]["memory"]
    grace_s = int(services["worker"]["stop_grace_period"].removesuffix("s"))
    assert not any(word.startswith("--drain-s") for word in services["worker"]["command"])
    assert grace_s >= DRAIN_S + 10


def test_connections_are_authenticated_and_keys_are_not_written_to():
    services = compose({})["services"]
    for role, name in (("scheduler", "scheduler"), ("worker", "worker"), ("client", "host")):
        words = " ".join(services[name]["command"])
        assert all(f"/certs/{file}" in words for file in ("ca.pem", f"{role}.pem", f"{role}.key"))
        assert f"{role}-certs:/certs:ro" in services[name]["volumes"]
        assert f"{role}-certs:/certs/{role}" in services["certs"]["volumes"]
        assert "insecure" not in words
        assert "tcp://" not in words
    assert [name for name in services if ("authority", "/certs/authority") in mounts(services[name])] == ["certs"]
    folders = re.search(r"install -d -m 700 -o feedline -g feedline (.*)", DOCKERFILE.read_text(encoding="utf-8"))
    assert folders is not None
    assert {target for _, target in mounts(services["certs"])} < set(folders[1].split()), "writable for the user"


def test_only_loopback_is_published():
    ports = [port for service in compose({})["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_workers_and_host_come_back_or_end():
    services = compose({})["services"]
    assert services["worker"]["restart"] == services["scheduler"]["restart"] == "unless-stopped"
    assert "restart" not in services["host"]


def test_services_are_built_from_stages_of_one_file_and_share_the_table():
    services = compose({})["services"]
    stages = [arguments.split(" AS ")[1] for word, arguments in instructions() if word == "FROM"]
    assert stages == ["build", "worker", "host"]
    for service in services.values():
        assert service["image"] == f"feedline-{service['build']['target']}"
        assert service["build"]["target"] in stages
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DOCKERFILE
    assert {services[name]["image"] for name in ("scheduler", "worker")} == {"feedline-worker"}
    for name in ("worker", "host"):
        assert "warehouse:/warehouse:ro" in services[name]["volumes"]


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions: word and arguments, continued lines joined, comments dropped."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8")))
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


def by_stage() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, by its name."""
    stages: dict[str, list[tuple[str, str]]] = {}
    for word, arguments in instructions():
        if word == "FROM":
            stages[arguments.split(" AS ")[1]] = []
        list(stages.values())[-1].append((word, arguments))
    return stages


def test_images_are_slim_and_without_root():
    found = instructions()
    starts = [arguments for word, arguments in found if word == "FROM"]
    assert re.fullmatch(r"python:3\.\d+-slim(-\w+)? AS build", starts[0])
    assert starts[1:] == [starts[0].replace("build", "worker"), "worker AS host"]
    assert [arguments for word, arguments in found if word == "USER"] == ["1000", "0", "1000"]
    assert found[-1] == ("USER", "1000")


def test_images_take_pinned_versions_and_torch_is_only_the_hosts():
    stages = by_stage()
    for stage, count in {"worker": 2, "host": 1}.items():
        lines = stages[stage]
        installs = [arguments for word, arguments in lines if word == "RUN" and "pip install" in arguments]
        assert len(installs) == count
        assert all("--constraint constraints.txt" in run for run in installs)
        assert all(('--extra-index-url "$TORCH_INDEX"' in run) == (stage == "host") for run in installs)
    assert any(word == "ARG" and arguments.startswith("TORCH_INDEX=https://") for word, arguments in stages["host"])
    assert any("--no-deps /wheels/*.whl" in arguments for _, arguments in stages["worker"])


def test_images_have_the_kernels_and_no_compiler():
    stages = by_stage()
    runs = {stage: [arguments for word, arguments in lines if word == "RUN"] for stage, lines in stages.items()}
    assert [stage for stage in runs if any("gcc" in run for run in runs[stage])] == ["build"]
    assert any(run.startswith("pip wheel") and run.endswith("--no-deps --wheel-dir /wheels .") for run in runs["build"])
    assert ("COPY", "--from=build /wheels /wheels") in stages["worker"]
    installed = next(run for run in runs["worker"] if "/wheels/*.whl" in run)
    assert installed.endswith(" && python -m feedline.native.kernels")
    assert ("COPY", "feedline ./feedline") not in stages["worker"] + stages["host"], "it would be imported, uncompiled"
    assert not any(re.search(r'" ?"?\.\[| \.$', run) for run in runs["worker"] + runs["host"]), (
        "it would be built again"
    )


def test_a_worker_needs_what_feedline_needs_without_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = DOCKERFILE.with_name("requirements-worker.txt").read_text(encoding="utf-8").splitlines()
    required = [line for line in lines if not line.startswith("#")]
    left_out = [dependency for dependency in project["dependencies"] if dependency not in required]
    assert [re.split("[>=]", dependency)[0] for dependency in left_out] == ["torch"]
    extras = project["optional-dependencies"]
    added = {each for extra in ("dashboard", "dataframe", "zarr") for each in extras[extra]}
    assert set(required) == {*project["dependencies"], *added} - set(left_out)


def test_image_copies_what_is_there_and_sent():
    ignored = (DOCKERFILE.with_name("Dockerfile.dockerignore")).read_text(encoding="utf-8").splitlines()
    copies = [arguments for word, arguments in instructions() if word == "COPY" and "--from" not in arguments]
    sources = [name for arguments in copies for name in arguments.split()[:-1]]
    assert {"constraints.txt", "pyproject.toml", "feedline", "examples"} <= set(sources)
    assert all((ROOT / name).exists() and f"!{name}" in ignored for name in sources)
