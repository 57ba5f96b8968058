"""Record golden vectors, rows and their features, and check an installation against them.

Runs in: the process that fits (`record`) and the process that checks an installation (`check`). Ids and lengths must be
equal. Floats must be equal to the bit where versions and processor are those of the vectors; elsewhere they may be
`ULPS` apart, because numpy chooses its logarithms by the processor's instructions. NaN equals NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.artifacts.artifact_sets import ArtifactSetKey
from feedline.artifacts.type_records import save_types
from feedline.blocks.environment import environment_differences, local_environment
from feedline.errors import CorruptFileError, SpecError
from feedline.loader.encoding.arrow_table import arrow_table
from feedline.planning.binding import artifact_set_key, artifacts_dir, bound_sample, bound_where, planned_schema
from feedline.serving.encoder import Serving
from feedline.serving.golden_rows import first_rows_of_splits, rows_that_encode
from feedline.serving.golden_store import Golden, GoldenOrigin, forget_golden, load_golden, save_golden
from feedline.spec import PipelineSpec
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import redact

ULPS = 4
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


def record(spec: PipelineSpec, snapshot: Snapshot) -> Golden | None:
    """Keep the types of the table's columns and, unless `fit.golden` is `none`, golden vectors beside the artifacts.

    Returns the vectors: the existing ones where nothing has changed. Returns None, and deletes existing ones, where
    `fit.golden` is `none`, nothing is served, or no row is taken by all features.
    """
    folder, schema = artifacts_dir(spec), planned_schema(spec, snapshot.schema)
    request = artifact_set_key(spec)
    save_types(folder, request, schema)
    serving = Serving(spec, types=schema)
    alone = list(serving.alone())
    if not alone or spec.fit.golden == "none":
        forget_golden(folder, request, serving.features)
        return None
    made = GoldenOrigin(
        fingerprints={part.features[0].name: part.form(schema).features.fingerprint for part in alone},
        environment=dict(local_environment()),
        table=redact(snapshot.uri),
        snapshot=snapshot.id,
    )
    before = _before(folder, request, serving)
    if before is not None and before.made == made and before.real:
        return before
    rows = _rows(spec, snapshot, schema, serving)
    if not rows.num_rows:
        forget_golden(folder, request, serving.features)
        return None
    expected = arrow_table(*serving.encode(rows))
    golden = Golden(rows=rows, expected=expected, real=rows.num_rows, made=made)
    save_golden(folder, request, serving.features, golden)
    return golden


def _before(folder: str, request: ArtifactSetKey, serving: Serving) -> Golden | None:
    """The vectors that are there already; what is damaged or of another format will be replaced."""
    try:
        return load_golden(folder, request, serving.features)
    except (CorruptFileError, SpecError):
        return None


def _rows(spec: PipelineSpec, snapshot: Snapshot, schema: pa.Schema, serving: Serving) -> pa.Table:
    """Rows of the table that all features take."""
    columns = list(serving.form(schema).features.columns)
    where, sample = bound_where(spec, snapshot.schema), bound_sample(spec, snapshot.schema)
    rows = first_rows_of_splits(snapshot, columns, schema, where=where, sample=sample)
    return rows_that_encode(rows, serving.encode)


def check(spec: PipelineSpec, *, ulps: int | None = None) -> Check:
    """Transform the golden rows and compare. `ulps`: how far floats may be apart (default: as the module says).

    Raises SpecError where there are no vectors of these features, or where what was learnt is something else now.
    """
    folder, serving = artifacts_dir(spec), Serving(spec)
    golden = load_golden(folder, artifact_set_key(spec), serving.features, lambda found: not _others(serving, found))
    if golden is None:
        raise SpecError(
            f"no golden vectors of these features are in {redact(folder)}: expected those that `feedline fit` writes. "
            "Fit, with the same overrides, or name the folder with `artifacts`"
        )
    for name, found in _others(serving, golden).items():
        raise SpecError(
            f"the golden vectors of feature {name!r} are of other artifacts: got its fingerprint {found[:32]}, "
            f"expected {golden.made.fingerprints[name][:32]}. Bring the whole folder here, or fit again"
        )
    made = arrow_table(*serving.encode(golden.rows))
    other = environment_differences(dict(local_environment()), golden.made.environment)
    allowed = (ULPS if other else 0) if ulps is None else ulps
    return Check(
        rows=golden.rows.num_rows,
        features=len(serving.features),
        ulps=allowed,
        other=tuple(other),
        differences=compare(made, golden.expected, ulps=allowed),
    )


def _others(serving: Serving, golden: Golden) -> dict[str, str]:
    """The features that vectors are not of, and their fingerprints here: another op, artifact or type."""
    parts = [(part.features[0].name, part.form(golden.rows.schema).features.fingerprint) for part in serving.alone()]
    return {name: found for name, found in parts if found != golden.made.fingerprints[name]}


def compare(made: pa.Table, expected: pa.Table, *, ulps: int) -> tuple[Difference, ...]:
    """How the features of one table differ from those of another of the same rows."""
    found = [_difference(name, made[name], expected[name], ulps) for name in made.schema.names]
    return tuple(difference for difference in found if difference is not None)


def _difference(name: str, made: pa.ChunkedArray, expected: pa.ChunkedArray, ulps: int) -> Difference | None:
    one, two = made.combine_chunks(), expected.combine_chunks()
    if one.type != two.type or len(one) != len(two):
        return _difference_at(name, one, two, 0, count=len(two), ulps=None, allowed=False)
    (lengths, values), (wanted, others) = _flat(one), _flat(two)
    uneven = np.flatnonzero(lengths != wanted)
    if len(uneven):
        return _difference_at(name, one, two, int(uneven[0]), count=len(uneven), ulps=None, allowed=False)
    apart = [_apart(*pair) for pair in zip(values, others, strict=True)]
    wrong = np.logical_or.reduce([far > 0 for far in apart])
    if not wrong.any():
        return None
    floats = [far for far, column in zip(apart, values, strict=True) if column.dtype.kind == "f"]
    return _difference_at(
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


def _difference_at(
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
