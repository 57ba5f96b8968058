"""The sections `cluster` and `cluster.tls` of pipeline.yaml: where blocks are computed.

Errors are raised as in `sections`.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema, model_validator

from feedline.spec.sections import MAX_INT, Count, PathString, Section, rule_error, value_error


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


class ClusterSpec(Section):
    """Where blocks are computed: threads in the feeder, processes on this machine, or a Dask cluster by address."""

    threads: Threads = Field(default="auto", description="Threads in the feeder's process, or in each worker process.")
    workers: Count | None = Field(
        default=None, description="Worker processes on this machine, instead of threads in the feeder."
    )
    scheduler: Scheduler | None = Field(default=None, description="Address of a running Dask scheduler.")
    tls: Annotated[TlsSpec | None, BeforeValidator(_tls)] = Field(
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
    cpu: Literal["native", "x86-64-v3"] | None = Field(
        default=None, description="Instructions numpy may use: those of each processor, or none beyond x86-64-v3."
    )
    dashboard: bool = Field(default=True, description="Serve Dask's dashboard on a port of loopback.")

    @model_validator(mode="after")
    def _consistent(self) -> ClusterSpec:
        if self.scheduler is None:
            self._check_local()
            return self
        if not self.dashboard:
            raise rule_error("dashboard", "has no meaning with `scheduler`, whose pages are its own. Remove it")
        if self.tls is not None and self.tls.temporary:
            reason = "a scheduler by address needs certificates that both sides have"
            raise rule_error("tls", f"`temporary` is for `workers`: {reason}. Write `tls: {{ca: …, cert: …, key: …}}`")
        for key in ("threads", "workers"):
            if key in self.model_fields_set and getattr(self, key) is not None:
                raise rule_error(
                    key, "contradicts `scheduler`: its workers have their own threads. Remove one of the two"
                )
        protocol, host, _ = scheduler_address(self.scheduler)
        if protocol == "tls":
            if self.tls is None:
                raise rule_error("scheduler", "tls:// needs certificates. Add `tls: {ca: …, cert: …, key: …}`")
            if self.insecure:
                raise rule_error("insecure", "contradicts tls://, which is always authenticated. Remove it")
        elif self.tls is not None:
            raise rule_error("tls", f"has no meaning with tcp://: got {self.scheduler!r}. Write tls:// or remove it")
        elif not is_loopback(host) and not self.insecure:
            reason = "Dask's messages are pickle, so anyone who reaches an open port can run code"
            remedy = "Use tls:// with `tls: {ca, cert, key}`, or accept the risk with `insecure: true`"
            raise rule_error(
                "scheduler", f"unencrypted and not on this machine: got {self.scheduler!r}; {reason}. {remedy}"
            )
        return self

    def _check_local(self) -> None:
        """Check the keys of a cluster that the feeder starts."""
        temporary = self.tls is not None and self.tls.temporary
        if temporary and self.workers is None:
            raise rule_error("tls", "`temporary` has no meaning without `workers`: threads listen nowhere. Remove it")
        for key, misplaced in (
            ("tls", self.tls is not None and not temporary),
            ("insecure", self.insecure),
            ("share", self.share != 1.0),
        ):
            if misplaced:
                raise rule_error(key, "has no meaning without `scheduler`. Remove it, or name the scheduler's address")
