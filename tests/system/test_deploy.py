"""deploy/ is what its platforms accept: Kubernetes objects by their schemas and classes, commands as processes.

By default Kubernetes' objects are validated and held against each other and the command line; the nightly mode runs the
commands of all containers as processes of this machine, and Slurm's script whole, with stand-ins for srun and scontrol.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer.main
from pipelines import eventually
from processes import ended_here, finished, free_port, running
from ruamel.yaml import YAML

from feedline.cli import app
from feedline.service.worker.departure import DRAIN_S

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES, SLURM = ROOT / "deploy" / "kubernetes", ROOT / "deploy" / "slurm"
FILES = sorted(path.name for path in KUBERNETES.glob("*.yaml"))
KUSTOMIZATION = "kustomization.yaml"
API_VERSIONS = ("1.25", "1.37")  # the oldest and the newest release whose schemas kubernetes-validate has
NAMES = {"PersistentVolumeClaim", "Service", "Job", "NetworkPolicy", "PodDisruptionBudget"}


@cache
def objects() -> tuple[dict[str, Any], ...]:
    yaml = YAML(typ="safe", pure=True)
    files = [(KUBERNETES / file).read_text(encoding="utf-8") for file in FILES if file != KUSTOMIZATION]
    return tuple(each for text in files for each in yaml.load_all(text))


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [each for each in objects() if each["kind"] == kind]


def named(kind: str, name: str) -> dict[str, Any]:
    [found] = [each for each in of_kind(kind) if each["metadata"]["name"] == name]
    return found


def pods() -> dict[str, dict[str, Any]]:
    """The specs of all pods, by what they are."""
    [cluster] = of_kind("DaskCluster")
    jobs = {job["metadata"]["name"]: job["spec"]["template"]["spec"] for job in of_kind("Job")}
    return {role: cluster["spec"][role]["spec"] for role in ("scheduler", "worker")} | jobs


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


# -- schemas --------------------------------------------------------------------------------------------------------


def operator_schema(kind: str) -> dict[str, Any]:
    """The schema of a kind in the operator's custom resource definitions."""
    spec = importlib.util.find_spec("dask_kubernetes")
    assert spec is not None
    assert spec.submodule_search_locations
    helm = Path(spec.submodule_search_locations[0], "operator", "deployment", "helm")
    [path] = helm.glob(f"*/crds/{kind.lower()}.yaml")
    yaml = pytest.importorskip("yaml")
    definition = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    assert definition["spec"]["names"]["kind"] == kind
    return closed(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def closed(schema: Any) -> Any:
    """A structural schema as the API server reads it with strict validation: unknown fields are errors."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(value) for key, value in schema.items()}
    if "properties" in found and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string"):
        found = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    return found


@pytest.mark.parametrize("kind", ["DaskCluster", "DaskAutoscaler"])
def test_resources_of_the_operator_fit_its_schemas(kind: str):
    jsonschema = pytest.importorskip("jsonschema")
    pytest.importorskip("dask_kubernetes", exc_type=ImportError)
    schema = operator_schema(kind)
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    [manifest] = of_kind(kind)
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(manifest))
    assert not errors, "\n".join(f"{error.json_path}: {error.message[:200]}" for error in errors)
    broken = {**manifest, "spec": {**manifest["spec"], "unknown": 1}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(broken), "the schema is checked at all"


def check(value: Any, kind: str, where: str) -> None:
    """Whether a value is what a class of the client takes: known fields, required ones, types; recursively."""
    models = importlib.import_module("kubernetes.client.models")
    if match := re.fullmatch(r"(?:list|List)\[(.*)\]", kind):
        assert isinstance(value, list), where
        for index, each in enumerate(value):
            check(each, match[1], f"{where}[{index}]")
    elif match := re.fullmatch(r"(?:dict|Dict)[\[(]str, ?(.*)[\])]", kind):
        assert isinstance(value, dict), where
        for key, each in value.items():
            check(each, match[1], f"{where}.{key}")
    elif kind in ("str", "int", "bool", "float"):
        assert isinstance(value, {"str": str, "int": int, "bool": bool, "float": float}[kind]), f"{where}: {value!r}"
    elif kind != "object":
        model = getattr(models, kind)
        fields = {external: own for own, external in model.attribute_map.items()}
        unknown = set(value) - set(fields)
        assert not unknown, f"{where}: unknown {unknown}"
        for key, each in value.items():
            check(each, model.openapi_types[fields[key]], f"{where}.{key}")
        model(**{fields[key]: each for key, each in value.items()})  # raises for a required field that is missing


@pytest.mark.parametrize("manifest", objects(), ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_objects_fit_the_classes_of_the_client(manifest: dict[str, Any]):
    """Of pods inside the operator's resources too, which the operator hands on."""
    pytest.importorskip("kubernetes", exc_type=ImportError)
    if manifest["kind"] in NAMES:
        check(manifest, f"V1{manifest['kind']}", manifest["kind"])
    elif manifest["kind"] == "DaskCluster":
        for role in ("scheduler", "worker"):
            check(manifest["spec"][role]["spec"], "V1PodSpec", role)
        check(manifest["spec"]["scheduler"]["service"], "V1ServiceSpec", "service")
    else:
        assert manifest["kind"] == "DaskAutoscaler"


def test_what_does_not_fit_a_class_is_found():
    pytest.importorskip("kubernetes", exc_type=ImportError)
    pod = pods()["worker"]
    for wrong in ({**pod, "contaners": []}, {**pod, "terminationGracePeriodSeconds": "60"}, {"volumes": []}):
        with pytest.raises((AssertionError, ValueError, TypeError)):
            check(wrong, "V1PodSpec", "worker")


def of_the_api() -> list[dict[str, Any]]:
    """The objects that the API server knows by itself, and the pods that the operator makes of its own."""
    own = [each for each in objects() if not each["kind"].startswith("Dask")]
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "worker"}}
    return [*own, *({**bare, "spec": pods()[role]} for role in ("scheduler", "worker"))]


