"""Clusters that a class starts: its options, its errors, the number of its workers."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import LocalCluster, Security, SpecCluster
from job_reports import REPORT
from minimal_pipeline import MINIMAL
from pipelines import eventually

from feedline.config import parse_spec
from feedline.config.cluster_section import ClusterSpec
from feedline.errors import ClusterError, SpecError
from feedline.service.cluster import reporting
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.provider import load_provider, provider_config, provider_options, worker_threads
from feedline.service.cluster.request import ClusterRequest

LOCAL = {
    "class": "distributed.LocalCluster",
    "options": {
        "n_workers": 0,
        "processes": False,
        "protocol": "tcp://",
        "host": "127.0.0.1",
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
        "memory_limit": 0,
    },
}


def spec_of(**keys: Any) -> ClusterSpec:
    return ClusterSpec.model_validate({"cpu": "native", **keys})


def refusal(**keys: Any) -> str:
    with pytest.raises(ClusterError) as caught:
        open_cluster(ClusterRequest(spec_of(**keys), threads=1)).close()
    return str(caught.value)


class Fixed(SpecCluster):
    """A cluster that cannot scale, as SSHCluster."""

    def __init__(self, *, host: str) -> None:
        options = {"host": host, "dashboard_address": "127.0.0.1:0"}
        super().__init__(scheduler={"cls": "distributed.Scheduler", "options": options})


def not_a_cluster() -> int:
    return 3


def test_a_class_starts_a_cluster_whose_workers_follow_the_reports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reporting, "_EVERY_S", 0.1)
    spec = spec_of(**LOCAL, workers={"min": 1, "max": 3})
    quickly = dask.config.set({"distributed.adaptive.interval": "100ms"})
    with quickly, closing(open_cluster(ClusterRequest(spec, threads=1, elastic=True))) as cluster:
        cluster.check_workers()
        joined = cluster.dask
        assert joined is not None
        assert cluster.client.submit(sum, [1, 2]).result() == 3
        for demand, workers in ((9.0, 3), (0.0, 1)):

            def settled(demand: float = demand, workers: int = workers) -> bool:
                joined.reporter.report = replace(REPORT, demand_threads=demand, least_workers=0, most_workers=None)
                return joined.size().workers == workers

            assert eventually(settled), (demand, joined.size())


def test_without_elasticity_there_are_the_most_workers():
    with closing(open_cluster(ClusterRequest(spec_of(**LOCAL, workers={"min": 1, "max": 2}), threads=1))) as cluster:
        assert eventually(lambda: cluster.connection.workers() == 2)


def test_classes_that_are_missing_or_none_of_a_cluster():
    assert "cluster.class: no_such_module.C cannot be imported: No module" in refusal(
        **{"class": "no_such_module.C", "workers": 1}
    )
    assert "(pip install no-such-module)" in refusal(**{"class": "no_such_module.C", "workers": 1})
    assert "the module distributed has no 'Nothing'" in refusal(**{"class": "distributed.Nothing", "workers": 1})
    assert "expected module.Name" in refusal(**{"class": "Nothing", "workers": 1})
    assert "it is the class Client, expected a distributed.deploy.Cluster" in refusal(
        **{"class": "distributed.Client", "workers": 1}
    )
    assert "it returned int" in refusal(**{"class": f"{__name__}.not_a_cluster", "workers": 1})


def test_a_module_that_sets_signal_handlers_is_loaded_where_it_may_and_they_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As dask-jobqueue's; a feeder connects in a thread."""
    text = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\nfrom distributed import LocalCluster\n"
    (tmp_path / "with_signals.py").write_text(text)
    (tmp_path / "broken_module.py").write_text("raise ValueError('no such queue')")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    spec = spec_of(**{**LOCAL, "class": "with_signals.LocalCluster", "workers": 1})
    with closing(open_cluster(ClusterRequest(spec, threads=1, early=True))) as cluster:
        assert cluster.client.submit(sum, [1, 2]).result() == 3
        assert signal.getsignal(signal.SIGINT) is before
    words = refusal(**{"class": "broken_module.C", "workers": 1})
    assert "broken_module.C cannot be imported: ValueError: no such queue. Correct the module" in words


