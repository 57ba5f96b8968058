"""Does this installation compute what the one that fitted computed? Golden vectors: rows, and what they became.

Runs in: the process that fits (`record`), the process that proves an installation (`check`). Ids and lengths have to be
equal. Floats have to be equal bit by bit where versions and processor are those that made the vectors; elsewhere they
may be `ULPS` apart, because numpy chooses its logarithms by the processor's instructions. NaN is equal to NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.errors import SpecError
from feedline.expressions import BoundExpression
from feedline.features import FeatureSpec
from feedline.golden_files import Golden, load_golden, save_columns, save_golden
from feedline.golden_rows import MADE_UP, SYNTHETIC, made_up_rows, plain_row, real_rows, refused, takes
from feedline.loader.encoded_table import arrow_table
from feedline.service.tasks import local_environment
from feedline.serving import Serving
from feedline.warehouse.locations import shown
from feedline.warehouse.sampling import BoundSample
from feedline.warehouse.snapshot import Snapshot

ULPS = 4
Choice = Literal["rows", "synthetic", "none"]
_SHOWN_CHARACTERS = 200
_FAR = 2**40  # further than any two floats: NaN and a number, an infinity and a finite number


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a feature differs: `values` of its values do, the first in this row; ulps: the furthest (None: no floats)."""

    feature: str
    row: int
    got: str
    expected: str
    values: int
    ulps: int | None
    allowed: bool

    def __str__(self) -> str:
        far = "" if self.ulps is None else ", no number beside one" if self.ulps >= _FAR else f", {self.ulps} ulps"
        return (
            f"feature {self.feature!r} at row {self.row}: got {self.got}, expected {self.expected} "
            f"({self.values} values differ{far})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What a check found. other: what is another here than where the vectors were made: name, here, there."""

    rows: int
    features: int
    ulps: int
    other: tuple[tuple[str, str, str], ...]
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Whether this installation may serve."""
        return all(difference.allowed for difference in self.differences)

    def text(self) -> str:
        """What people read."""
        there = ", ".join(f"{name} {here} (the vectors: {made})" for name, here, made in self.other)
        lines = [f"another environment than where the vectors were made: {there}"] if there else []
        wrong = [difference for difference in self.differences if not difference.allowed]
        lines += [f"differs: {difference}" for difference in wrong]
        head = f"{self.rows} rows of {self.features} features"
        close = len(self.differences) - len(wrong)
        if wrong:
            lines.append(f"failed: {head}: {len(wrong)} features differ by more than {self.ulps} ulps")
        elif close:
            most = max(difference.ulps or 0 for difference in self.differences)
            lines.append(f"passed: {head}: {close} features differ by {most} ulps at most, {self.ulps} are allowed")
        else:
            lines.append(f"passed: {head}: every bit is the same")
        return "\n".join(lines)


def record(
    folder: str,
    serving: Serving,
    snapshot: Snapshot,
    schema: pa.Schema,
    *,
    choice: Choice,
    where: BoundExpression | None = None,
    sample: BoundSample | None = None,
) -> Golden | None:
    """Keep the types of the table's columns and, unless `choice` is none, golden vectors; the vectors.

    serving: of the features and types to record. schema: the table's, as features may name its columns. `choice`:
    synthetic takes no row of the table. None where no row is to be found that all features take.
    """
    save_columns(folder, schema)
    if choice == "none":
        return None
    form = serving.form(schema)
    columns = list(form.features.columns)
    rows = pa.schema([schema.field(name) for name in columns]).empty_table()
    if choice == "rows":
        rows = real_rows(snapshot, columns, schema, where=where, sample=sample)
        wrong = set(refused(rows, takes(serving.encode)))
        rows = rows.take(pa.array([row for row in range(rows.num_rows) if row not in wrong], pa.int64()))
    real = rows.num_rows
    first = rows.slice(0, 1) if real else plain_row(rows.schema)
    if refused(first, takes(serving.encode)):
        return None
    parts = [(part.form(schema).features.columns, takes(part.encode)) for part in serving.alone()]
    made = made_up_rows(first, MADE_UP if real else SYNTHETIC, parts)
    rows = pa.concat_tables([rows, made]).combine_chunks()
    golden = Golden(
        rows=rows,
        expected=arrow_table(*serving.encode(rows)),
        real=real,
        features=form.features.fingerprint,
        environment=dict(local_environment()),
        table=shown(snapshot.uri),
        snapshot=snapshot.id,
    )
    save_golden(folder, serving.features, golden)
    return golden


def check(folder: str, serving: Serving, *, ulps: int | None = None) -> Check:
    """Transform the golden rows and compare. `ulps`: how far floats may be apart (default: as the module says).

    Raises SpecError where there are no vectors of these features, or where what was learnt is something else now.
    """
    golden = load_golden(folder, serving.features)
    if golden is None:
        raise SpecError(
            f"no golden vectors of these features are in {shown(folder)}: expected those that `feedline fit` writes. "
            "Fit, with the same overrides, or name the folder with `artifacts`"
        )
    found = serving.form(golden.rows.schema).features.fingerprint
    if found != golden.features:
        raise SpecError(
            f"the golden vectors are of other artifacts: got features {found[:32]}, expected {golden.features[:32]}. "
            "Bring the whole folder of artifacts here, or fit again"
        )
    made = arrow_table(*serving.encode(golden.rows))
    here = dict(local_environment())
    names = dict.fromkeys([*here, *golden.environment])
    other = [(name, here.get(name, "none"), golden.environment.get(name, "none")) for name in names]
    other = [(name, one, two) for name, one, two in other if one != two]
    allowed = (ULPS if other else 0) if ulps is None else ulps
    return Check(
        rows=golden.rows.num_rows,
        features=len(serving.features),
        ulps=allowed,
        other=tuple(other),
        differences=compare(made, golden.expected, serving.features, ulps=allowed),
    )


def compare(
    made: pa.Table, expected: pa.Table, features: Sequence[FeatureSpec], *, ulps: int
) -> tuple[Difference, ...]:
    """How two tables of the same features and rows differ."""
    found = [_difference(feature.name, made[feature.name], expected[feature.name], ulps) for feature in features]
    return tuple(difference for difference in found if difference is not None)


def _difference(name: str, made: pa.ChunkedArray, expected: pa.ChunkedArray, ulps: int) -> Difference | None:
    one, two = made.combine_chunks(), expected.combine_chunks()
    if one.type != two.type or len(one) != len(two):
        return _told(name, one, two, 0, count=len(two), ulps=None, allowed=False)
    (lengths, values), (wanted, others) = _flat(one), _flat(two)
    uneven = np.flatnonzero(lengths != wanted)
    if len(uneven):
        return _told(name, one, two, int(uneven[0]), count=len(uneven), ulps=None, allowed=False)
    apart = [_apart(*pair) for pair in zip(values, others, strict=True)]
    wrong = np.logical_or.reduce([far > 0 for far in apart])
    if not wrong.any():
        return None
    floats = [far for far, column in zip(apart, values, strict=True) if column.dtype.kind == "f"]
    return _told(
        name,
        one,
        two,
        int(np.repeat(np.arange(len(one)), lengths)[wrong.argmax()]),
        count=int(wrong.sum()),
        ulps=max(int(far.max()) for far in floats) if floats else None,
        allowed=max(int(far.max()) for far in apart) <= ulps,
    )


def _apart(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """How far values are from each other: floats in ulps; anything else that is not equal is far."""
    return ulps_between(one, other) if one.dtype.kind == "f" else np.where(one == other, 0, _FAR)


def _told(
    name: str, made: pa.Array, expected: pa.Array, row: int, *, count: int, ulps: int | None, allowed: bool
) -> Difference:
    texts = [
        repr(array[row].as_py())[:_SHOWN_CHARACTERS] if row < len(array) else "no row" for array in (made, expected)
    ]
    return Difference(
        feature=name, row=row, got=texts[0], expected=texts[1], values=max(count, 1), ulps=ulps, allowed=allowed
    )


def _flat(array: pa.Array) -> tuple[NDArray[np.int64], list[NDArray[Any]]]:
    """How many values each row has, and the values: of a weighted list ids and weights."""
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size), [array.flatten().to_numpy(zero_copy_only=False)]
    if not pa.types.is_large_list(array.type):
        return np.ones(len(array), np.int64), [array.to_numpy(zero_copy_only=False)]
    flat = array.flatten()
    parts = flat.flatten() if pa.types.is_struct(flat.type) else [flat]
    return np.diff(array.offsets.to_numpy()), [part.to_numpy(zero_copy_only=False) for part in parts]


def ulps_between(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.int64]:
    """How many float32 lie between two of them, elementwise: 0 of equal bits and of two NaN; zeros differ by 1."""
    places = [values.astype(np.float32).view(np.int32).astype(np.int64) for values in (one, other)]
    places = [np.where(place < 0, -(place & 0x7FFFFFFF) - 1, place) for place in places]
    apart: NDArray[np.int64] = np.abs(places[0] - places[1])
    apart[~np.isfinite(one) | ~np.isfinite(other)] = _FAR
    apart[(one == other) & ~np.isfinite(one)] = 0
    apart[np.isnan(one) & np.isnan(other)] = 0
    return apart
