"""Exceptions are classified: damage, absence, permission and failing stores are never confused."""

from __future__ import annotations

import errno

import pyarrow as pa
import pytest

from feedline.errors import CorruptFileError, DataError, TableChangedError, TableError, TableNotFoundError
from feedline.warehouse.storage.faults import explain_errors

CORRUPT = [
    OSError("Unexpected end of stream"),
    OSError("ZSTD decompression failed: Corrupted block detected"),
    OSError("Couldn't deserialize thrift: TProtocolException: Invalid data"),
    pa.ArrowInvalid("Parquet magic bytes not found in footer."),
    pa.ArrowIndexError("Index 3 out of bounds"),
]
UNREADABLE = [
    (PermissionError(errno.EACCES, "Permission denied"), "may not be read: permission denied"),
    (OSError(errno.EIO, "Input/output error"), "could not be read: .*Input/output error"),
    (OSError("When reading information for key 'x' in bucket 'b': AWS Error NETWORK_CONNECTION"), "could not be read"),
    (OSError("google::cloud::Status(UNAVAILABLE: try again)"), "could not be read"),
    (OSError("Cannot decrypt ColumnMetadata. FileDecryption is not setup correctly"), "is encrypted"),
    (pa.ArrowNotImplementedError("Nested data conversions not implemented"), "holds what pyarrow cannot read"),
    (pa.ArrowMemoryError("malloc of size 281474976710656 failed"), "needs more memory than there is"),
]


@pytest.mark.parametrize("error", CORRUPT, ids=str)
def test_damage_is_corruption(error: Exception) -> None:
    with pytest.raises(CorruptFileError, match=r"^t/f.parquet, row group 3 is not valid Parquet: ") as caught:  # noqa: SIM117
        with explain_errors("t/f.parquet", row_group=3):
            raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("error", "message"), UNREADABLE, ids=str)
def test_other_failures_are_not_corruption(error: Exception, message: str) -> None:
    with pytest.raises(TableError, match=message) as caught, explain_errors("t/f.parquet"):
        raise error
    assert type(caught.value) is TableError
    assert str(caught.value).startswith("t/f.parquet ")


def test_absence_depends_on_whether_the_file_was_listed() -> None:
    with pytest.raises(TableNotFoundError, match="f does not exist"), explain_errors("f"):
        raise FileNotFoundError(errno.ENOENT, "gone")
    with pytest.raises(TableChangedError, match="f is gone"), explain_errors("f", listed=True):
        raise FileNotFoundError(errno.ENOENT, "gone")


def test_errors_of_feedline_and_others_pass_unchanged() -> None:
    for error in (DataError("x"), KeyError("x"), pa.ArrowCancelled("stop")):
        with pytest.raises(type(error)) as caught, explain_errors("f"):
            raise error
        assert caught.value is error
