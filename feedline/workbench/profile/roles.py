"""Decide what Feedline can make of a column: a number, a category, a string, a list, a time, or nothing yet.

Runs in: the process that profiles. Pure. Types decide, but for integers: these are measurements or ids, which names and
the sample tell apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.types as pat

from feedline.expressions.types import column_type
from feedline.transforms.values.kinds import WEIGHTED_FIELDS
from feedline.warehouse.parquet.schemas import is_bytes, is_list, is_text
from feedline.workbench.profile.table_facts import ColumnRole, DistinctCount, Number, NumberFacts

# Words of a name, as split by `name_words`, that ids and codes end with.
_ID_WORDS = {"id", "ids", "uid", "uuid", "guid", "key", "hash", "code", "type", "category", "cat", "cate", "class"}
_ID_WORDS |= {"segment", "bucket", "zip", "sku", "brand", "cookie", "device", "ip", "sid"}
# Words that are a name of ids alone: `user`, but not `visits_per_user`.
_THINGS = {"user", "customer", "member", "visitor", "account", "session", "query", "item", "product", "movie", "song"}
_THINGS |= {"ad", "campaign", "advertiser", "publisher", "seller", "merchant", "shop", "store", "site", "channel"}
_HASHED = 1 << 31  # integers that spread wider than this are hashes or ids, not measurements
EPOCH_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_YEARS = (datetime(1990, 1, 1, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC))  # in which the times of rows lie
_MOSTLY_DISTINCT, _LEAST_ROWS = 0.95, 100  # an id: so many distinct values per row, of so many rows
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def name_words(name: str) -> list[str]:
    """The words of a column's name in lower case: `userId`, `user_id` and `User Id` are `user`, `id`."""
    return [word.lower() for word in _WORD.findall(name)]


_ROLES: tuple[tuple[Callable[[pa.DataType], bool], ColumnRole, str | None], ...] = (
    (pat.is_boolean, "category", None),
    (lambda kind: pat.is_integer(kind) or pat.is_floating(kind), "numeric", None),
    (pat.is_decimal256, "unsupported", "frames hold decimals of at most 38 digits"),
    (pat.is_decimal, "numeric", None),
    (lambda kind: is_text(kind) or pat.is_string_view(kind), "string", None),
    (lambda kind: is_bytes(kind) or pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind), "string", "bytes"),
    (lambda kind: pat.is_timestamp(kind) or pat.is_date(kind), "time", None),
    (pat.is_struct, "nested", "a struct: an expression takes a field of it"),
    (pat.is_map, "nested", "a map: an expression takes the value of a key"),
    (pat.is_null, "unsupported", "its type holds no value"),
    (pat.is_time, "unsupported", "a time of day: an expression has to make a number of it"),
    (pat.is_duration, "unsupported", "a duration: an expression has to make a number of it"),
)


def role_of_type(kind: pa.DataType) -> tuple[ColumnRole, str | None]:
    """The role that a type has, and why it is nested or unsupported; the sample says more of integers."""
    if is_list(kind) or pat.is_fixed_size_list(kind):
        return _role_of_list(kind.value_type)
    if pat.is_timestamp(kind) and column_type(pa.field("", kind)) is None:
        return "unsupported", f"no zone of its type's name is known: {kind.tz}"
    found = next(((role, reason) for test, role, reason in _ROLES if test(kind)), None)
    return ("unsupported", f"no op takes {kind}") if found is None else found


def _role_of_list(element: pa.DataType) -> tuple[ColumnRole, str | None]:
    if pat.is_struct(element):
        names = {element.field(index).name for index in range(element.num_fields)}
        if names == {*WEIGHTED_FIELDS} and pat.is_integer(element.field(WEIGHTED_FIELDS[0]).type):
            return "list", "ids with weights"
        return "nested", "a list of structs: an op takes two fields of it as ids and weights"
    role, _ = role_of_type(element)
    if role in ("numeric", "category", "string"):
        return "list", None
    return "nested", f"a list of {element}"


def role_of_integers(
    name: str, numbers: NumberFacts, vocabulary: DistinctCount | None, rows: int
) -> tuple[ColumnRole, str | None]:
    """Whether integers are ids or codes (`category`), with the reason, or numbers."""
    if numbers.min is None or numbers.max is None:
        return "numeric", None
    words = [word for word in name_words(name) if not word.isdigit()]
    if words and (words[-1] in _ID_WORDS or (len(words) == 1 and words[0] in _THINGS)):
        return "category", f"named {words[-1]}"
    if int(numbers.max) - int(numbers.min) >= _HASHED:
        return "category", "spread as widely as hashes"
    if vocabulary is not None and vocabulary.sample <= 2 < rows:
        return "category", "two values" if vocabulary.sample == 2 else "one value"
    return "numeric", None


def epoch_unit(low: Number, high: Number, units: Sequence[str] = tuple(EPOCH_UNITS)) -> str | None:
    """The unit in which numbers may count the time since 1970: both ends lie between 1990 and 2050, and not within a
    second of each other."""
    first, last = (year.timestamp() for year in _YEARS)
    for unit in units:
        per_second = EPOCH_UNITS[unit]
        if first * per_second <= low and high <= last * per_second and high - low >= per_second:
            return unit
    return None


def is_id_like(vocabulary: DistinctCount | None, values: int, table_values: float) -> bool:
    """Whether nearly every row of the table has a value of its own. values: those sampled, table_values: of the
    table, about. Ids of a million users are distinct in a sample, too."""
    return vocabulary is not None and values >= _LEAST_ROWS and vocabulary.table >= _MOSTLY_DISTINCT * table_values
