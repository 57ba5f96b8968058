"""Define the keys `metrics` and `traces`: where processes serve their metrics, and where spans of blocks are sent.

Runs in: every process that reads a pipeline.yaml, and the commands `scheduler` and `worker`. Pure: nothing listens or
connects here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from feedline.config.cache_section import LOCAL_PATH
from feedline.config.sections import STRING, URI, PathString, Section, path_or_off, value_error

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s/:\[\]]+):([0-9]{1,5})")
_FORM = "HOST:PORT, the path of a folder, or a mapping with the keys listen, dir"
_TRACES = "the URL of an OTLP collector, http://host:port, or a mapping with the keys endpoint, sample"
# Port 0: a free one, which the log and the target file name.
ANY_PORT = "127.0.0.1:0"


def is_address(value: str) -> bool:
    """Whether a value of `metrics` is an address: anything else is a folder."""
    return _ADDRESS.fullmatch(value) is not None


def _listen(value: str) -> str:
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match[2]) > 65535:
        raise value_error("HOST:PORT with a port up to 65535", "127.0.0.1:0 is a free port of this machine")
    return value


def _folder(value: str) -> str:
    if URI.match(value):
        raise value_error("the path of a local or mounted folder", "Prometheus reads the targets there as files")
    return value


class MetricsSpec(Section):
    """Where a process serves its metrics, and where its target file for Prometheus is written."""

    listen: Annotated[
        str,
        AfterValidator(_listen),
        WithJsonSchema({"type": "string", "pattern": f"^{_ADDRESS.pattern}$"}),
    ] = Field(default=ANY_PORT, description="Address to serve /metrics at; port 0 is a free one.")
    folder: Annotated[PathString, AfterValidator(_folder), WithJsonSchema(LOCAL_PATH)] | None = Field(
        default=None, alias="dir", description="Folder of target files for Prometheus' file_sd (default: none)."
    )

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def refused_with(self, feeder: str) -> str | None:
        """Why it contradicts `feeder`; None: it does not."""
        if feeder == "host" or self.address[1] == 0:
            return None
        remedy = "Name a folder, where each listens on a free port, or write port 0, or leave `feeder: rank` out"
        return f"one port is not enough for a feeder of each rank: got {self.listen!r} with `feeder: rank`. {remedy}"


def _endpoint(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_url = bool(parts.hostname) and parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        raise value_error("the URL of an OTLP collector, http://host:port or https://host:port")
    return value


class TracesSpec(Section):
    """Where the spans of blocks are sent, and of how many blocks."""

    endpoint: (
        Annotated[
            str, AfterValidator(_endpoint), WithJsonSchema({"type": "string", "pattern": r"^https?://[^\s/]+\S*$"})
        ]
        | None
    ) = Field(default=None, description="URL of an OTLP collector (default: of OTEL_EXPORTER_OTLP_ENDPOINT).")
    sample: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = Field(
        default=0.01, description="Share of the blocks of which spans are sent."
    )


Metrics = Annotated[
    MetricsSpec | None, path_or_off(lambda value: "listen" if is_address(value) else "dir", _FORM, STRING)
]
Traces = Annotated[TracesSpec | None, path_or_off(lambda value: "endpoint", _TRACES, STRING)]


def without_unset(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a pipeline.yaml without these keys where they are unset: texts are equal to those of before."""
    return {key: value for key, value in content.items() if value is not None or key not in ("metrics", "traces")}