@pytest.mark.parametrize("version", API_VERSIONS)
def test_objects_fit_the_schemas_of_the_api(version: str):
    """With strict validation, by which the API server refuses unknown fields."""
    validate = pytest.importorskip("kubernetes_validate")
    for each in of_the_api():
        assert validate.validate(each, version, strict=True) == version


def test_what_does_not_fit_a_schema_of_the_api_is_refused():
    validate = pytest.importorskip("kubernetes_validate")
    job = of_kind("Job")[0]
    for changes in ({"backofLimit": 3}, {"completions": "2"}, {"template": {"spec": {"containers": "one"}}}):
        with pytest.raises(validate.ValidationError):
            validate.validate({**job, "spec": {**job["spec"], **changes}}, API_VERSIONS[-1], strict=True)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_what_kustomize_makes_is_valid_and_has_the_images_of_the_registry():
    validate = pytest.importorskip("kubernetes_validate")
    done = finished("kubectl", "kustomize", KUBERNETES)
    assert done.returncode == 0, done.stderr
    made = list(YAML(typ="safe", pure=True).load_all(done.stdout))
    assert {(each["kind"], each["metadata"]["name"]) for each in made} == {
        (each["kind"], each["metadata"]["name"]) for each in objects()
    }
    for each in made:
        if not each["kind"].startswith("Dask"):
            validate.validate(each, API_VERSIONS[-1], strict=True)
    images = set(re.findall(r"^ *(?:- )?image: (.*)$", done.stdout, re.MULTILINE))
    assert images == {f"registry.example.org/feedline-{role}:0.1.0" for role in ("host", "worker")}


def test_the_operator_builds_deployments_that_keep_our_settings():
    controller = pytest.importorskip("dask_kubernetes.operator.controller.controller", exc_type=ImportError)
    [cluster] = of_kind("DaskCluster")
    name, namespace = cluster["metadata"]["name"], cluster["metadata"]["namespace"]
    deployment = controller.build_worker_deployment_spec(
        f"{name}-default", namespace, name, "0", cluster["spec"]["worker"]["spec"], {}, {}
    )
    check(deployment, "V1Deployment", "worker")
    template = deployment["spec"]["template"]
    environment = {each["name"]: each["value"] for each in template["spec"]["containers"][0]["env"]}
    assert environment["DASK_SCHEDULER_ADDRESS"].startswith("tls://"), "the operator's own is tcp://"
    assert environment["DASK_WORKER_NAME"] == "feedline-default-worker-0"
    service = f"{name}-scheduler.{namespace}.svc"
    assert service in environment["DASK_SCHEDULER_ADDRESS"]
    policies = [each["spec"]["podSelector"]["matchLabels"] for each in of_kind("NetworkPolicy")]
    budgets = [each["spec"]["selector"]["matchLabels"] for each in of_kind("PodDisruptionBudget")]
    labels = template["metadata"]["labels"]
    for selectors in (policies, budgets):
        assert any(selector.items() <= labels.items() for selector in selectors)


