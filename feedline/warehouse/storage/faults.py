"""Classify exceptions of pyarrow and of stores: damage, denial, absence, or a transient failure.

Runs in every process that reads. pyarrow reports damage in a page as `OSError` without an errno, damage in a footer as
`ArrowInvalid` or `OSError`, a failure of a disk as `OSError` with an errno, and one of an object store as `OSError`
with the store's name in the message. Damage must never be confused with a permission or a network failure.

`outlook` says whether another attempt may help, by the store's name for the failure or its HTTP status: server errors,
throttling, timeouts, broken connections and the errors of a mount whose server is away are transient; denials, absence,
wrong keys and unresolved addresses are final, and so is an unknown failure.
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from feedline.errors import CorruptFileError, FeedlineError, TableChangedError, TableError, TableNotFoundError

_STORE_FAILURE = re.compile(r"AWS Error|google::cloud|Azure Error|\bcurl\b|curlCode", re.IGNORECASE)
_ENCRYPTED = re.compile(r"decrypt|encrypted", re.IGNORECASE)

# The stores' names for failures: AWS uses the SDK's, Google gRPC's, Azure its own.
_NAMED = re.compile(r"AWS Error (\w+)|google::cloud::Status\((\w+)|Azure Error: \[(\w+)\]")
_STATUS = re.compile(r"HTTP status (-?\d+)|Azure Error: \[\w*\] (\d{3})\b")
# Of Azure's client without an answer: a connection that broke, or was never made. With one a status follows.
_AZURE_TRANSPORT = re.compile(r"Azure Error: \[\] (?!\d{3}\b)(?!.*(?:resolve|certificate|SSL))", re.DOTALL)
_CURL = re.compile(r"curlCode: (\d+)")
_THROTTLED = {
    *("SLOW_DOWN", "THROTTLING", "TOO_MANY_REQUESTS", "BANDWIDTH_LIMIT_EXCEEDED", "REQUEST_LIMIT_EXCEEDED"),
    *("RESOURCE_EXHAUSTED", "ServerBusy"),
}
_TRANSIENT = {
    *("NETWORK_CONNECTION", "INTERNAL_FAILURE", "SERVICE_UNAVAILABLE", "REQUEST_TIMEOUT", "INTERNAL_ERROR"),
    *("UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "ABORTED"),
    *("InternalError", "OperationTimedOut", "RequestTimeout"),
}
_DENIED = {
    *("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_SIGNATURE", "EXPIRED_TOKEN"),
    *("INVALID_CLIENT_TOKEN_ID", "MISSING_AUTHENTICATION_TOKEN", "UNRECOGNIZED_CLIENT", "OPT_IN_REQUIRED"),
    *("PERMISSION_DENIED", "UNAUTHENTICATED"),
    *("AuthenticationFailed", "AuthorizationFailure", "AuthorizationPermissionMismatch", "NoAuthenticationInformation"),
}
_ABSENT = {
    *("NO_SUCH_KEY", "NO_SUCH_BUCKET", "RESOURCE_NOT_FOUND", "NOT_FOUND"),
    *("BlobNotFound", "ContainerNotFound", "PathNotFound", "FilesystemNotFound", "ResourceNotFound"),
}
# A proxy or host that does not resolve, a wrong URL or certificate: another attempt cannot help.
_FINAL_CURL = {1, 3, 5, 6, 51, 53, 54, 58, 59, 60, 66, 77, 82, 83, 90, 91}
_THROTTLED_STATUS = {429, 503}
_TRANSIENT_STATUS = {-1, 408, 500, 502, 504}  # -1: the answer could not be parsed
_TRANSIENT_ERRNO = {
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EAGAIN),
    *(errno.ENETRESET, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN),
    *(errno.ESTALE, errno.EIO),  # of mounts (NFS, FUSE) whose server is away or has failed over
}
# Raised by libraries under fsspec when a connection breaks; by name, as they are not imported.
_TRANSIENT_CLASSES = {
    *("ServerDisconnectedError", "ServerTimeoutError", "ClientPayloadError", "ClientOSError", "ClientConnectionError"),
    *("IncompleteRead", "RemoteDisconnected", "FSTimeoutError", "ReadTimeoutError", "ConnectTimeoutError"),
    *("EndpointConnectionError", "ConnectionClosedError", "ServiceRequestError", "ServiceResponseError"),
}
_MESSAGE_CHARACTERS = 400  # libhdfs lists every folder where it looked for Java
_URL_OPTIONS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s?'\"<>]*)\?[^\s'\"<>]*")
_URL_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"<>]*:[^\s'\"<>]*@")
_SECRET = re.compile(
    r"((?:X-Amz-(?:Signature|Credential|Security-Token)|signature|sig|\w*token|\w*secret\w*)=)[^&\s'\"<>]+", re.I
)


class Outlook(enum.Enum):
    """Whether the same request may succeed later, and whether to slow down first."""

    FINAL = "final"
    TRANSIENT = "transient"
    THROTTLED = "throttled"


class ShortBodyError(OSError):
    """A store answered with fewer bytes than requested: repeat the request."""


def outlook(error: BaseException) -> Outlook:
    """Whether another attempt may succeed."""
    if isinstance(error, FeedlineError | FileNotFoundError | PermissionError | MemoryError | pa.ArrowCancelled):
        return Outlook.FINAL
    if isinstance(error, ShortBodyError | TimeoutError | ConnectionError | EOFError):
        return Outlook.TRANSIENT
    text, names = str(error), _names(error)
    if names & _THROTTLED:
        return Outlook.THROTTLED
    if names & (_DENIED | _ABSENT):
        return Outlook.FINAL
    if (code := _CURL.search(text)) is not None:
        return Outlook.FINAL if int(code[1]) in _FINAL_CURL else Outlook.TRANSIENT
    status = _status(error)
    if status in _THROTTLED_STATUS:
        return Outlook.THROTTLED
    if names & _TRANSIENT or status in _TRANSIENT_STATUS:
        return Outlook.TRANSIENT
    passing = isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO
    passing |= _AZURE_TRANSPORT.search(text) is not None
    passing |= any(cls.__name__ in _TRANSIENT_CLASSES for cls in type(error).__mro__)
    return Outlook.TRANSIENT if passing else Outlook.FINAL


def is_denied(error: BaseException) -> bool:
    """Whether a store, or the operating system, denied access."""
    return isinstance(error, PermissionError) or bool(_names(error) & _DENIED) or _status(error) in (401, 403)


def safe_message(error: BaseException) -> str:
    """An error's message in one line, without anything that may be a secret."""
    return safe_text(str(error)) or type(error).__name__


