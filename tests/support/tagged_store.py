"""An fsspec store as adlfs or hf: it lists entity tags and no times. `tagged://t` is a folder in memory."""

from __future__ import annotations

import hashlib
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem


class TaggedStore(MemoryFileSystem):
    protocol = "tagged"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("tagged://", "memory://")))

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        found = [self._tagged(each) for each in super().ls(path, detail=True, **options)]
        return found if detail else [each["name"] for each in found]

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        return self._tagged(super().info(path, **options))

    def _tagged(self, details: dict[str, Any]) -> dict[str, Any]:
        if details["type"] == "file":
            return {**details, "ETag": hashlib.md5(self.cat_file(details["name"])).hexdigest()}
        return details


fsspec.register_implementation("tagged", TaggedStore, clobber=True)


def write_plain(table: pa.Table, path: str, **options: Any) -> None:
    """Write a table so that one of the same types and extremes has the same size and footer."""
    with fsspec.open(path, "wb") as file:
        pq.write_table(table, file, compression="none", use_dictionary=False, **options)
