"""Times in rows of Python values: strings as JSON has them become those of training, or are refused with the form."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from feedline.errors import DataError
from feedline.serving.encoder import frame_of
from feedline.serving.request_types import convert, convertible


def test_times_may_be_strings_as_json_has_them():
    naive, zoned = pa.timestamp("us"), pa.timestamp("ms", "UTC")
    types = pa.schema([("t", naive), ("z", zoned), ("d", pa.date32()), ("l", pa.list_(pa.struct([("t", naive)])))])
    row = json.loads(
        '{"t": "2026-01-31T12:00:00.25", "z": "2026-01-31T12:00:00+02:00", "d": "2026-01-31",'
        ' "l": [{"t": "2026-01-31 12:00:00"}, {"t": null}]}'
    )
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    plain = noon.replace(tzinfo=None)
    expected = {
        "t": plain.replace(microsecond=250_000),
        "z": noon.replace(hour=10),
        "d": plain.date(),
        "l": [{"t": plain}, {"t": None}],
    }
    none = dict.fromkeys(row)
    for rows in (row, [row, none], {name: [value] for name, value in row.items()}):
        made = frame_of(rows, types)
        assert made.schema == types
        assert made.to_pylist()[0] == expected
    strings = pa.table({name: pa.array([row[name]]) for name in ("t", "z", "d")})
    assert all(convertible(strings.schema.field(name).type, types.field(name).type) for name in strings.column_names)
    assert convert(strings["z"], zoned, "z").to_pylist() == [noon.replace(hour=10)]


@pytest.mark.parametrize(
    ("text", "kind", "remedy"),
    [
        ("2026-01-31T12:00:00Z", pa.timestamp("us"), "ISO 8601 with no offset, as training has them: 2026-01-31T12"),
        ("2026-01-31T12:00:00", pa.timestamp("us", "UTC"), "with an offset or Z, as training has them: 2026-01-31T12"),
        ("2026-01-31T12:00:00.0001", pa.timestamp("ms"), "Write times as ISO 8601"),
        ("yesterday", pa.date32(), "Write dates as ISO 8601: 2026-01-31"),
    ],
)
def test_other_strings_are_refused_as_times(text: str, kind: pa.DataType, remedy: str):
    types = pa.schema([("t", kind)])
    with pytest.raises(DataError, match=f"column 't' .*{re.escape(remedy)}") as caught:
        frame_of([{"t": None}, {"t": text}], types)
    assert caught.value.row == 1
    with pytest.raises(DataError, match="column 't' holds values of another type: expected"):
        frame_of([{"t": [text]}], types)
