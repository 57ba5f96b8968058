"""Send a span for a sample of the blocks to an OpenTelemetry collector, by OTLP over HTTP.

Runs in: feeders with `traces`: nothing else imports this module, which needs the extra `otel`. A thread of
OpenTelemetry's sends spans in batches, and drops those that find no room; a collector that is slow, away or wrong is
logged once and delays nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased

from feedline.config.monitoring_section import TracesSpec
from feedline.service.monitoring.finished_block import FinishedBlock
from feedline.version import VERSION
from feedline.warehouse.storage.locations import redact

logger = logging.getLogger("feedline.traces")

# The end of a feeder waits so long for its last spans.
_LAST_S = 2.0
_REQUEST_S = 5.0


class BlockSpans:
    """Spans of one feeder's blocks. job: as in its metrics. feeder: unique per process."""

    def __init__(self, spec: TracesSpec, *, job: str, feeder: str, delay_ms: float | None = None) -> None:
        attributes = {"service.version": VERSION, "service.instance.id": feeder, "feedline.pipeline": job}
        if "OTEL_SERVICE_NAME" not in os.environ:
            attributes[SERVICE_NAME] = "feedline"
        exporter = _OnceComplaining(OTLPSpanExporter(endpoint=_traces_url(spec.endpoint), timeout=_REQUEST_S))
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(spec.sample), resource=Resource.create(attributes), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=delay_ms))
        self._tracer = self._provider.get_tracer("feedline", VERSION)

    def add(self, block: FinishedBlock) -> None:
        """Record a block, if it is of the sample."""
        offset_s = time.time() - time.monotonic()
        start, end = (int((moment_s + offset_s) * 1e9) for moment_s in (block.submitted_s, block.arrived_s))
        span = self._tracer.start_span("feedline.block", start_time=start)
        if span.is_recording():
            span.set_attributes(block.attributes())
        span.end(end_time=end)

    def close(self) -> None:
        """Send what waits, for at most 2 s."""
        thread = threading.Thread(target=self._provider.shutdown, name="feedline-traces", daemon=True)
        thread.start()
        thread.join(_LAST_S)


def _traces_url(endpoint: str | None) -> str | None:
    """The URL of traces at a collector; None leaves it to OpenTelemetry's own variables."""
    if endpoint is None or urlsplit(endpoint).path not in ("", "/"):
        return endpoint
    return f"{endpoint.rstrip('/')}/v1/traces"


class _OnceComplaining(SpanExporter):
    """Says once that spans cannot be sent, and once that they are again."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._has_failed = False
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it says so with every batch

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # whatever a collector or a proxy answers
            logger.debug("spans could not be sent: %s", error)
            result = SpanExportResult.FAILURE
        failed = result is not SpanExportResult.SUCCESS
        if failed != self._has_failed:
            address = redact(self._exporter._endpoint)
            if failed:
                logger.warning("spans cannot be sent to %s: those of the time until it answers are dropped", address)
            else:
                logger.warning("spans are sent to %s again", address)
        self._has_failed = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
