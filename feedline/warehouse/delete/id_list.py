"""Read the values of `in file(...)`: one column of a Parquet, CSV or text file, in the type of the table's column.

Runs in: the process of `delete`. Parquet has types, which must be those of the column but for their width. CSV and text
have none: every value must parse as the column's type. A CSV file has a header, which must name the column, so that a
file without one does not lose its first value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pyarrow.types as pat

from feedline.dataclass import dataclass
from feedline.errors import TableArgumentError
from feedline.warehouse.parquet.schemas import is_bytes, is_text
from feedline.warehouse.storage.content_store import get
from feedline.warehouse.storage.locations import Location, absolute, ancestor, locate, redact, split_options

_FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "integers": pat.is_integer,
    "strings": is_text,
    "bytes": is_bytes,
    "dates": pat.is_date,
    "timestamps without a zone": lambda kind: bool(pat.is_timestamp(kind)) and kind.tz is None,
    "timestamps with a zone": lambda kind: bool(pat.is_timestamp(kind)) and kind.tz is not None,
    "decimals": pat.is_decimal,
}
_NO_DELIMITER = "\x01"  # of text, whose lines are values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IdList:
    """The distinct values of a file, in the column's type, without nulls. count: the file's values. digest: the sha256
    of its bytes."""

    file: str
    column: str
    values: pa.Array
    count: int
    digest: str


def read_ids(file: str, field: pa.Field) -> IdList:
    """Read a list for a column. Raises TableArgumentError for a file that is missing, empty, of another form or of
    other types."""
    kind = field.type.value_type if pat.is_dictionary(field.type) else field.type
    family = _family_of(kind)
    if family is None:
        raise TableArgumentError(
            f"column {field.name!r} cannot be tested for the values of a file: got {kind}, expected one of "
            f"{', '.join(_FAMILIES)}. Write a comparison"
        )
    name = redact(file)
    content = _content(file, name)
    values = _read(content, name, field.name)
    if values.null_count:
        raise TableArgumentError(
            f"the list {name} must not hold nulls: got {values.null_count:,} of {len(values):,} values. Leave them "
            f"out; rows without a value are found by `{field.name} is None`"
        )
    if not len(values):
        raise TableArgumentError(
            f"the list {name} must not be empty: got no value, expected at least one. Most often an export failed; if "
            "it did not, there is nothing to delete"
        )
    is_typed = name.endswith(".parquet")
    if is_typed and _family_of(values.type) != family:
        raise TableArgumentError(
            f"the list {name} must hold values of the column's type: got {values.type}, expected {family}, as column "
            f"{field.name!r} is {kind}. Write the list in that type"
        )
    try:
        values = values.cast(kind)
    except pa.ArrowInvalid as error:
        raise TableArgumentError(
            f"the list {name} must hold values that column {field.name!r} can hold: got {_first_line(error)}, expected "
            f"{kind}. Correct the list"
        ) from None
    return IdList(
        file=file,
        column=field.name,
        values=values.unique(),
        count=len(values),
        digest=hashlib.sha256(memoryview(content)).hexdigest(),
    )


def _family_of(kind: pa.DataType) -> str | None:
    return next((name for name, is_of in _FAMILIES.items() if is_of(kind)), None)


def _content(file: str, name: str) -> bytes | pa.Buffer:
    uri = absolute(file)
    folder, base = ancestor(uri, 1), split_options(uri)[0].rpartition("/")[2]
    location = locate(folder)
    try:
        return get(Location(folder, location.filesystem, location.path), base)
    except FileNotFoundError:
        raise TableArgumentError(
            f"the list {name} does not exist: expected a file of one column. Name it by a path or a URI"
        ) from None
    except OSError as error:
        raise TableArgumentError(
            f"the list {name} cannot be read: {_first_line(error)}, expected a file of one column. Name a file"
        ) from None


def _read(content: bytes | pa.Buffer, name: str, column: str) -> pa.Array:
    """The values of the only column: of Parquet in its type, of others as strings."""
    if not name.endswith((".parquet", ".csv", ".txt")):
        raise TableArgumentError(
            f"the list {name} must be Parquet, CSV or text: got another suffix, expected .parquet, .csv (with a "
            "header) or .txt (a value per line). Name it so"
        )
    source = pa.BufferReader(content)
    try:
        if name.endswith(".parquet"):
            table = pq.read_table(source, partitioning=None)
        elif not source.size():
            return pa.array([], pa.string())
        else:
            table = pacsv.read_csv(
                source,
                read_options=pacsv.ReadOptions(column_names=[column] if name.endswith(".txt") else None),
                parse_options=pacsv.ParseOptions(newlines_in_values=True)
                if name.endswith(".csv")
                else pacsv.ParseOptions(delimiter=_NO_DELIMITER, quote_char=False, double_quote=False),
                convert_options=pacsv.ConvertOptions(column_types={column: pa.string()}, strings_can_be_null=False),
            )
    except (pa.ArrowException, OSError) as error:
        raise TableArgumentError(f"the list {name} cannot be read: {_first_line(error)}. Write it again") from None
    if table.num_columns != 1:
        raise TableArgumentError(
            f"the list {name} must have one column: got {table.num_columns} ({', '.join(table.schema.names[:5])}), "
            f"expected {column!r} alone. Write that column to a file of its own"
        )
    if name.endswith(".csv") and table.schema.names != [column]:
        raise TableArgumentError(
            f"the header of {name} must name the column: got {table.schema.names[0]!r}, expected {column!r}. Write a "
            "header, or name a file without one .txt"
        )
    values = table.column(0).combine_chunks()
    return values.cast(values.type.value_type) if pat.is_dictionary(values.type) else values


def _first_line(error: BaseException) -> str:
    return str(error).split("\n")[0][:200]