def safe_text(text: str) -> str:
    """A text in one line, without anything that may be a secret."""
    text = " ".join(text.split()).rstrip(".")
    text = _URL_USER.sub(r"\1", _URL_OPTIONS.sub(r"\1?…", text))
    text = _SECRET.sub(r"\1…", text)
    return text if len(text) <= _MESSAGE_CHARACTERS else text[:_MESSAGE_CHARACTERS] + "…"


@contextmanager
def explain_errors(
    file: str, *, row_group: int | None = None, listed: bool = False, fetching: bool = False, verb: str = "read"
) -> Iterator[None]:
    """Turn exceptions of pyarrow in the body into errors that name the file, and the row group where one is read.

    `listed`: the file is part of a snapshot, so its absence means that the table changed. `fetching`: the body only
    moves bytes, so any error is the store's failure, never damage. `verb`: the participle for messages ("read").
    """
    try:
        yield
    except (FeedlineError, pa.ArrowCancelled):
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise _meaning(error, label(file, row_group), verb, listed=listed, fetching=fetching) from error
    except Exception as error:
        if not fetching:
            raise
        raise _meaning(error, label(file, row_group), verb, listed=listed, fetching=True) from error


def encrypted_error(where: str) -> TableError:
    """The error for a file that is encrypted, in whole or in part."""
    return TableError(f"{where} is encrypted: expected a plain Parquet file. Write it without encryption")


def label(file: str, row_group: int | None) -> str:
    """A file, or one row group of it, as messages name it."""
    return file if row_group is None else f"{file}, row group {row_group}"


def _meaning(error: BaseException, where: str, verb: str, *, listed: bool, fetching: bool) -> TableError:
    text = safe_message(error)
    names, status = _names(error), _status(error)
    if isinstance(error, FileNotFoundError) or names & _ABSENT or status == 404:
        if listed:
            return TableChangedError(
                f"{where} is gone: it was there when the snapshot was taken. Take a new snapshot, or go on with "
                "feedline rebase"
            )
        detail = "" if isinstance(error, FileNotFoundError) else f" ({text})"
        return TableNotFoundError(f"{where} does not exist: expected a Parquet file or a folder of them{detail}")
    if isinstance(error, PermissionError):
        return TableError(f"{where} may not be {verb}: permission denied. Ask for access, or name another place")
    if is_denied(error):
        return TableError(
            f"{where} may not be {verb}: the store denies it ({text}). Check the credentials and what they may do"
        )
    if isinstance(error, MemoryError):
        return TableError(f"{where} needs more memory than there is: {text}")
    if isinstance(error, NotImplementedError):
        return TableError(f"{where} holds what pyarrow cannot read: {text}")
    if _ENCRYPTED.search(text) and not fetching:
        return encrypted_error(where)
    if fetching or (isinstance(error, OSError) and (error.errno is not None or _STORE_FAILURE.search(text))):
        return TableError(f"{where} could not be {verb}: {text}")
    return CorruptFileError(f"{where} is not valid Parquet: {text}. Restore or rewrite the file")


def _names(error: BaseException) -> set[str]:
    return {name for groups in _NAMED.findall(str(error)) for name in groups if name}


def _status(error: BaseException) -> int | None:
    """The HTTP status: in the text of pyarrow's errors, an attribute in those of the libraries under fsspec."""
    if (match := _STATUS.search(str(error))) is not None:
        return int(match[1] or match[2])
    for owner in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            value = getattr(owner, name, None)
            if isinstance(value, int | str) and str(value).isdigit():
                return int(value)
    return None
