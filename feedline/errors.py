"""Define Feedline's errors, by what a caller would do about them.

Every error is a `FeedlineError` and also the built-in that a caller would catch. A message reads
`<thing> <rule broken>: got X, expected Y. <remedy>`. Errors pickle with their message alone, so that they cross from a
Dask worker to the feeder and from the feeder to the trainer unchanged (`from_wire`).

Examples:
    >>> try:
    ...     Table("warehouse/nothing").read()
    ... except FileNotFoundError as error:
    ...     assert isinstance(error, errors.TableNotFoundError)
    ...     isinstance(error, errors.FeedlineError)
    True
"""

from __future__ import annotations

from typing import Self


class FeedlineError(Exception):
    """The base class of every error that Feedline raises on purpose."""


class SpecError(FeedlineError, ValueError):
    """pipeline.yaml, an override or an argument is wrong; commands end with exit code 2."""


class ExpressionError(SpecError):
    """An expression is invalid, or does not fit the columns that it is bound to."""


class TableError(FeedlineError, ValueError):
    """A table cannot be read: it is missing or empty, or its files contradict each other."""


class TableNotFoundError(TableError, FileNotFoundError):
    """No table, or no Parquet file, at the given path; commands end with exit code 2."""

    def __new__(cls, *args: object) -> Self:  # Dask unpickles errors by it: ValueError's, the first, would refuse
        return OSError.__new__(cls, *args)


class TableArgumentError(TableError, SpecError):
    """An argument does not fit the table: an unknown column, a target inside the source."""


class CorruptFileError(TableError):
    """A file is not valid Parquet; the message names the file and, where known, the row group."""


class TableChangedError(TableError):
    """A file was replaced, truncated or deleted after the snapshot was taken."""


class StoreError(TableError, OSError):
    """A store failed despite retries, through no fault of the table. Try again later."""

    def __new__(cls, *args: object) -> Self:  # as for TableNotFoundError
        return OSError.__new__(cls, *args)


class DataError(FeedlineError, ValueError):
    """A value breaks a rule of the pipeline; the message names feature, file, row group and row.

    `row`: the row of the current frame, from 0; the caller that knows the frame's origin completes the message.
    """

    row: int | None = None

    def at(self, row: int) -> Self:
        """The same error, about a row of the frame."""
        self.row = row
        return self


class PlanError(FeedlineError, ValueError):
    """No plan is possible: no rows, fewer rows than a step, a world size that does not divide the lanes."""


class NoStepError(PlanError):
    """The rows that are there make no step: there are none, too few, or none that can be drawn."""


class StateError(FeedlineError, ValueError):
    """A state is invalid, or belongs to another plan or other features; commands end with exit code 2."""


class RingError(FeedlineError, MemoryError):
    """The ring cannot allocate its memory, or has no slot for another batch while all are held."""

    def __new__(cls, *args: object) -> Self:  # as for TableNotFoundError
        return Exception.__new__(cls, *args)


class ClusterError(FeedlineError, RuntimeError):
    """The Dask cluster cannot do the work: no workers, another version, a lost scheduler."""


class FeederError(FeedlineError, RuntimeError):
    """The feeder process died, or could not be reached; the message holds its last words."""


class BatchTimeoutError(FeedlineError, TimeoutError):
    """No batch came within the `timeout` of a dataset; the message says what the feeder and its workers do."""


_WIRE: dict[str, type[FeedlineError]] = {
    each.__name__: each for each in [*globals().values()] if isinstance(each, type) and issubclass(each, FeedlineError)
}


def from_wire(name: str, message: str) -> FeedlineError:
    """The error with this class name and message; a FeedlineError for an unknown name."""
    return _WIRE.get(name, FeedlineError)(message)


def note_place(error: BaseException, place: str) -> None:
    """Note where an error was raised (a column, a file), unless it is Feedline's: their messages say it."""
    if not isinstance(error, FeedlineError):
        error.add_note(place)


def noted_message(error: BaseException) -> str:
    """An error's message, with its notes behind it."""
    notes = ", ".join(getattr(error, "__notes__", ()))
    return f"{error} ({notes})" if notes else str(error)
