"""An S3 store with faults: a real S3 server in a process of its own, behind a proxy that injects faults.

The proxy speaks plain HTTP/1.1, counts every request, and applies a `Fault` to those that match, as often as it says.
All bodies together pass at `bytes_per_s`, if that is set, which those under way share.
"""

from __future__ import annotations

import http.client
import re
import select
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "a-secret/that+nobody=may-see",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
}
ALWAYS = 10**9
_PIECE = 2**16  # of a body
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{0}</Code><Message>{1}</Message></Error>'
_ANSWERS = {
    "slow_down": (503, "SlowDown", "Please reduce your request rate."),
    "server_error": (500, "InternalError", "We encountered an internal error. Please try again."),
    "denied": (403, "AccessDenied", "Access Denied"),
    "missing": (404, "NoSuchKey", "The specified key does not exist."),
    "no_bucket": (404, "NoSuchBucket", "The specified bucket does not exist"),
    "bad_key": (403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
}


@dataclass(frozen=True)
class Request:
    """A request as the proxy saw it; `bytes`: of the body of the answer."""

    method: str
    path: str
    range: str
    bytes: int = 0


@dataclass
class Fault:
    """A fault of matching requests, `times` times after the first `after` of them.

    `kind`: an error answer by name (see `_ANSWERS`), or delay, hang, reset, reset_body, truncated, short,
    damaged. `truncated` announces the whole body and sends half; `short` announces and sends half; `damaged` sends
    other bytes at the beginning.
    """

    kind: str
    path: str = ""
    method: str = "GET|HEAD|PUT|POST"
    ranged: bool | None = None
    times: int = 1
    after: int = 0
    seconds: float = 0.0
    met: int = field(default=0, init=False)

    def spoils(self, request: Request) -> bool:
        if not re.fullmatch(self.method, request.method) or not re.search(self.path, request.path):
            return False
        if self.ranged is not None and self.ranged != bool(request.range):
            return False
        self.met += 1
        return self.after < self.met <= self.after + self.times


class Store:
    """The proxy as tests use it: its address, the requests it saw, and its current faults."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.bytes_per_s: float | None = None
        self._free_s = 0.0  # when all that was let pass has passed
        self.lock = threading.Lock()
        self.ending = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.store = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def uri(self, path: str, **options: str) -> str:
        """Return the URI of `bucket/key…` behind this proxy."""
        query = {"endpoint_override": self.address, "scheme": "http", "region": "us-east-1", **options}
        return f"s3://{path}?" + "&".join(f"{key}={value}" for key, value in query.items())

    def answer(self, kind: str) -> tuple[int, list[tuple[str, str]], bytes] | None:
        """Status, headers and body of a kind of fault that is an answer."""
        if kind not in _ANSWERS:
            return None
        status, code, message = _ANSWERS[kind]
        return status, [("Content-Type", "application/xml")], _ERROR.format(code, message).encode()

    def fault(self, kind: str, path: str = "", **options: object) -> Fault:
        made = Fault(kind, path, **options)
        with self.lock:
            self.faults.append(made)
        return made

    def forget(self) -> None:
        """Remove all faults and recorded requests."""
        with self.lock:
            self.faults.clear()
            self.requests.clear()

    def met(self) -> list[tuple[int, int]]:
        """How often each fault was met by a request, and how often it had to be for all its times."""
        with self.lock:
            return [(fault.met, fault.after + fault.times) for fault in self.faults]

    def counts(self, path: str = "") -> Counter[str]:
        """Count requests whose path matches, by method; GETs of a part of an object count as "range"."""
        with self.lock:
            seen = [request for request in self.requests if re.search(path, request.path)]
        return Counter("range" if request.range and request.method == "GET" else request.method for request in seen)

    def let_pass(self, nbytes: int) -> None:
        """Wait until bytes have passed after those before them."""
        if self.bytes_per_s is None:
            return
        with self.lock:
            self._free_s = max(self._free_s, time.monotonic()) + nbytes / self.bytes_per_s
            wait_s = self._free_s - time.monotonic()
        self.ending.wait(wait_s)

    def close(self) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    store: Store

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class _Handler(socketserver.BaseRequestHandler):
    server: _Server
    request: socket.socket

    def setup(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def handle(self) -> None:
        store = self.server.store
        upstream = http.client.HTTPConnection("127.0.0.1", store.upstream, timeout=30)
        reader = self.request.makefile("rb")
        try:
            while self._readable() and self._one(reader, upstream):
                pass
        finally:
            upstream.close()
            reader.close()

    def _readable(self) -> bool:
        while not self.server.store.ending.is_set():
            if select.select([self.request], [], [], 0.05)[0]:
                return True
        return False

    def _one(self, reader: BinaryIO, upstream: http.client.HTTPConnection) -> bool:
        """Answer one request; return whether the connection stays open."""
        line = reader.readline()
        if not line:
            return False
        method, path, _ = line.decode("latin-1").split(" ", 2)
        headers = http.client.parse_headers(reader)
        chunked, length = "chunked" in headers.get("Transfer-Encoding", ""), int(headers.get("Content-Length", 0))
        # None where nothing is sent: Azure's client (of pyarrow 26) ends the process, or hangs, when it reads this line
        # and the answer at once.
        if headers.get("Expect", "").lower() == "100-continue" and (chunked or length):
            self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = _chunks(reader) if chunked else reader.read(length)
        request = Request(method, path, headers.get("Range") or headers.get("x-ms-range", ""))
        store = self.server.store
        with store.lock:
            fault = next((fault for fault in store.faults if fault.spoils(request)), None)
        kind = fault.kind if fault else ""
        if (answered := store.answer(kind)) is not None:
            status, fields, content = answered
            if method == "HEAD":
                fields, content = [each for each in fields if each[0] != "Content-Type"], b""
            self._note(request, 0)
            return self._send(status, fields, content, len(content))
        if kind in ("hang", "delay"):
            store.ending.wait(fault.seconds)
        if kind in ("hang", "reset"):
            self._note(request, 0)
            return self._reset()
        kept = {
            key: value
            for key, value in headers.items()
            if key.lower() not in ("expect", "connection", "transfer-encoding", "content-length")
        }
        upstream.request(method, path, body, kept)
        answer = upstream.getresponse()
        content = answer.read()
        self._note(request, len(content))
        promised = int(answer.headers.get("Content-Length", len(content)))
        here, there = store.address, f"127.0.0.1:{store.upstream}"
        fields = [(k, v.replace(there, here)) for k, v in answer.getheaders() if k.lower() not in _HOP]  # `Location`
        if kind == "short":
            content = content[: len(content) // 2]
            return self._send(answer.status, fields, content, len(content))
        if kind in ("reset_body", "truncated"):
            self._send(answer.status, fields, content[: len(content) // 2], promised)
            return self._reset() if kind == "reset_body" else False
        if kind == "damaged":
            content = bytes(byte ^ 0xFF for byte in content[:64]) + content[64:]
        return self._send(answer.status, fields, content, promised)

    def _note(self, request: Request, size: int) -> None:
        with self.server.store.lock:
            self.server.store.requests.append(Request(request.method, request.path, request.range, size))

    def _send(self, status: int, fields: list[tuple[str, str]], content: bytes, promised: int) -> bool:
        lines = [f"HTTP/1.1 {status} {http.client.responses.get(status, '')}"]
        lines += [f"{key}: {value}" for key, value in fields] + [f"Content-Length: {promised}", "", ""]
        self.request.sendall("\r\n".join(lines).encode("latin-1"))
        for start in range(0, len(content), _PIECE):
            self.server.store.let_pass(len(piece := content[start : start + _PIECE]))
            self.request.sendall(piece)
        return True

    def _reset(self) -> bool:
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends RST
        self.request.close()
        return False


def _chunks(reader: BinaryIO) -> bytes:
    """Read a whole chunked body."""
    body = b""
    while size := int(reader.readline().split(b";")[0], 16):
        body += reader.read(size)
        reader.readline()
    while reader.readline().strip():
        pass
    return body


_HOP = ("content-length", "connection", "transfer-encoding", "keep-alive", "server")


@contextmanager
def s3_server() -> Iterator[int]:
    """Run a real S3 server during a block; yields its port."""
    command = [sys.executable, str(Path(__file__).with_name("s3_server.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(30)


def put(port: int, path: str, content: bytes = b"") -> None:
    """Create a bucket (`bucket`) or an object (`bucket/key`), bypassing all proxies."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(
            "PUT",
            "/" + path,
            content,
            {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/x/us-east-1/s3/aws4_request"},
        )
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
    finally:
        connection.close()


def put_folder(port: int, bucket: str, folder: Path) -> None:
    """Create a bucket with the files of a local folder, below the folder's name."""
    put(port, bucket)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            put(port, f"{bucket}/{path.relative_to(folder.parent)}", path.read_bytes())
