"""What does it mean: exceptions of pyarrow while a file is opened, parsed or read, told apart.

Runs in every process that reads. pyarrow reports damage in a page as `OSError` without an errno, damage in a footer
as `ArrowInvalid` or `OSError`, a real failure of a disk as `OSError` with an errno, and one of an object store as
`OSError` with the store's name in the text. Damage must never be confused with a permission or a network failure:
a file may be left out of a plan for the first, never for the second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from feedline.errors import CorruptFileError, FeedlineError, TableChangedError, TableError, TableNotFoundError

_STORE_FAILURE = re.compile(r"AWS Error|google::cloud|Azure Error|\bcurl\b", re.IGNORECASE)
_ENCRYPTED = re.compile(r"decrypt|encrypted", re.IGNORECASE)


@contextmanager
def explained(file: str, *, row_group: int | None = None, listed: bool = False) -> Iterator[None]:
    """Turn what pyarrow raises in the body into an error that names the file, and the row group where one is read.

    `listed`: the file is part of a snapshot, so its absence means that the table changed.
    """
    try:
        yield
    except (FeedlineError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise _meaning(error, place(file, row_group), listed=listed) from error


def encrypted(where: str) -> TableError:
    """The refusal of a file that is encrypted, wholly or in part."""
    return TableError(f"{where} is encrypted: expected a plain Parquet file. Write it without encryption")


def place(file: str, row_group: int | None) -> str:
    """How messages name a file, or one row group of it."""
    return file if row_group is None else f"{file}, row group {row_group}"


def _meaning(error: BaseException, where: str, *, listed: bool) -> TableError:
    text = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, FileNotFoundError):
        if listed:
            return TableChangedError(f"{where} is gone: it was there when the snapshot was taken. Take a new snapshot")
        return TableNotFoundError(f"{where} does not exist: expected a Parquet file or a folder of them")
    if isinstance(error, PermissionError):
        return TableError(f"{where} may not be read: permission denied. Ask for access, or name another place")
    if isinstance(error, MemoryError):
        return TableError(f"{where} asks for more memory than there is: {text}")
    if isinstance(error, NotImplementedError):
        return TableError(f"{where} holds what pyarrow cannot read: {text}")
    if _ENCRYPTED.search(text):
        return encrypted(where)
    if isinstance(error, OSError) and (error.errno is not None or _STORE_FAILURE.search(text)):
        return TableError(f"{where} could not be read: {text}")
    return CorruptFileError(f"{where} is not valid Parquet: {text}. Restore or rewrite the file")
