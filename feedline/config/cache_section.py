"""Define the section `cache`: the folder that keeps what jobs have computed or read, and its bounds.

Runs in: every process that reads a pipeline.yaml. Pure. The folder is a path of the hosts that compute blocks: their
own disk, or a mount. It is not created here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from feedline.config.sections import URI, Bytes, PathString, Section, path_or_off, value_error

CacheMode = Literal["auto", "off", "features", "source"]
LOCAL_PATH = {"type": "string", "minLength": 1, "pattern": rf"^(?!{URI.pattern})"}
_FORM = "off, a path, or a mapping with the keys dir, size, free, mode, write_budget, shared"


def _folder(value: str) -> str:
    if scheme := URI.match(value):
        remedy = "Write the path alone" if scheme[0].lower() == "file://" else "Mount the store, or name a local folder"
        raise value_error("the path of a local or mounted folder", remedy)
    return value


class CacheSpec(Section):
    """The cache of finished features: its folder, its bounds, and what it keeps."""

    folder: Annotated[PathString, AfterValidator(_folder), WithJsonSchema(LOCAL_PATH)] = Field(
        alias="dir", description="Folder of the cache: local or mounted, shared between jobs and hosts."
    )
    size: Bytes | None = Field(
        default=None, description="Most bytes of the cache (default: a tenth of the folder's file system)."
    )
    free: Bytes = Field(default=1 << 30, description="Bytes that stay free on the folder's file system.")
    mode: CacheMode = Field(
        default="auto",
        description="features: finished features; source: bytes read from a remote store; auto: Feedline decides; off.",
    )
    write_budget: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None, description="Most time of writing, as a share of that of computing or fetching (default: any)."
    )
    shared: bool = Field(default=False, description="A new folder may be written by its group, too (0770, not 0700).")

    @property
    def is_off(self) -> bool:
        """Whether nothing is read from the folder or written there."""
        return self.mode == "off"


Cache = Annotated[CacheSpec | None, path_or_off(lambda value: "dir", _FORM, LOCAL_PATH)]
