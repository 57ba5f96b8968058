"""Start a cluster of a Dask class, for a pipeline with `cluster.class`: Kubernetes, Slurm, SSH, or one's own.

Runs in: the feeder. The class gets `cluster.options`, and what Feedline's workers need where it has a place for it:
environment variables, a preload that ends blocks before a worker leaves, certificates. The number of workers is its
`scale`, or its `adapt`, which follows our extension of the scheduler.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import logging
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import yaml
from distributed import Scheduler, SpecCluster
from distributed.deploy.cluster import Cluster as DaskDeployment

from feedline.config.cluster_section import ClusterSpec, is_loopback
from feedline.errors import ClusterError
from feedline.service.certificates import security_of
from feedline.service.cluster.local_cluster import temporary_security
from feedline.service.dask_patches.deployments import forget_unstarted, has_fixed_workers
from feedline.service.scheduler.extension import install

logger = logging.getLogger(__name__)

_WORKER_PRELOAD = "feedline.service.worker.preload"
_SCHEDULER_PRELOAD = "feedline.service.scheduler.preload"
_SHOWN_CHARACTERS = 2000
_CLOSE_S = 5.0


def provider_config(spec: ClusterSpec) -> dict[str, Any]:
    """Dask's configuration for nodes that inherit this process's (SSHCluster, LocalCluster): preloads, certificates."""
    config: dict[str, Any] = {
        "distributed.worker.preload": [_WORKER_PRELOAD],
        "distributed.nanny.preload": [_WORKER_PRELOAD],
        "distributed.scheduler.preload": [_SCHEDULER_PRELOAD],
    }
    tls = spec.tls
    if tls is not None and not tls.temporary:  # whose key would be seen in the arguments of processes
        config |= {"distributed.comm.default-scheme": "tls", "distributed.comm.require-encryption": True}
        config["distributed.comm.tls.ca-file"] = tls.ca
        for role in ("client", "worker", "scheduler"):
            config |= {f"distributed.comm.tls.{role}.{part}": getattr(tls, part) for part in ("cert", "key")}
    return config


def start_provider(spec: ClusterSpec, environment: Mapping[str, object], *, elastic: bool) -> DaskDeployment:
    """A cluster of `spec.provider`, with the workers of `spec.workers`. environment: of its workers. elastic: whether
    their number follows what feeders report to the scheduler.

    Raises ClusterError: the class cannot be imported, is none of a cluster, refuses its options, or listens openly.
    """
    name = str(spec.provider)
    provider = load_provider(name)
    options = provider_options(provider, spec, environment)
    try:
        cluster = provider(**options)
    except Exception as error:
        shown = ", ".join(f"{key}={value!r}" for key, value in spec.options.items()) or "no options"
        raise ClusterError(
            f"cluster.class: {name} did not start: tried it with {shown}: {_words(error)}. Correct cluster.options"
        ) from error
    if not isinstance(cluster, DaskDeployment):
        raise _no_cluster(name, f"it returned {type(cluster).__name__}")
    loop_logger = logging.getLogger("tornado.application")
    loop_logger.addFilter(_drop)  # where Dask's loop logs the error of a start that is raised here
    try:
        _refuse_open(name, cluster, spec)
        deployment: Any = cluster
        if isinstance(scheduler := getattr(deployment, "scheduler", None), Scheduler):  # else it has its preload
            deployment.loop.add_callback(install, scheduler)
        _scale(name, cluster, spec, elastic=elastic)
    except BaseException:
        close_provider(cluster, _CLOSE_S)
        raise
    finally:
        loop_logger.removeFilter(_drop)
    return cluster


def _drop(_: logging.LogRecord) -> bool:
    return False


def close_provider(cluster: Any, timeout_s: float) -> None:
    """Close a cluster within a time. What its platform refuses then is logged: the run has ended, with its own error or
    without."""
    forget_unstarted(cluster)
    try:
        cluster.close(timeout=timeout_s)
    except (TimeoutError, OSError):
        pass
    except Exception as error:
        logger.warning("the Dask cluster did not close: %s. Look for what is left on its platform", _words(error))


def load_provider(name: str) -> Callable[..., Any]:
    """The class, or function that returns a cluster, at "module.Name". Raises ClusterError.

    Modules that set signal handlers when they are imported, as dask-jobqueue does, must be loaded in the main thread;
    the handlers stay as they were.
    """
    module, _, attribute = name.rpartition(".")
    try:
        provider = getattr(_import_module(module), attribute) if module else None
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise ClusterError(
            f"cluster.class: {name} cannot be imported: {error}. Install it (pip install {package}), or correct the "
            "name"
        ) from error
    except AttributeError:
        raise ClusterError(f"cluster.class: the module {module} has no {attribute!r}. Correct the name") from None
    except Exception as error:
        raise ClusterError(f"cluster.class: {name} cannot be imported: {_words(error)}. Correct the module") from error
    if provider is None:
        raise ClusterError(f"cluster.class: got {name!r}, expected module.Name, such as distributed.LocalCluster")
    if not callable(provider) or (inspect.isclass(provider) and not issubclass(provider, DaskDeployment)):
        kind = f"the class {provider.__name__}" if inspect.isclass(provider) else f"a {type(provider).__name__}"
        raise _no_cluster(name, f"it is {kind}")
    made: Callable[..., Any] = provider
    return made


def _import_module(name: str) -> Any:
    if threading.current_thread() is not threading.main_thread():
        return importlib.import_module(name)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return importlib.import_module(name)
    finally:
        for number, handler in handlers.items():
            if handler is not None:  # None: one that Python did not set
                signal.signal(number, handler)


def provider_options(
    provider: Callable[..., Any], spec: ClusterSpec, environment: Mapping[str, object]
) -> dict[str, Any]:
    """`cluster.options`, with our environment, preloads and certificates where the class has a place for them; the
    options of the file come first."""
    options = dict(spec.options)
    values = {key: str(value) for key, value in environment.items()}
    module = " ".join(parent.__module__ for parent in inspect.getmro(provider)) if inspect.isclass(provider) else ""
    if "dask_jobqueue" in module:
        # A shell's line, or a list of words: the words of `env` work in both.
        words = " ".join(f"{key}={shlex.quote(value)}" for key, value in values.items())
        options["python"] = f"/usr/bin/env {words} {options.get('python') or sys.executable}"
        options["worker_extra_args"] = [*options.get("worker_extra_args", ()), "--preload", _WORKER_PRELOAD]
        options["worker_extra_args"] += ["--preload-nanny", _WORKER_PRELOAD]
    elif "dask_kubernetes" in module:
        given = options.get("env") or {}
        if (cluster := _cluster_of_kubernetes(options)) is not None:  # which the class takes as it is
            options["custom_cluster_spec"] = _with_environment(cluster, values, given)
        elif isinstance(given, Mapping):
            options["env"] = {**values, **_KUBERNETES_PRELOADS, **given}
        else:
            # Of two values, Kubernetes takes the last one.
            options["env"] = [*_variables({**values, **_KUBERNETES_PRELOADS}), *given]
        assert spec.workers is not None
        options.setdefault("n_workers", max(1, spec.workers.min))
        options.setdefault("quiet", True)  # its progress would be drawn on standard output, where reports go
    if spec.tls is not None and _accepts(provider, "security"):
        security = temporary_security() if spec.tls.temporary else security_of(spec.tls, listens=True)
        options.setdefault("security", security)
    return options


_KUBERNETES_PRELOADS = {
    "DASK_DISTRIBUTED__WORKER__PRELOAD": _WORKER_PRELOAD,
    "DASK_DISTRIBUTED__NANNY__PRELOAD": _WORKER_PRELOAD,
    "DASK_DISTRIBUTED__SCHEDULER__PRELOAD": _SCHEDULER_PRELOAD,
}


def _variables(values: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def _cluster_of_kubernetes(options: Mapping[str, Any]) -> Any:
    """The whole DaskCluster that the options, or Dask's configuration, give or name a file of; else None. Raises
    ClusterError for a file that cannot be read."""
    given = options.get("custom_cluster_spec") or dask.config.get("kubernetes.custom-cluster-spec", None)
    if not isinstance(given, str):
        return given
    try:
        return yaml.safe_load(Path(given).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ClusterError(
            f"cluster.options.custom_cluster_spec {given} cannot be read: {error}. Name a YAML file with one "
            "DaskCluster"
        ) from error


def _with_environment(cluster: Any, values: Mapping[str, str], given: Any) -> Any:
    """A DaskCluster whose containers have our variables, then those of the option `env`; their own come first. Raises
    ClusterError for what is no DaskCluster."""
    cluster = copy.deepcopy(cluster)
    option = _variables({name: str(value) for name, value in given.items()}) if isinstance(given, Mapping) else given
    try:
        for role in ("worker", "scheduler"):
            for container in cluster["spec"][role]["spec"]["containers"]:
                words = [str(word) for part in ("command", "args") for word in container.get(part) or ()]
                ours = dict(values)
                if "feedline" not in (Path(word).name for word in words[:2]):  # which needs no preload
                    ours |= _KUBERNETES_PRELOADS
                if role == "worker" and (threads := _threads_in(words)) is not None:
                    ours.setdefault("POLARS_MAX_THREADS", threads)
                own = container.get("env") or []
                names = {each["name"] for each in own}
                added = {each["name"]: each for each in [*_variables(ours), *option] if each["name"] not in names}
                container["env"] = [*added.values(), *own]
    except (KeyError, TypeError, AttributeError) as error:
        raise ClusterError(
            f"cluster.options.custom_cluster_spec is no DaskCluster: {type(error).__name__}: {error}, expected "
            "containers at spec.worker.spec and spec.scheduler.spec. Correct it"
        ) from error
    return cluster


def _threads_in(words: Sequence[str]) -> str | None:
    """The threads that a worker's command names; None if it does not."""
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name in ("--nthreads", "--threads") and (value if equals else following).isdigit():
            return value if equals else following
    return None


