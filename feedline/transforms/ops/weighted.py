"""Ops that add weights to ids and remove them: weighted, ids, weights.

Built in every process, run on the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import polars as pl
from pydantic import Field

from feedline.errors import SpecError
from feedline.expressions.types import NUMBERS, instance, kind, type_name
from feedline.transforms.registry.op import Input, Parameters, example, example_of_several, op, same_ids
from feedline.transforms.values.kinds import ANYTHING, WEIGHTS, Value, element_type, struct_fields, weighted_value
from feedline.transforms.values.ragged import align_weights

_PAIR = pl.Struct({"id": pl.Int64(), "weight": pl.Float32()})


class Weighted(Parameters):
    id: Annotated[str, Field(description="The field of the ids in a list of structs.")] = "id"
    weight: Annotated[str, Field(description="The field of the weights.")] = "weight"
    fill: Annotated[float | None, Field(description="The weight for nulls (default: they stay null).")] = None


@op(
    ids=same_ids,
    inputs=(
        Input(name="ids", takes=ANYTHING, lists="whole", weighted=True),
        Input(name="weights", takes=NUMBERS, lists="only", optional=True),
    ),
    gives="a weighted list: ids of the same type, with float32 weights",
    parameters=Weighted,
    examples=(
        example_of_several(
            "weighted",
            None,
            [(pl.List(pl.Int64()), [[5, 6], [], None]), (pl.List(pl.Float64()), [[0.5, 1.0], None, []])],
            [[{"id": 5, "weight": 0.5}, {"id": 6, "weight": 1.0}], [], None],
        ),
        example(
            "weighted",
            {"id": "item", "weight": "score", "fill": 1.0},
            pl.List(pl.Struct({"item": pl.Int64(), "score": pl.Float32()})),
            [[{"item": 5, "score": None}], None],
            [[{"id": 5, "weight": 1.0}], None],
        ),
    ),
)
def weighted(inputs: Sequence[Value | None], parameters: Weighted) -> Value:
    """Makes a weighted list, of two lists of equal length, two fields of a list of structs, or a map.

    Ops over elements then change the ids and keep the weights; ops that remove elements (first_x, list_slice,
    id_list_transform, positive_intersect) remove their weights too. A column of `list<struct<id, weight>>` is weighted
    without this op. Lists that differ in length are an error that names feature, row, file and row group; a null list
    has length 0. Null weights are an error in the batch unless filled; weights that are NaN stay.
    """
    x, weight_list = inputs
    assert x is not None
    if weight_list is not None and (x.weights is not None or not x.kind.listed):
        raise SpecError(f"weights need a list of ids: got {x.kind}, expected a list without weights")
    if weight_list is None:
        x, weight_list = _fields(x, parameters)
        if parameters.fill is None:
            return Value(expr=x.expr, dtype=x.dtype, weights=weight_list.expr)
    return align_weights(x, weight_list, parameters.fill)


def _fields(x: Value, parameters: Weighted) -> tuple[Value, Value]:
    names = parameters.id, parameters.weight
    dtype = x.dtype
    if x.weights is not None:
        return Value(expr=x.expr, dtype=dtype), Value(expr=x.weights, dtype=WEIGHTS)
    if isinstance(dtype, pl.Map):
        names = "key", "value"
        dtype = pl.List(pl.Struct({"key": instance(dtype.key), "value": instance(dtype.value)}))
        x = Value(expr=x.expr.cast(dtype), dtype=dtype)
    fields = struct_fields(element_type(dtype)) if isinstance(dtype, pl.List) else {}
    if not {*names} <= fields.keys():
        raise SpecError(
            f"a weighted list needs two lists, a list of structs or a map: got {type_name(dtype)}, expected the fields "
            f"{names[0]} and {names[1]}. Name others with {{weighted: {{id: item, weight: score}}}}"
        )
    if kind(fields[names[1]]) not in NUMBERS:
        raise SpecError(f"weights must be numbers: got {type_name(fields[names[1]])} as {names[1]}")
    pairs = weighted_value(x.expr, dtype, *names)
    assert pairs.weights is not None
    return Value(expr=pairs.expr, dtype=pairs.dtype).plain(), Value(expr=pairs.weights, dtype=WEIGHTS)


@op(
    ids=same_ids,
    takes=ANYTHING,
    lists="only",
    weighted=True,
    gives="a list without weights",
    examples=(example("ids", None, pl.List(_PAIR), [[{"id": 5, "weight": 0.5}], [], None], [[5], [], None]),),
)
def ids(x: Value, _: Parameters) -> Value:
    """The ids of a weighted list, without the weights.

    A null list stays null.
    """
    _require(x)
    return Value(expr=x.expr, dtype=x.dtype)


@op(
    takes=ANYTHING,
    lists="only",
    weighted=True,
    gives="a list of float32",
    examples=(example("weights", None, pl.List(_PAIR), [[{"id": 5, "weight": 0.5}], [], None], [[0.5], [], None]),),
)
def weights(x: Value, _: Parameters) -> Value:
    """The weights of a weighted list, without the ids.

    A null list stays null.
    """
    return Value(expr=_require(x), dtype=WEIGHTS)


def _require(x: Value) -> pl.Expr:
    if x.weights is None:
        raise SpecError(
            f"the input must be a weighted list: got {x.kind}. Make one with `op: weighted, inputs: [ids, weights]`"
        )
    return x.weights