def test_options_that_a_class_refuses_are_told_in_its_own_words():
    words = refusal(**{"class": f"{__name__}.Fixed", "options": {"prot": 1}, "workers": 1})
    assert "Fixed did not start: tried it with prot=1: " in words
    assert "unexpected keyword argument 'prot'" in words
    assert words.endswith("Correct cluster.options")


def test_an_open_scheduler_and_a_cluster_that_cannot_scale_are_refused():
    options = {**LOCAL["options"], "host": "0.0.0.0"}
    assert "is unencrypted and not only on this machine: got tcp://" in refusal(
        **{**LOCAL, "options": options, "workers": 1}
    )
    fixed = {"class": f"{__name__}.Fixed", "options": {"host": "127.0.0.1"}}
    assert "has a fixed set of workers: got workers from 1 to 2. Write their number" in refusal(
        **fixed, workers={"min": 1, "max": 2}
    )


def test_a_queue_that_refuses_jobs_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("dask_jobqueue")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    here = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    options = {"cores": 1, "memory": "1 GiB", "scheduler_options": here}
    words = refusal(**{"class": "dask_jobqueue.SLURMCluster", "options": options, "workers": 2})
    assert "dask_jobqueue.SLURMCluster did not scale: tried from 2 to 2 workers: " in words
    assert "QOSMaxSubmitJobPerUserLimit" in words
    gc.collect()


_may_start = threading.Event()


def late_cluster(**options: Any) -> LocalCluster:
    assert _may_start.wait(60)
    return LocalCluster(**options)


def test_a_feeder_goes_on_while_a_platform_starts_and_the_cluster_that_has_started_is_closed():
    """A trainer may leave meanwhile."""
    spec = spec_of(**{**LOCAL, "class": f"{__name__}.late_cluster", "workers": 1})
    with closing(open_cluster(ClusterRequest(spec, threads=1, early=True))) as cluster:
        cluster.look(waiting=True)
        assert cluster.dask is None
        _may_start.set()
    assert cluster.dask is not None
    assert cluster.dask.connection.client.status == "closed"


def test_a_class_that_gives_no_worker(caplog: pytest.LogCaptureFixture):
    spec = spec_of(**{"class": f"{__name__}.Fixed", "options": {"host": "127.0.0.1"}, "workers": 1, "wait_s": 0.5})
    with (
        closing(open_cluster(ClusterRequest(spec, threads=1))) as cluster,
        pytest.raises(ClusterError, match=r"got none in 0.5 s at tcp://.*Fixed was asked for them: look at its queue"),
    ):
        cluster.check_workers()
    assert "Fixed has 0 workers, by its options: cluster.workers is 1" in caplog.text


def test_a_class_needs_permission_to_run_code():
    text = MINIMAL + "cluster: {class: distributed.LocalCluster, workers: 2}\n"
    with pytest.raises(SpecError, match=r"cluster\.class: runs Python code, which needs `allow_code: true`"):
        parse_spec(text)
    assert parse_spec("allow_code: true\n" + text).cluster.kind == "provider"


ENVIRONMENT = {"MALLOC_ARENA_MAX": 4, "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL"}
PRELOAD = "feedline.service.worker.preload"


