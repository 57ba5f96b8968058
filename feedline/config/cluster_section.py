"""The sections `cluster` and `cluster.tls` of pipeline.yaml: where blocks are computed.

Errors are raised as in `sections`.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator, WithJsonSchema, model_validator

from feedline.config.sections import (
    MAX_INT,
    Count,
    NonEmptyString,
    PathString,
    Section,
    ShortForm,
    rule_error,
    value_error,
)


def _threads(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_INT:
        raise value_error("a number of threads of at least 1, or the word auto")
    return value


def scheduler_address(value: str) -> tuple[str, str, int]:
    """Protocol, host and port of "tcp://host:port" or "tls://host:port"."""
    try:
        parts = urlsplit(value)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or value != f"{parts.scheme}://{parts.netloc}" or "@" in value:
        raise value_error("the address of a Dask scheduler, tcp://host:port or tls://host:port")
    if parts.scheme not in ("tcp", "tls"):
        raise value_error("the address of a Dask scheduler with tcp:// or tls://")
    return parts.scheme, host, port


def is_loopback(host: str) -> bool:
    """Whether the host is this machine's loopback, by its name or address alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _scheduler(value: str) -> str:
    scheduler_address(value)
    return value


Threads = Annotated[
    int | Literal["auto"],
    PlainValidator(_threads),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]}),
]
Scheduler = Annotated[
    str, AfterValidator(_scheduler), WithJsonSchema({"type": "string", "pattern": r"^(tcp|tls)://[^/@?#]+:[0-9]+$"})
]


class TlsSpec(Section):
    """The files of a mutually authenticated connection (PEM)."""

    ca: PathString = Field(description="Certificate of the authority that both sides trust.")
    cert: PathString = Field(description="This side's certificate.")
    key: PathString = Field(description="This side's private key.")

    @property
    def temporary(self) -> bool:
        """Whether the key is generated for a cluster on this machine, without files."""
        return not self.ca


def _tls(value: object) -> object:
    if value == "temporary":
        return TlsSpec.model_construct(ca="", cert="", key="")
    if value is not None and not isinstance(value, dict | TlsSpec):
        raise value_error("a mapping, or the word temporary", "Write `tls: {ca: …, cert: …, key: …}`")
    return value


