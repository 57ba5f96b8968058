"""Serve a folder as an S3 bucket whose every read takes a while: a slow store for benchmarks, of which all is known."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_BUCKET = "slow"
_KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"}
_DATE = "2026-01-01T00:00:00.000Z"
_LIST = (
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{name}</Name>'
    "<Prefix>{prefix}</Prefix><KeyCount>{count}</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>"
    "{files}{folders}</ListBucketResult>"
)
_FILE = "<Contents><Key>{key}</Key><LastModified>" + _DATE + "</LastModified><ETag>&quot;{tag}&quot;</ETag>"
_SIZE = "<Size>{size}</Size><StorageClass>STANDARD</StorageClass></Contents>"


@dataclass(slots=True)
class SlowStore:
    """The store while it is served. uri: of the folder. latency_s: that each ranged read waits; it may be changed."""

    uri: str
    latency_s: float
    reads: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def slow_store(folder: Path, latency_s: float) -> Iterator[SlowStore]:
    """Serve the files below a folder, read-only, on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    port = server.server_address[1]
    query = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
    before = {name: os.environ.get(name) for name in _KEYS}
    os.environ |= _KEYS
    server.folder = folder  # type: ignore[attr-defined]
    server.store = store = SlowStore(uri=f"s3://{_BUCKET}/table?{query}", latency_s=latency_s)  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class _Handler(BaseHTTPRequestHandler):
    """Answers HEAD, GET of ranges, and lists. The server has the folder."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def _folder(self) -> Path:
        folder: Path = self.server.folder  # type: ignore[attr-defined]
        return folder

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path.strip("/") == _BUCKET:
            self._list(parse_qs(parts.query).get("prefix", [""])[0], "delimiter" in parts.query)
        else:
            self._answer(body=True)

    def _file(self) -> Path:
        key = unquote(urlsplit(self.path).path).removeprefix(f"/{_BUCKET}/").removeprefix("table").strip("/")
        return self._folder / key

    def _answer(self, *, body: bool) -> None:
        path = self._file()
        if not path.is_file():
            self._send(404, b"")
            return
        size, status, headers = path.stat().st_size, 200, {}
        start, stop = 0, size
        if (span := self.headers.get("Range")) is not None:
            first, _, last = span.removeprefix("bytes=").partition("-")
            start, stop, status = int(first), min(int(last or size - 1) + 1, size), 206
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
            store: SlowStore = self.server.store  # type: ignore[attr-defined]
            with store.lock:
                store.reads += 1
            time.sleep(store.latency_s)
        headers |= {
            "ETag": f'"{size:x}"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Accept-Ranges": "bytes",
        }
        with path.open("rb") as file:  # no more than the range: a large file would take longer than the latency
            file.seek(start)
            self._send(status, file.read(stop - start) if body else b"", headers, nbytes=stop - start)

    def _list(self, prefix: str, flat: bool) -> None:
        paths = [path for path in self._folder.rglob("*") if path.is_file()]
        keys = sorted(f"table/{path.relative_to(self._folder).as_posix()}" for path in paths)
        keys = [key for key in keys if key.startswith(prefix)]
        here = [key for key in keys if not flat or "/" not in key[len(prefix) :]]
        below = sorted({prefix + key[len(prefix) :].split("/")[0] + "/" for key in set(keys) - set(here)})
        files = "".join(
            (_FILE + _SIZE).format(key=escape(key), tag=f"{(size := self._size(key)):x}", size=size) for key in here
        )
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in below)
        text = _LIST.format(
            name=_BUCKET, prefix=escape(prefix), count=len(here) + len(below), files=files, folders=folders
        )
        self._send(200, text.encode(), {"Content-Type": "application/xml"})

    def _size(self, key: str) -> int:
        return (self._folder / key.removeprefix("table/")).stat().st_size

    def _send(
        self, status: int, content: bytes, headers: dict[str, str] | None = None, *, nbytes: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content) if nbytes is None else nbytes))
        self.end_headers()
        self.wfile.write(content)
