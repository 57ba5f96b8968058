"""What can go wrong, by what a caller would do about it.

Every error is a `FeedlineError` and also the built-in that a caller would already catch. A message reads
"<thing> <rule broken>: got X, expected Y. <remedy>". All of them are picklable with their message alone, so that
they cross from a Dask worker to the feeder and from the feeder to the trainer unchanged (`from_wire`).
"""

from __future__ import annotations

from typing import Self


class FeedlineError(Exception):
    """The root of every error that Feedline raises on purpose."""


class SpecError(FeedlineError, ValueError):
    """pipeline.yaml, an override or an argument is wrong; commands end with exit code 2."""


class ExpressionError(SpecError):
    """An expression's text is wrong, or does not fit the columns it is bound to."""


class TableError(FeedlineError, ValueError):
    """A table cannot be read as one: missing, empty, with files that contradict each other."""


class TableNotFoundError(TableError, FileNotFoundError):
    """No table, or no Parquet file, at the place named; commands end with exit code 2."""


class TableArgumentError(TableError, SpecError):
    """What is asked of a table does not fit it: an unknown column, a target that lies in the source."""


class CorruptFileError(TableError):
    """A file is not the Parquet it claims to be; the message names file and, where known, row group."""


class TableChangedError(TableError):
    """A file was replaced, truncated or deleted after the snapshot was taken."""


class StoreError(TableError, OSError):
    """A store kept failing although the operation was repeated: not a fault of the table. Try again later."""


class DataError(FeedlineError, ValueError):
    """A value breaks a rule of the pipeline; the message names feature, file, row group and row.

    `row`: the row of the frame at hand, from 0, for whoever knows where the frame comes from and ends the message.
    """

    row: int | None = None

    def at(self, row: int) -> Self:
        """The same error, about a row of the frame."""
        self.row = row
        return self


class PlanError(FeedlineError, ValueError):
    """The plan cannot be made: no rows, fewer rows than a step, a world size that does not divide the lanes."""


class StateError(FeedlineError, ValueError):
    """A state does not belong to this plan or these features, or is none; commands end with exit code 2."""


class RingError(FeedlineError, MemoryError):
    """The ring has no room: for its memory, or for one more batch while all are held."""


class ClusterError(FeedlineError, RuntimeError):
    """The Dask cluster cannot do the work: no workers, another version, a lost scheduler."""


class FeederError(FeedlineError, RuntimeError):
    """The feeder process died, or could not be reached; the message holds its last words."""


_WIRE = {
    cls.__name__: cls
    for cls in (
        FeedlineError,
        SpecError,
        ExpressionError,
        TableError,
        TableNotFoundError,
        TableArgumentError,
        CorruptFileError,
        TableChangedError,
        StoreError,
        DataError,
        PlanError,
        StateError,
        RingError,
        ClusterError,
        FeederError,
    )
}


def from_wire(name: str, message: str) -> FeedlineError:
    """The error of that class name with that message; an unknown name is a plain FeedlineError."""
    return _WIRE.get(name, FeedlineError)(message)
