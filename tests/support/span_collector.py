"""A collector of OTLP over HTTP: it keeps the spans that it gets, decoded from their protobuf messages."""

from __future__ import annotations

import contextlib
import gzip
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, and the attributes of the process that sent it."""

    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


@dataclass(frozen=True)
class SpanCollector:
    """Where it listens, the paths that were asked for, and its spans in the order in which they come."""

    url: str
    paths: queue.SimpleQueue[str]
    spans: queue.SimpleQueue[ReceivedSpan]


@contextlib.contextmanager
def span_collector(status: int = 200) -> Iterator[SpanCollector]:
    """Collect spans. status: of its answers."""
    paths, spans = queue.SimpleQueue[str](), queue.SimpleQueue[ReceivedSpan]()

    class Collect(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            paths.put(self.path)
            for span in _spans(body):
                spans.put(span)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collect)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield SpanCollector(f"http://127.0.0.1:{server.server_address[1]}", paths, spans)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(body: bytes) -> Iterator[ReceivedSpan]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    span.name,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _plain(span.attributes),
                    _plain(resource.resource.attributes),
                )


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