# -- agreement ------------------------------------------------------------------------------------------------------


def test_a_kustomization_has_every_file_and_tags_every_image():
    found = YAML(typ="safe", pure=True).load((KUBERNETES / KUSTOMIZATION).read_text(encoding="utf-8"))
    assert sorted(found["resources"]) == [file for file in FILES if file != KUSTOMIZATION]
    used = {container["image"] for pod in pods().values() for container in containers(pod)}
    assert {each["name"] for each in found["images"]} == used
    assert len({each["newTag"] for each in found["images"]}) == 1


def test_a_scraper_reaches_the_ports_of_metrics():
    ports = set()
    for policy in of_kind("NetworkPolicy"):
        for rule in policy["spec"]["ingress"]:
            spaces = [each["namespaceSelector"]["matchLabels"] for each in rule["from"] if "namespaceSelector" in each]
            if {"kubernetes.io/metadata.name": "monitoring"} in spaces:
                ports |= {each["port"] for each in rule["ports"]}
    [cluster] = of_kind("DaskCluster")
    served = {
        port["containerPort"]
        for role in ("scheduler", "worker")
        for port in cluster["spec"][role]["spec"]["containers"][0]["ports"]
        if port["name"].startswith("http")
    }
    [training] = containers(pods()["flights-training"])
    [feeders] = [port["containerPort"] for port in training["ports"] if port["name"] == "metrics"]
    assert f"--set=metrics=0.0.0.0:{feeders}" in training["command"]
    assert ports == served | {feeders}


