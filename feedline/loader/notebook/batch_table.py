"""Show a batch in a notebook: names, shapes, dtypes, ranges, and the values of the first rows.

Runs in: the process of a notebook, where a batch is shown. It reads the features that it shows, and copies three rows.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Protocol

from feedline.loader.notebook.notebook_table import notebook_table, short_text

_FEATURES = 100
_ROWS = 3
_ELEMENTS = 6  # of a list or a vector


class ShownBatch(Protocol):
    """What is shown of a batch."""

    epoch: int
    step: int
    rows: int
    nbytes: int

    @property
    def schema(self) -> Any: ...
    @property
    def device(self) -> Any: ...
    @property
    def valid(self) -> Any: ...
    def __getitem__(self, name: str) -> Any: ...


def batch_table(batch: ShownBatch) -> str:
    """The batch as an HTML table, a row per feature."""
    padding = batch.rows - int(batch.valid.sum())
    caption = f"epoch {batch.epoch}, step {batch.step:,}: {batch.rows:,} rows"
    caption += f", {padding:,} of them padding" if padding else ""
    caption += f", {batch.nbytes:,} bytes on {batch.device}"
    if len(batch.schema) > _FEATURES:
        caption += f"; the first {_FEATURES} of {len(batch.schema):,} features"
    first = range(min(_ROWS, batch.rows))
    headings = ["feature", "group", "shape", "dtype", "range", *(f"row {row}" for row in first)]
    rows = []
    for column in islice(batch.schema, _FEATURES):
        group = column.group if column.dedup is None else f"{column.group}, {column.dedup}"
        rows.append([column.name, group, *_feature(batch[column.name], first)])
    return notebook_table(caption, headings, rows)


def _feature(value: Any, first: range) -> list[str]:
    """Shape, dtype, range and the first values of a feature."""
    if hasattr(value, "lengths"):
        return _lists(value, first)
    if not hasattr(value, "unique_rows"):
        shown = [_text(each) for each in value[: len(first)].tolist()]  # of a tensor, or of an Arrow array
        return [*_facts(value), *shown]
    inverse = value.inverse[: len(first)].tolist()
    shape, dtype, extremes = _facts(value.values)
    shown = [_text(value.values[row].tolist()) for row in inverse]
    return [f"{shape} unique, {len(value):,} rows", dtype, extremes, *shown]


def _lists(value: Any, first: range) -> list[str]:
    """The same of lists."""
    inverse = getattr(value, "inverse", None)
    rows = list(first) if inverse is None else inverse[: len(first)].tolist()
    shown = []
    for row in rows:
        begin, end = value.offsets[row : row + 2].tolist()
        elements = value.values[begin : min(end, begin + _ELEMENTS + 1)].tolist()
        shown.append(_text(elements))
    shape, dtype, extremes = _facts(value.values)
    unique = "" if inverse is None else f" of {len(value.lengths):,} unique rows"
    weighted = "" if value.weights is None else ", weighted"
    return [f"{len(value):,} lists{unique}, {shape} values", dtype + weighted, extremes, *shown]


def _facts(values: Any) -> tuple[str, str, str]:
    """Shape, dtype and range of a tensor, or of an Arrow array, which has no range."""
    if not hasattr(values, "dtype"):
        return f"[{len(values):,}]", str(values.type), ""
    shape = f"[{', '.join(f'{each:,}' for each in values.shape)}]"
    numbers = values[values == values]
    extremes = "" if not numbers.numel() else f"{_text(numbers.min().item())} … {_text(numbers.max().item())}"
    return shape, str(values.dtype).removeprefix("torch."), extremes


def _text(value: Any) -> str:
    """A value, or the first of a list's elements."""
    if isinstance(value, list):
        more = ", …" if len(value) > _ELEMENTS else ""
        return f"[{', '.join(short_text(each) for each in value[:_ELEMENTS])}{more}]"
    return "null" if value is None else short_text(value)