def test_the_job_script_of_slurm():
    """As SLURMCluster would hand it to sbatch: the environment first, then the worker, which leaves gracefully."""
    pytest.importorskip("dask_jobqueue")
    options = {
        "cores": 8,
        "processes": 2,
        "memory": "32 GiB",
        "queue": "cpu",
        "worker_extra_args": ["--lifetime", "3h"],
    }
    spec = spec_of(**{"class": "dask_jobqueue.SLURMCluster", "options": options, "workers": {"min": 1, "max": 4}})
    provider = load_provider("dask_jobqueue.SLURMCluster")
    given = provider_options(provider, spec, ENVIRONMENT)
    assert options["worker_extra_args"] == ["--lifetime", "3h"], "the file's own options are not changed"
    from dask_jobqueue.slurm import SLURMJob

    script = SLURMJob(scheduler="tls://10.0.0.1:8786", name="w", **given).job_script()
    assert "#SBATCH -p cpu" in script
    [line] = [line for line in script.splitlines() if line.startswith("/usr/bin/env ")]
    words = "MALLOC_ARENA_MAX=4 NPY_DISABLE_CPU_FEATURES='X86_V4 AVX512_ICL'"
    assert line.startswith(f"/usr/bin/env {words} {sys.executable} -m distributed.cli.dask_worker tls://10.0.0.1:8786 ")
    assert f"--lifetime 3h --preload {PRELOAD} --preload-nanny {PRELOAD}" in line