class WorkersSpec(Section):
    """How many workers there are: from `min` to `max`, or one number, which is both."""

    min: Annotated[int, Field(ge=0, le=MAX_INT)] = Field(default=1, description="The fewest workers (default: 1).")
    max: Count = Field(description="The most workers.")

    @model_validator(mode="after")
    def _consistent(self) -> WorkersSpec:
        if self.min > self.max:
            raise rule_error("min", f"is more than `max`: got {self.min} and {self.max}. Exchange them")
        return self

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one number."""
        return self.min == self.max


def _workers(value: object) -> object:
    if value is None or isinstance(value, dict | WorkersSpec):
        return value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_INT:
        raise value_error("a number of workers of at least 1, or a mapping with the keys min, max")
    return {"min": value, "max": value}


Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AutoscaleSpec(Section):
    """When workers are added and released."""

    wait: Share = Field(default=0.03, description="Share of the time that a trainer may wait for batches.")
    grow_after_s: Seconds = Field(default=5.0, description="Seconds of waiting after which workers are added.")
    shrink_after_s: Seconds = Field(default=60.0, description="Seconds without waiting before workers are released.")


class ClusterSpec(Section):
    """Where blocks are computed: processes or threads of the feeder, or a Dask cluster: on this machine, one by
    address, or one that a class starts."""

    processes: Count | None = Field(
        default=None,
        description="Worker processes of the feeder (default: by its cores).",
    )
    threads: Threads = Field(
        default="auto",
        description="Threads in the feeder's process alone, or in each worker process.",
    )
    workers: Annotated[WorkersSpec | None, ShortForm(_workers, ({"type": "integer", "minimum": 1},))] = Field(
        default=None,
        description="Dask's workers, on this machine or of `class`: a number, or limits within which it follows need.",
    )
    provider: NonEmptyString | None = Field(
        default=None,
        alias="class",
        description="Dask's class of a cluster to start, such as dask_jobqueue.SLURMCluster.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of `class`.")
    autoscale: AutoscaleSpec = Field(
        default=AutoscaleSpec.model_construct(), description="When workers are added and released."
    )
    scheduler: Scheduler | None = Field(default=None, description="Address of a running Dask scheduler.")
    tls: Annotated[TlsSpec | None, ShortForm(_tls, ({"const": "temporary"},))] = Field(
        default=None,
        description="Certificates for a tls:// scheduler; or temporary, for worker processes on this machine.",
    )
    insecure: bool = Field(default=False, description="Allow an unencrypted scheduler that is not on this machine.")
    wait_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=60.0, description="Seconds to wait for a worker before raising an error."
    )
    share: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        default=1.0, description="Weight among the jobs of a scheduler, when they need more threads than there are."
    )
    window: Count | None = Field(default=None, description="Blocks in flight (default: by block time, pace, memory).")
    fork: bool = Field(
        default=True, description="Fork worker processes on this machine; if false, each starts and imports for itself."
    )
    cpu: Literal["native", "x86-64-v3"] | None = Field(
        default=None, description="Instructions numpy may use: those of each processor, or none beyond x86-64-v3."
    )
    dashboard: bool = Field(
        default=True,
        description="Serve the live page, and Dask's dashboard of a cluster that is started, on ports of loopback.",
    )

    @property
    def kind(self) -> Literal["pool", "threads", "processes", "scheduler", "provider"]:
        """Processes of the feeder, threads of it, Dask's workers on this host, a running cluster of Dask's, or one that
        a class starts."""
        if self.scheduler is not None:
            return "scheduler"
        if self.provider is not None:
            return "provider"
        if self.workers is not None:
            return "processes"
        return "pool" if self.threads == "auto" or self.processes is not None else "threads"

    @property
    def is_dask(self) -> bool:
        """Whether Dask's workers compute blocks."""
        return self.kind not in ("pool", "threads")

    @property
    def is_elsewhere(self) -> bool:
        """Whether workers may run on other hosts, whose processors may differ from this one's."""
        return self.kind in ("scheduler", "provider")

    @property
    def most_workers(self) -> int:
        """The most workers of Dask's that are started on this machine; 1 without Dask."""
        return self.workers.max if self.workers is not None and self.kind == "processes" else 1

    @model_validator(mode="after")
    def _consistent(self) -> ClusterSpec:
        if self.processes is not None:
            self._check_processes("processes")
        if not self.fork:
            self._check_processes("fork")
        if self.options and self.provider is None:
            raise rule_error("options", "has no meaning without `class`. Remove it, or name the class")
        if self.scheduler is None:
            self._check_own()
        else:
            self._check_beside_scheduler()
            self._check_security(self.scheduler)
        return self

    def _check_processes(self, key: str) -> None:
        """Whether the feeder has worker processes of its own, of which a key says something."""
        others = {
            "scheduler": (self.scheduler is not None, "workers elsewhere"),
            "class": (self.provider is not None, "workers elsewhere"),
            "workers": (self.workers is not None, "Dask's workers, which import for themselves"),
            "threads": (self.threads != "auto" and self.processes is None, "threads alone"),
        }
        for other, (is_set, reason) in others.items():
            if is_set:
                raise rule_error(key, f"has no meaning with `{other}`, which asks for {reason}. Remove it")

    def _check_beside_scheduler(self) -> None:
        if self.tls is not None and self.tls.temporary:
            reason = "a scheduler by address needs certificates that both sides have"
            raise rule_error("tls", f"`temporary` is for `workers`: {reason}. Write `tls: {{ca: …, cert: …, key: …}}`")
        if "threads" in self.model_fields_set:
            raise rule_error(
                "threads", "contradicts `scheduler`: its workers have their own threads. Remove one of the two"
            )
        if self.workers is not None and self.workers.is_fixed:
            reason = "a running cluster has its own workers"
            remedy = "Remove it, or write what this job may ask for: `workers: {min: …, max: …}`"
            raise rule_error("workers", f"contradicts `scheduler`: {reason}. {remedy}")
        if self.provider is not None:
            raise rule_error("class", "contradicts `scheduler`: it starts a cluster of its own. Remove one of the two")

    def _check_security(self, address: str) -> None:
        protocol, host, _ = scheduler_address(address)
        if protocol == "tls":
            if self.tls is None:
                raise rule_error("scheduler", "tls:// needs certificates. Add `tls: {ca: …, cert: …, key: …}`")
            if self.insecure:
                raise rule_error("insecure", "contradicts tls://, which is always authenticated. Remove it")
        elif self.tls is not None:
            raise rule_error("tls", f"has no meaning with tcp://: got {address!r}. Write tls:// or remove it")
        elif not is_loopback(host) and not self.insecure:
            reason = "Dask's messages are pickle, so anyone who reaches an open port can run code"
            remedy = "Use tls:// with `tls: {ca, cert, key}`, or accept the risk with `insecure: true`"
            raise rule_error("scheduler", f"unencrypted and not on this machine: got {address!r}; {reason}. {remedy}")

    def _check_own(self) -> None:
        if self.share != 1.0:
            reason = "this job has its cluster for itself"
            raise rule_error("share", f"has no meaning without `scheduler`: {reason}. Remove it")
        if self.provider is not None:
            self._check_provider()
            return
        temporary = self.tls is not None and self.tls.temporary
        if temporary and self.workers is None:
            raise rule_error("tls", "`temporary` has no meaning without `workers`: threads listen nowhere. Remove it")
        for key, misplaced in (
            ("tls", self.tls is not None and not temporary),
            ("insecure", self.insecure),
        ):
            if misplaced:
                raise rule_error(key, "has no meaning without `scheduler`. Remove it, or name the scheduler's address")

    def _check_provider(self) -> None:
        if self.workers is None:
            raise rule_error("workers", "is missing beside `class`. Write a number, or `workers: {min: …, max: …}`")
        if "threads" in self.model_fields_set:
            raise rule_error("threads", "contradicts `class`, whose options say what a worker has. Write it there")
        if self.tls is not None and self.insecure:
            raise rule_error("insecure", "contradicts `tls`, with which all is authenticated. Remove one of the two")