def worker_threads(options: Mapping[str, Any]) -> int | None:
    """The threads of a worker, by the usual options; None if they do not say."""
    command = options.get("worker_command") or ()
    if (named := _threads_in(command.split() if isinstance(command, str) else command)) is not None:
        return int(named)
    nested = options.get("worker_options")
    for source in (options, nested if isinstance(nested, Mapping) else {}):
        for key in ("threads_per_worker", "nthreads"):
            if isinstance(source.get(key), int):
                return int(source[key])
    cores = options.get("cores")
    return max(1, cores // int(options.get("processes") or 1)) if isinstance(cores, int) else None


def _accepts(provider: Callable[..., Any], name: str) -> bool:
    """Whether a class or one of its bases names a parameter; a function that passes others on accepts it."""
    if not inspect.isclass(provider):
        parameters = inspect.signature(provider).parameters
        return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return any(
        name in inspect.signature(vars(parent)["__init__"]).parameters
        for parent in inspect.getmro(provider)
        if "__init__" in vars(parent) and parent is not object
    )


def _refuse_open(name: str, cluster: Any, spec: ClusterSpec) -> None:
    """Refuse a scheduler that listens beyond this machine without TLS, unless that is allowed."""
    address = str(cluster.scheduler_address)
    protocol, _, rest = address.partition("://")
    host = rest.rpartition(":")[0].strip("[]")
    if spec.insecure or protocol in ("tls", "inproc") or is_loopback(host):
        return
    raise ClusterError(
        f"cluster.class: the scheduler of {name} is unencrypted and not only on this machine: got {address}. Dask's "
        "messages are pickle, so anyone who reaches an open port can run code. Use `tls: {ca, cert, key}` or `tls: "
        "temporary` with a class that takes certificates, or accept the risk with `insecure: true`"
    )


def _scale(name: str, cluster: Any, spec: ClusterSpec, *, elastic: bool) -> None:
    workers = spec.workers
    assert workers is not None
    if has_fixed_workers(cluster):
        if not workers.is_fixed:
            raise ClusterError(
                f"cluster.class: {name} has a fixed set of workers: got workers from {workers.min} to {workers.max}. "
                "Write their number"
            )
        _compare_fixed(name, cluster, spec)
        return
    try:
        if workers.is_fixed or not elastic:
            _scale_to(cluster, workers.max, spec.wait_s)
            return
        _scale_to(cluster, max(1, workers.min), spec.wait_s)
        cluster.adapt(minimum=workers.min, maximum=workers.max)
    except Exception as error:
        raise ClusterError(
            f"cluster.class: {name} did not scale: tried from {workers.min} to {workers.max} workers: {_words(error)}"
        ) from error


def _compare_fixed(name: str, cluster: Any, spec: ClusterSpec) -> None:
    """Say where a fixed set of workers, such as one for each host of SSHCluster, is not the number of the spec."""
    nodes = getattr(cluster, "worker_spec", None)
    nested = spec.options.get("worker_options")
    each = nested.get("n_workers", 1) if isinstance(nested, Mapping) else 1
    assert spec.workers is not None
    if nodes is not None and isinstance(each, int) and len(nodes) * each != spec.workers.max:
        logger.warning(
            "cluster.class: %s has %d workers, by its options: cluster.workers is %d",
            name,
            len(nodes) * each,
            spec.workers.max,
        )


def _scale_to(cluster: Any, workers: int, wait_s: float) -> None:
    """Have so many workers. Raises what keeps a `SpecCluster` from starting them, such as a queue's refusal, which it
    would else only log; a start that takes longer than `wait_s` goes on."""
    if not isinstance(cluster, SpecCluster):
        cluster.scale(workers)
        return

    async def scale() -> None:
        cluster.scale(workers)
        await cluster

    with contextlib.suppress(TimeoutError):
        cluster.sync(scale, callback_timeout=wait_s)


def _no_cluster(name: str, why: str) -> ClusterError:
    return ClusterError(
        f"cluster.class: {name} is no class of Dask clusters: {why}, expected a distributed.deploy.Cluster. Correct "
        "the name"
    )


def _words(error: BaseException) -> str:
    """The error's own words, and those of what caused it."""
    words = f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error.__context__
    while cause is not None and cause is not error:
        if str(cause) and str(cause) not in words:
            words += f" ({type(cause).__name__}: {cause})"
        cause = cause.__cause__ or cause.__context__
    return words if len(words) <= _SHOWN_CHARACTERS else f"{words[:_SHOWN_CHARACTERS]} …"