def test_all_live_in_one_namespace_and_pods_find_their_volumes_and_secrets():
    assert {each["metadata"]["namespace"] for each in objects()} == {"feedline"}
    readme = (KUBERNETES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+\.yaml)` \|", readme, re.MULTILINE)) == set(FILES)
    assert "for role in scheduler worker client;" in readme
    assert "create secret generic feedline-$role --from-file=certs/$role\n" in readme
    for name, pod in pods().items():
        volumes = {each["name"]: each for each in pod.get("volumes", [])}
        for container in containers(pod):
            assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
            assert container["image"] == ("feedline-worker" if name in ("scheduler", "worker") else "feedline-host")
        role = name if name in ("scheduler", "worker") else "client"
        assert volumes["certs"]["secret"]["secretName"] == f"feedline-{role}"
        words = " ".join(word for each in containers(pod) for word in (*each.get("command", ()), *each.get("args", ())))
        assert set(re.findall(r"/certs/(\S+)", words)) == {"ca.pem", f"{role}.pem", f"{role}.key"}
        if "data" in volumes:
            assert (
                volumes["data"]["persistentVolumeClaim"]["claimName"]
                == of_kind("PersistentVolumeClaim")[0]["metadata"]["name"]
            )
        assert pod["securityContext"]["runAsNonRoot"]


def test_every_container_has_requests_and_limits():
    for pod in pods().values():
        for container in containers(pod):
            resources = container["resources"]
            assert {"cpu", "memory"} <= resources["requests"].keys() & resources["limits"].keys()


def test_a_worker_has_time_to_drain_and_threads_as_its_limit():
    pod = pods()["worker"]
    [container] = pod["containers"]
    words = dict(word.partition("=")[::2] for word in container["args"])
    assert float(words["--drain-s"]) == DRAIN_S
    assert pod["terminationGracePeriodSeconds"] >= DRAIN_S + 10
    assert container["resources"]["limits"]["cpu"] == words["--threads"]
    [port] = container["ports"]
    assert words["--http"] == f"0.0.0.0:{port['containerPort']}"
    assert container["readinessProbe"]["httpGet"]["port"] == port["name"]


def test_the_training_spans_two_hosts_that_find_each_other():
    job, service = named("Job", "flights-training"), named("Service", "flights-training")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    words = pod["containers"][0]["command"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == 2
    assert "--nnodes=2" in words
    assert "--node-rank=$(HOST_INDEX)" in words
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert "--master-addr=flights-training-0.flights-training" in words
    [budget] = [
        each for each in of_kind("PodDisruptionBudget") if "job-name" in each["spec"]["selector"]["matchLabels"]
    ]
    assert budget["spec"]["minAvailable"] == spec["completions"]


def feedline_commands() -> Iterator[tuple[str, list[str]]]:
    for name, pod in pods().items():
        for container in containers(pod):
            words = [*container.get("command", []), *container.get("args", [])]
            if words[0] == "feedline":
                yield name, words[1:]
    for line in (SLURM / "train.sbatch").read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if match := re.search(r"\bfeedline ((?:scheduler|worker|plan|certs)\b.*)", line):
            yield "slurm", match[1].split()


def test_commands_have_the_options_that_are_given():
    group, seen = typer.main.get_command(app), []
    for name, (command, *rest) in feedline_commands():
        seen.append((name, command))
        known = group.get_command(typer.Context(group), command)
        assert known is not None, command
        options = {option for parameter in known.params for option in parameter.opts}
        given = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert given <= options, (name, given - options)
    assert {("scheduler", "scheduler"), ("slurm", "scheduler")} <= set(seen)
    assert {("worker", "worker"), ("flights-prepare", "plan"), ("slurm", "worker")} <= set(seen)


# -- processes ------------------------------------------------------------------------------------------------------

SHORT = (
    "--epochs=1",
    "--set=source.where=arr_delay is not None and month == 1",
    "--held-out=arr_delay is not None and month == 2 and day <= 7",
)
STEPS = 26_398 // 2_048 // 2  # of two ranks


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of a host, as far as its processes can tell: with folders of its own."""
    own = {name: str(folder / name) for name in ("HOME", "TMPDIR", "XDG_RUNTIME_DIR")}
    for path in own.values():
        Path(path).mkdir(parents=True, mode=0o700, exist_ok=True)
    path = f"{folder.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **own, **more}


@pytest.mark.nightly
def test_the_commands_of_kubernetes_work_together(tmp_path: Path):
    certs, data = tmp_path / "certs", tmp_path / "data"
    assert ended_here("certs", certs, "--host", "127.0.0.1").returncode == 0
    for name in ("warehouse", "work"):
        (data / name).mkdir(parents=True)
    ports = {number: str(free_port()) for number in ("8786", "8787", "8788", "29500")}

    def here(words: Sequence[str], role: str, **variables: str) -> list[str]:
        changed = []
        for word in words:
            for name, value in variables.items():
                word = word.replace(f"$({name})", value)
            word = word.replace("feedline-scheduler.feedline.svc", "127.0.0.1").replace("=0.0.0.0", "=127.0.0.1")
            word = word.replace("flights-training-0.flights-training", "127.0.0.1")
            word = word.replace("metrics=127.0.0.1:9400", "metrics=127.0.0.1:0")  # the hosts are one machine
            word = re.sub(r"(?<!\d)(8786|8787|8788|29500)(?!\d)", lambda match: ports[match[0]], word)
            word = word.replace("/certs/", f"{certs}/{role}/")  # the secret is the role's folder
            changed.append(re.sub(r"(?<![\w/])/(warehouse|work)(?=/|$)", lambda match: str(data / match[1]), word))
        return changed

    pod = pods()
    address = {"DASK_SCHEDULER_ADDRESS": "tls://127.0.0.1:8786", "DASK_WORKER_NAME": "worker-0"}
    own = environment(tmp_path / "cluster")
    with ExitStack() as stack:
        [scheduler] = pod["scheduler"]["containers"]
        stack.enter_context(running(*here(scheduler["args"], "scheduler"), env=own, cwd=ROOT)).line("scheduler at")
        [container] = pod["worker"]["containers"]
        words = here(container["args"], "worker", **address)
        worker = stack.enter_context(running(*words, env=own, cwd=ROOT))
        worker.line("serves tls://")
        for step in containers(pod["flights-prepare"]):
            done = finished(*here(step["command"], "client"), env=environment(tmp_path / "prepare"), cwd=ROOT)
            assert done.returncode == 0, done.stderr
        assert "saved in" in done.stdout
        [training] = pod["flights-training"]["containers"]
        hosts = []
        for index in range(2):
            words = [*here(training["command"], "client", HOST_INDEX=str(index)), *SHORT]
            own = environment(tmp_path / f"host{index}")
            hosts.append(stack.enter_context(running(*words, env=own, cwd=ROOT)))
        for host in hosts:
            assert host.wait(100) == 0, host.text
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.text
    results = json.loads((data / "work" / "flights.json").read_text())
    assert results["steps"] == STEPS
    assert results["held_out_rows"] == 5_991


STAND_INS = {
    "scontrol": """
import os
print(os.environ["SLURM_JOB_NODELIST"].replace(",", "\\n"))
""",
    # As Slurm's: a signal to srun kills the step; scancel sends it to the step's processes.
    "squeue": """
import os
steps = os.path.join(os.environ["HOSTS"], "steps")
print(*(f"{each} {each.partition('.')[2]}" for each in os.listdir(steps)), sep="\\n")
""",
    "scancel": """
import os, signal, sys
assert sys.argv[1] == "--signal=TERM"
for pid in open(os.path.join(os.environ["HOSTS"], "steps", sys.argv[2])).read().split():
    os.kill(int(pid), signal.SIGTERM)
""",
    "srun": """
import os, signal, subprocess, sys
words, hosts = sys.argv[1:], os.environ["SLURM_JOB_NODELIST"].split(",")
name = words[0].removeprefix("--job-name=")
while words[0].startswith("--"):
    word = words.pop(0)
    if word.startswith("--nodelist="):
        hosts = word.partition("=")[2].split(",")
tasks = []
for number, host in enumerate(hosts):
    folder = os.path.join(os.environ["HOSTS"], host)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    own = {"SLURM_PROCID": str(number), "SLURM_NNODES": str(len(hosts)), "XDG_RUNTIME_DIR": folder, "TMPDIR": folder}
    tasks.append(subprocess.Popen(words, env={**os.environ, **own}))
def stop(*_):
    for task in tasks:
        task.kill()
signal.signal(signal.SIGTERM, stop)
step = os.path.join(os.environ["HOSTS"], "steps", "4711." + name)
os.makedirs(os.path.dirname(step), exist_ok=True)
with open(step, "w") as file:
    file.write(" ".join(str(task.pid) for task in tasks))
status = max(abs(task.wait()) for task in tasks)
os.remove(step)
sys.exit(status)
""",
}


def slurm(folder: Path, *arguments: str) -> Any:
    """The script in a job of two hosts, which are this machine by two names."""
    (folder / "bin").mkdir()
    for name, code in STAND_INS.items():
        path = folder / "bin" / name
        path.write_text(f"#!{sys.executable}\n{code}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    own = environment(
        folder / "submit",
        SLURM_JOB_ID="4711",
        SLURM_JOB_NODELIST="127.0.0.1,127.0.0.2",
        SLURM_SUBMIT_DIR=str(ROOT),
        SLURM_CPUS_PER_TASK="2",
        FEEDLINE_SHARED=str(folder / "shared"),
        FEEDLINE_PORT=str(free_port()),
        HOSTS=str(folder / "hosts"),
    )
    return running("bash", SLURM / "train.sbatch", *arguments, env=own, cwd=folder)


@pytest.mark.nightly
def test_the_script_of_slurm_runs_to_its_end(tmp_path: Path):
    with slurm(tmp_path, *SHORT) as job:
        assert job.wait(300) == 0, job.text
    results = json.loads((tmp_path / "shared" / "flights.json").read_text())
    assert results["steps"] == STEPS
    assert not list((tmp_path / "shared").glob("certs-*"))
    assert eventually(lambda: not started_under(tmp_path), within_s=10), started_under(tmp_path)


@pytest.mark.nightly
def test_the_script_of_slurm_ends_in_order(tmp_path: Path):
    with slurm(tmp_path, "--epochs=1000", *SHORT[1:]) as job:
        job.line(r"epoch 1: loss")
        job.send(signal.SIGTERM)
        assert job.wait() == 143, job.text
        assert len(re.findall("worker .* has left", job.text)) == 2, job.text
    assert not list((tmp_path / "shared").glob("certs-*"))
    assert eventually(lambda: not started_under(tmp_path), within_s=10), started_under(tmp_path)


def started_under(folder: Path) -> list[str]:
    """The command lines of processes that name a folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if str(folder) in words and process.pid != os.getpid():
                found.append(words)
    return found


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_the_script_of_slurm_is_valid_and_documented():
    script = SLURM / "train.sbatch"
    assert finished("bash", "-n", script).returncode == 0
    text, readme = script.read_text(encoding="utf-8"), (SLURM / "README.md").read_text(encoding="utf-8")
    variables = set(re.findall(r"\$\{(FEEDLINE_\w+):-", text))
    assert variables == set(re.findall(r"^\| `(FEEDLINE_\w+)` \|", readme, re.MULTILINE))
