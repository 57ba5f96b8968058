"""Proxies of stores with faults, as `s3_store` has one for S3, for other protocols; and a process that runs them."""

from __future__ import annotations

import json
from multiprocessing.managers import BaseManager

from s3_store import Store

AZURE_ACCOUNT = "devstoreaccount1"  # of every Azurite


class AzureStore(Store):
    """A proxy before a server of Azure's blobs."""

    def uri(self, path: str, **options: str) -> str:
        """The URI of `container/path…` behind this proxy."""
        container, _, path = path.partition("/")
        address = {"blob_storage_authority": self.address, "dfs_storage_authority": self.address}
        query = {**address, "enable_tls": "false", **options}
        folder = f"abfs://{container}@{AZURE_ACCOUNT}.dfs.core.windows.net/{path}"
        return f"{folder}?" + "&".join(f"{key}={value}" for key, value in query.items())

    def answer(self, kind: str) -> tuple[int, list[tuple[str, str]], bytes] | None:
        known = {
            "slow_down": (503, "ServerBusy"),
            "server_error": (500, "InternalError"),
            "denied": (403, "AuthorizationPermissionMismatch"),
            "missing": (404, "BlobNotFound"),
        }
        if kind not in known:
            return None
        status, code = known[kind]
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{kind}</Message></Error>'.encode()
        return status, [("Content-Type", "application/xml"), ("x-ms-error-code", code)], body


class GcsStore(Store):
    """A proxy before a server of Google's storage."""

    def uri(self, path: str, **options: str) -> str:
        """The URI of `bucket/path…` behind this proxy. Google's client repeats requests for a moment only."""
        query = {"scheme": "http", "endpoint_override": self.address, "retry_limit_seconds": "0.2", **options}
        return f"gs://anonymous@{path}?" + "&".join(f"{key}={value}" for key, value in query.items())

    def answer(self, kind: str) -> tuple[int, list[tuple[str, str]], bytes] | None:
        statuses = {"slow_down": 503, "server_error": 500, "denied": 403, "missing": 404}
        if kind not in statuses:
            return None
        error = {"code": statuses[kind], "message": kind, "errors": [{"reason": kind, "message": kind}]}
        return statuses[kind], [("Content-Type", "application/json")], json.dumps({"error": error}).encode()


class RemoteProxies(BaseManager):
    """A process that runs proxies: `with RemoteProxies() as proxies: proxies.GcsStore(port)`."""


for _each in (Store, AzureStore, GcsStore):
    RemoteProxies.register(_each.__name__, _each)