def test_the_resources_of_kubernetes():
    """Valid by the operator's own schema; the scheduler has the extension, workers the environment."""
    pytest.importorskip("dask_kubernetes")
    import dask_kubernetes.operator
    import jsonschema
    import yaml
    from dask_kubernetes.operator.kubecluster.kubecluster import make_cluster_spec

    spec = spec_of(
        **{
            "class": "dask_kubernetes.operator.KubeCluster",
            "options": {"name": "feed", "image": "feedline:1", "env": {"POLARS_MAX_THREADS": "8"}},
            "workers": {"min": 1, "max": 4},
        }
    )
    given = provider_options(load_provider(str(spec.provider)), spec, {**ENVIRONMENT, "POLARS_MAX_THREADS": 2})
    assert given.pop("quiet")
    made = make_cluster_spec(**given)
    folder = Path(dask_kubernetes.operator.__file__).parent / "customresources"
    templates = yaml.safe_load((folder / "templates.yaml").read_text(encoding="utf-8"))["definitions"]

    def inline(schema: Any) -> Any:
        """The schema without references; those to Kubernetes' own definitions, which the package lacks, allow all."""
        if isinstance(schema, list):
            return [inline(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            name = str(schema["$ref"]).rpartition("/")[2]
            return inline(templates[name]) if name in templates else {}
        return {key: inline(value) for key, value in schema.items()}

    jsonschema.validate(made, inline(templates["dask.k8s.api.v1.DaskCluster"]))
    for role in ("worker", "scheduler"):
        [container] = made["spec"][role]["spec"]["containers"]
        values = {each["name"]: each["value"] for each in container["env"]}
        assert values["MALLOC_ARENA_MAX"] == "4"
        assert values["POLARS_MAX_THREADS"] == "8", "the file's own comes first"
        assert values["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] == "feedline.service.scheduler.preload"
        assert values["DASK_DISTRIBUTED__WORKER__PRELOAD"] == PRELOAD


CLUSTER = """
metadata: {name: feed}
spec:
  worker:
    replicas: 1
    spec:
      containers:
      - name: worker
        args: [dask-worker, --nthreads, "8"]
        env: [{name: MALLOC_ARENA_MAX, value: "1"}, {name: TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}]
      - {name: side, command: [feedline, worker], args: [--threads=3]}
  scheduler:
    spec:
      containers: [{name: scheduler, args: [dask-scheduler]}]
"""


def test_a_whole_cluster_of_kubernetes_gets_the_environment_in_its_containers(tmp_path: Path):
    pytest.importorskip("dask_kubernetes")
    name = "dask_kubernetes.operator.KubeCluster"
    (tmp_path / "cluster.yaml").write_text(CLUSTER)

    def given(file: object) -> Any:
        options = {"custom_cluster_spec": file, "env": {"OPENBLAS_NUM_THREADS": 1}}
        spec = spec_of(**{"class": name, "options": options, "workers": 2})
        return provider_options(load_provider(name), spec, ENVIRONMENT)["custom_cluster_spec"]

    roles = given(str(tmp_path / "cluster.yaml"))["spec"]
    worker, side, scheduler = (
        {each["name"]: each.get("value") for each in container["env"]}
        for role in ("worker", "scheduler")
        for container in roles[role]["spec"]["containers"]
    )
    assert worker == {
        "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL",
        "POLARS_MAX_THREADS": "8",
        "DASK_DISTRIBUTED__WORKER__PRELOAD": PRELOAD,
        "DASK_DISTRIBUTED__NANNY__PRELOAD": PRELOAD,
        "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "feedline.service.scheduler.preload",
        "OPENBLAS_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "1",
        "TOKEN": None,
    }, "its own come first"
    assert side["POLARS_MAX_THREADS"] == "3"
    assert "DASK_DISTRIBUTED__WORKER__PRELOAD" not in side, "`feedline worker` leaves gracefully by itself"
    assert scheduler["DASK_DISTRIBUTED__SCHEDULER__PRELOAD"] == "feedline.service.scheduler.preload"
    with pytest.raises(ClusterError, match=r"custom_cluster_spec /no/file cannot be read: .*Name a YAML file"):
        given("/no/file")
    with pytest.raises(ClusterError, match=r"custom_cluster_spec is no DaskCluster: KeyError: 'spec'"):
        given({"metadata": {"name": "feed"}})


def test_nodes_that_inherit_the_configuration_get_threads_and_certificates():
    """As SSHCluster's: its class takes neither environment nor certificates for them."""
    assert worker_threads({"worker_options": {"nthreads": 4}}) == 4
    assert worker_threads({"cores": 8, "processes": 2}) == 4
    assert worker_threads({"worker_command": "dask-worker --nthreads 3"}) == 3
    assert worker_threads({}) is None
    files = {"ca": "/c/ca.pem", "cert": "/c/worker.pem", "key": "/c/worker.key"}
    config = provider_config(spec_of(**{"class": "distributed.SSHCluster", "workers": 1, "tls": files}))
    with dask.config.set(config):
        for role in ("scheduler", "worker", "client"):
            security = Security().get_tls_config_for_role(role)
            assert (security["ca_file"], security["cert"], security["key"]) == tuple(files.values())
    config = provider_config(spec_of(**{"class": "distributed.SSHCluster", "workers": 1, "tls": "temporary"}))
    assert not any("tls" in name for name in config), "a key would be seen in the arguments of processes"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # it awaits no job's end, and leaves files open
def test_a_job_queue_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """dask-jobqueue's own class for tests: each worker is a process that its script starts, with a key of this run."""
    pytest.importorskip("dask_jobqueue")
    from dask_jobqueue.local import LocalJob

    async def close(_: object, job: str, *__: object) -> None:
        os.kill(int(job), signal.SIGKILL)
        os.waitpid(int(job), 0)

    monkeypatch.setattr(LocalJob, "_close_job", close)
    options = {
        "cores": 1,
        "memory": "1 GiB",
        "scheduler_options": {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"},
        "worker_extra_args": ["--host", "127.0.0.1", "--no-dashboard"],
        "shared_temp_directory": str(tmp_path),
    }
    spec = spec_of(
        **{"class": "dask_jobqueue.local.LocalCluster", "options": options, "workers": 1, "tls": "temporary"}
    )
    with closing(open_cluster(ClusterRequest(spec, threads=1))) as cluster:
        cluster.check_workers()
        environment = cluster.client.submit(lambda name: __import__("os").environ[name], "POLARS_MAX_THREADS").result()
        assert environment == "1"
        assert all(worker.startswith("tls://") for worker in cluster.members())
    del cluster
    gc.collect()  # the files of the key, which it leaves open
