"""Compute features up to each of their steps, to measure what a step costs.

Runs in: `feedline plan --ops`, and processes that explain. Pure. A pass computes the values after a step from a frame's
columns as all features together do, apart from steps that other features share: those it computes itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.transforms.compile.chains import Compiler
from feedline.transforms.compile.fit_requests import Levels
from feedline.transforms.learning.learner import NO_ARTIFACTS, ArtifactSet
from feedline.transforms.values.arrays import Column, Columns, FusedKernels, as_series
from feedline.transforms.values.kinds import Elements, TailSlice, Value
from feedline.transforms.values.ragged import map_flat, slice_numbers

# --------------------------------------------------------------------------------------------------------------------
# Split a pass over a frame into expressions for Polars, and kernels and slices over existing columns. Kernels at the
# end of a feature, over numbers in lists too, and slices of lists run outside of Polars, where calling them costs
# less; Polars only computes their inputs, unless those are columns of the frame. The results are the same.


def select_in_stages(frame: pl.DataFrame, stages: Levels, expressions: Sequence[pl.Expr]) -> pl.LazyFrame:
    """Select expressions after the columns that are held for them, one after the other, on the caller's thread.

    Two Dask threads that each use Polars' thread pool take half as long again (7.2 against 4.8 ms per 32,768 rows of 46
    features) and twice the CPU time.
    """
    lazy = frame.lazy()
    for stage in stages:
        lazy = lazy.with_columns_seq(stage)
    return lazy.select_seq(expressions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """The column that features start from, in the frame or computed by Polars, and what kernels make of it, if any.
    of_arrow: whether they take Arrow arrays, too."""

    name: str
    computed: bool
    run: Callable[[Any], Column] | None
    of_arrow: bool


class FusedPass:
    """Features as columns of a frame, in order; `columns` are those that every frame holds."""

    def __init__(self, names: Sequence[str], values: Sequence[Value], columns: Collection[str]) -> None:
        self._sources: dict[str, _Source] = {}  # by feature; of some features the same
        self._native: list[pl.Expr] = []
        shared: dict[int, _Source] = {}  # by kernels or slice, which several features may share
        for name, value in zip(names, values, strict=True):
            source = shared.get(id(value.ending))
            if source is None:
                expr, run = _ending(value) or (value.expr, None)
                root = expr.meta.output_name() if expr.meta.is_column() else ""
                computed = root not in columns
                of_arrow = isinstance(value.ending, FusedKernels) and value.ending.of_arrow
                source = _Source(name=name if computed else root, computed=computed, run=run, of_arrow=of_arrow)
                if run is not None:
                    shared[id(value.ending)] = source
                if computed:
                    self._native.append(expr.alias(name))
            self._sources[name] = source
        sources = self._sources.values()
        places = {source: place for place, source in enumerate(dict.fromkeys(sources))}
        self._order = tuple(places)
        self._places = {name: places[source] for name, source in self._sources.items()}
        self._is_native = bool(sources) and all(source.computed and source.run is None for source in sources)
        # The one column that all features are, or that kernels make them of.
        names_of_frame = {"" if source.computed else source.name for source in sources}
        self.only_source = names_of_frame.pop() if len(names_of_frame) == 1 else ""

    def run(
        self,
        frame: pl.DataFrame,
        select: Callable[[Sequence[pl.Expr]], pl.DataFrame],
        held: Sequence[str] = (),
    ) -> tuple[Columns, pl.DataFrame]:
        """The features of an unchunked frame, and columns that are held for them; `select` computes expressions."""
        wanted = [*self._native, *(pl.col(name) for name in held)]
        computed = select(wanted) if wanted else frame
        if self._is_native and not held:
            return computed, pl.DataFrame()
        features = self._finish(lambda source: (computed if source.computed else frame).get_column(source.name))
        return features, computed.select(held) if held else pl.DataFrame()

    def run_one(self, values: pa.Array) -> dict[str, Column]:
        """The features of `only_source`."""
        if all(source.of_arrow for source in self._order):
            return self._finish(lambda source: values)
        series = pl.Series(values)
        return self._finish(lambda source: series)

    def _finish(self, find: Callable[[_Source], pl.Series | pa.Array]) -> dict[str, Column]:
        with np.errstate(all="ignore"):  # once for all: NaN and infinities are values
            columns = [find(source) if source.run is None else source.run(find(source)) for source in self._order]
        return {name: columns[place] for name, place in self._places.items()}


def _ending(value: Value) -> tuple[pl.Expr, Callable[[pl.Series], Column]] | None:
    """The expression that Polars computes, and what is left of the value after it."""
    match value.ending:
        case FusedKernels(values=values, run=run) if run is not None:
            return values, run
        case TailSlice(lists=lists, start=start, stop=stop):
            return lists, lambda series: slice_numbers(series, start, stop)
        case Elements(lists=lists, element=element, kernels=FusedKernels(run=run)) if run is not None:
            before = _ending(lists) if isinstance(lists.ending, TailSlice) else None
            if before is None:
                return lists.expr, lambda series: map_flat(series, run, element.dtype)
            expr, cut = before
            return expr, lambda series: map_flat(as_series(cut(series)), run, element.dtype)
    return None


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPass:
    """Values after a step of a feature. op: None for its source; sharers: how many features compute the same values.

    is_plain: a column as it is, which costs nothing.
    """

    feature: str
    op: str | None
    sharers: int
    is_plain: bool
    _stages: Levels
    _pass: FusedPass

    def run(self, frame: pl.DataFrame) -> None:
        select = partial(select_in_stages, frame, self._stages)
        self._pass.run(frame, lambda expressions: select(expressions).collect(engine="in-memory"))


def step_passes(
    features: Sequence[FeatureSpec],
    schema: pa.Schema,
    artifacts: ArtifactSet = NO_ARTIFACTS,
    only: Collection[str] | None = None,
) -> list[list[StepPass]]:
    """The passes of each feature, step by step from its source. only: of these features; of all, sharers are counted.
    Raises OpError as `compile_features`."""
    whole = Compiler(schema, artifacts)
    keys = [
        [whole.chain(replace(feature, ops=feature.ops[:length]))[1] for length in range(len(feature.ops) + 1)]
        for feature in features
    ]
    holders = Counter(key for each in keys for key in each)
    return [
        [_pass_of(feature, length, holders[key], schema, artifacts) for length, key in enumerate(each)]
        for feature, each in zip(features, keys, strict=True)
        if only is None or feature.name in only
    ]


def _pass_of(feature: FeatureSpec, length: int, sharers: int, schema: pa.Schema, artifacts: ArtifactSet) -> StepPass:
    compiler = Compiler(schema, artifacts)
    value, _ = compiler.chain(replace(feature, ops=feature.ops[:length]))
    call = feature.ops[length - 1] if length else feature.op
    return StepPass(
        feature=feature.name,
        op=None if call is None else call.op,
        sharers=sharers,
        is_plain=call is None and feature.expr is None,
        _stages=compiler.stages.levels,
        _pass=FusedPass([feature.name], [value], list(compiler.types)),
    )
