"""Turn a user's function into an op, and check its results.

Built in every process, run on the workers; pipeline.yaml must set `allow_code: true`. A function gets expressions,
numpy arrays or Arrow arrays. Each result is checked for type and length; an expression is checked once for computing
each row from that row alone. docs/user-code.md is the reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import numpy as np
import polars as pl
import pyarrow as pa
from pydantic import Field

from feedline.config.features import FeatureSpec, OpCall
from feedline.config.source_section import parse_type
from feedline.dataclass import dataclass
from feedline.errors import DataError, SpecError
from feedline.expressions.row_preservation import offending_node
from feedline.expressions.types import BOOLEAN, DECIMAL, NUMBERS, STRING, column_type, type_name
from feedline.transforms.registry.calls import checked_parameters, resolve
from feedline.transforms.registry.function_code import FunctionCode
from feedline.transforms.registry.op import BoundOp, Input, Op, OpError, Parameters, find_op
from feedline.transforms.registry.user_functions import PYTHON, RequiredFunction, calls_of, entry_points, load_function
from feedline.transforms.registry.user_op import Form, OpDeclaration, declaration_of
from feedline.transforms.values.arrays import map_series
from feedline.transforms.values.kinds import ANYTHING, Kind, Value, element_type
from feedline.transforms.values.ragged import over_columns

CODE_NOT_ALLOWED = (
    "runs Python code, which needs `allow_code: true`. Write that at the top of pipeline.yaml if you trust everyone "
    "who can write the file and the modules it names: they can run code in the feeder and on every worker"
)
_NUMPY_KINDS = NUMBERS - {DECIMAL} | {BOOLEAN}
_OTHER_TYPE = "Cast it there, or declare another type with `gives`"


class PythonCall(Parameters):
    function: Annotated[str, Field(description="module:function, importable or beside pipeline.yaml.")]
    form: Annotated[
        Form | None, Field(description="What it gets and returns: Polars expressions, numpy arrays or Arrow arrays.")
    ] = None
    gives: Annotated[str | None, Field(description="The type of a value, such as float32 or list<int64>.")] = None
    version: Annotated[int | None, Field(ge=1, description="Raise it when the same source gives other values.")] = None
    per_value: Annotated[
        bool | None,
        Field(
            exclude_if=lambda per_value: not per_value,
            description="Each result depends on one value alone: lists are given as their elements.",
        ),
    ] = None
    parameters: Annotated[dict[str, Any], Field(default_factory=dict, description="Passed to the function by name.")]


class BoundPythonCall(PythonCall):
    """The call with everything that decides what the function computes, for fingerprints."""

    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    """A function and its parameters; `name` is for messages."""

    name: str
    function: Callable[..., Any]
    parameters: dict[str, Any]
    form: Form
    dtype: pl.DataType
    per_value: bool

    def apply(self, values: Sequence[Value]) -> Value:
        """The value it computes from columns. Raises SpecError."""
        try:
            inspect.signature(self.function).bind(*values, **self.parameters)
        except TypeError as error:
            given = " and ".join([f"{len(values)} input{'s' if len(values) > 1 else ''}", *self.parameters])
            raise SpecError(f"{self.name} cannot be called with {given}: {error}") from error
        except ValueError:  # a builtin without a signature
            pass
        run: Callable[..., pl.Series]
        elements = len(values) == 1 and values[0].kind.listed and (self.per_value or self.form == "numpy")
        if self.form == "expression":
            dtypes = [element_type(value.dtype) if elements else value.dtype for value in values]
            run = self._expression(dtypes)
        elif self.form == "arrow":
            run = self._arrow
        else:
            run = self._numpy
            for value in values:
                self._require_numbers(value.kind, elements)
        if elements:
            lists = values[0].expr.list.eval(map_series(pl.element(), run, self.dtype))
            return Value(expr=lists, dtype=pl.List(self.dtype))
        if len(values) == 1:
            return Value(expr=map_series(values[0].expr, run, self.dtype), dtype=self.dtype)
        return Value(expr=over_columns([value.expr for value in values], run, self.dtype), dtype=self.dtype)

    def _require_numbers(self, kind: Kind, elements: bool) -> None:
        if kind.element not in _NUMPY_KINDS or (kind.listed and not elements):
            raise SpecError(
                f"{self.name} takes numpy arrays of numbers or booleans, or one list column of them: got {kind}. Write "
                f"`form: arrow`, which takes columns of any kind"
            )
        if isinstance(self.dtype, pl.List) or self.dtype == pl.String():
            raise SpecError(
                f"{self.name} must give a number or boolean for each value: got {type_name(self.dtype)}. Write "
                f"`form: arrow`, which may give strings and lists"
            )

    def _expression(self, dtypes: Sequence[pl.DataType]) -> Callable[..., pl.Series]:
        names = [f"x{index}" for index in range(len(dtypes))] if len(dtypes) > 1 else ["x"]
        result = self._answer(*(pl.col(name) for name in names), error=SpecError)
        if not isinstance(result, pl.Expr):
            raise SpecError(f"{self.name} must return a Polars expression: got {type(result).__name__}")
        if others := set(result.meta.root_names()) - set(names):
            raise SpecError(
                f"{self.name} may read its inputs only: got the column {min(others)!r}. Name it under `inputs`"
            )
        if node := offending_node(result):
            raise SpecError(
                f"{self.name} must compute each row from that row alone: got {node}. Write `form: arrow` for parts "
                f"that cannot be checked, such as Python functions inside lists"
            )
        schema = dict(zip(names, dtypes, strict=True))
        try:
            dtype = pl.LazyFrame(schema=schema).select(result.alias("made")).collect_schema()["made"]
        except pl.exceptions.PolarsError as error:
            raise SpecError(f"{self.name} does not fit its inputs: {_first_line(error)}") from error
        if dtype != self.dtype:
            raise SpecError(f"{self.name} must give {type_name(self.dtype)}: got {type_name(dtype)}. {_OTHER_TYPE}")

        def run(*series: pl.Series) -> pl.Series:
            frame = pl.DataFrame([one.alias(name) for one, name in zip(series, names, strict=True)])
            try:
                found = frame.select(result.alias("made")).to_series()
            except pl.exceptions.PolarsError as error:
                raise DataError(f"{self.name} failed: {_first_line(error)}") from error
            return self._check(found, len(frame))

        return run

    def _numpy(self, *series: pl.Series) -> pl.Series:
        for index, one in enumerate(series):
            if one.null_count():
                which = f"input {index + 1} of " if len(series) > 1 else ""
                raise DataError(
                    f"{which}{self.name} holds a null: got {one.null_count():,} nulls in {len(one):,} values, expected "
                    f"none in numpy arrays. Put fill_null before it, or write `form: arrow`"
                )
        result = self._answer(*(one.to_numpy() for one in series), error=DataError)
        if not isinstance(result, np.ndarray) or result.ndim != 1:
            got = f"{result.ndim} dimensions" if isinstance(result, np.ndarray) else type(result).__name__
            raise DataError(f"{self.name} must return a numpy array of one dimension: got {got}")
        expected = pl.Series([], dtype=self.dtype).to_numpy().dtype
        if result.dtype != expected:
            raise DataError(f"{self.name} must return {expected}: got {result.dtype}. {_OTHER_TYPE}")
        return self._check(pl.Series(result), len(series[0]))

    def _arrow(self, *series: pl.Series) -> pl.Series:
        result = self._answer(*(one.rechunk().to_arrow() for one in series), error=DataError)
        if not isinstance(result, (pa.Array, pa.ChunkedArray)):
            raise DataError(f"{self.name} must return an Arrow array: got {type(result).__name__}")
        return self._check(pl.Series(result), len(series[0]))

    def _answer(self, *columns: Any, error: type[SpecError | DataError]) -> Any:
        try:
            return self.function(*columns, **self.parameters)
        except Exception as raised:  # whatever the user's code raises
            raise error(f"{self.name} raised {type(raised).__name__}: {raised}") from raised

    def _check(self, found: pl.Series, rows: int) -> pl.Series:
        if len(found) != rows:
            raise DataError(f"{self.name} must return a value for each row: got {len(found):,} for {rows:,} rows")
        if found.dtype != self.dtype:
            raise DataError(
                f"{self.name} must return {type_name(self.dtype)}: got {type_name(found.dtype)}. {_OTHER_TYPE}"
            )
        return found


def bind(call: OpCall) -> BoundOp:
    """The op of a call, built-in or the user's own, with checked parameters. Raises OpError."""
    if find_op(call.op) is not None:
        return resolve(call)
    function = None if call.op == PYTHON else entry_points().get(call.op)
    if call.op != PYTHON and function is None:
        return resolve(call)  # raises the error that lists the ops
    if call.code is None:
        raise OpError(call.path, f"{call.op} {CODE_NOT_ALLOWED}")
    if function is None:
        python_call = checked_parameters(_op(PYTHON, OpDeclaration(gives=""), PythonCall), call)
        assert isinstance(python_call, PythonCall)
        return _bind(call, python_call, call.code)
    if "" in call.value:
        raise OpError(call.path, f"{call.op} takes parameters by name: write {{{call.op}: {{NAME: value}}}}")
    return _bind(call, PythonCall(function=function, parameters=call.value), call.code)


def _bind(call: OpCall, python_call: PythonCall, folder: str) -> BoundOp:
    try:
        loaded = load_function(python_call.function, folder)
        declaration = _declaration(python_call, declaration_of(loaded.function))
        field = pa.field("made", parse_type(declaration.gives))
    except ValueError as error:  # SpecError, and what parse_type raises
        raise OpError(call.path, f"{call.op}: {error}") from error
    dtype = column_type(field)
    element = None if dtype is None else Value(expr=pl.col("made"), dtype=dtype).kind.element
    expected = ""
    if dtype is None or element not in (*_NUMPY_KINDS, STRING) or isinstance(element_type(dtype), pl.List):
        expected = "a number, bool, string or a list of these"
    elif declaration.per_value and isinstance(dtype, pl.List):
        expected = "one value for each, as it is per_value"
    if dtype is None or expected:
        message = f"{python_call.function} must give {expected}: got {declaration.gives!r}"
        raise OpError(call.path, f"{call.op}: {message}")
    function = _Function(
        name=python_call.function,
        function=loaded.function,
        parameters=python_call.parameters,
        form=declaration.form,
        dtype=dtype,
        per_value=declaration.per_value,
    )
    op = replace(
        _op(call.op, declaration, BoundPythonCall),
        text=inspect.getdoc(loaded.function) or "",
        function=lambda values, _: function.apply(values),
    )
    content = python_call.model_dump() | asdict(declaration)
    return BoundOp(op=op, parameters=BoundPythonCall(**content, source=loaded.code.source), path=call.path)


def _op(name: str, declaration: OpDeclaration, parameters: type[Parameters]) -> Op:
    return Op(
        name=name,
        version=declaration.version,
        placement=PYTHON,
        parameters=parameters,
        lists="whole",
        gives=declaration.gives,
        examples=(),
        inputs=(Input(name="x", takes=ANYTHING, lists="whole"),),
        repeats=True,
        per_value=declaration.per_value,
    )


def _declaration(python_call: PythonCall, declared: OpDeclaration | None) -> OpDeclaration:
    here = [key for key in ("form", "gives", "version", "per_value") if getattr(python_call, key) is not None]
    if declared is not None:
        if here:
            raise SpecError(
                f"{python_call.function} is declared by user_op in its module: got {here[0]} in pipeline.yaml, too. "
                "Remove that one"
            )
        return declared
    if python_call.gives is None:
        raise SpecError(
            f"{python_call.function} has no declared type: write gives, such as {{{PYTHON}: {{function: "
            f'"{python_call.function}", gives: float32}}}}, or declare it with @feedline.user_op(gives="float32")'
        )
    return OpDeclaration(
        gives=python_call.gives,
        form=python_call.form or "expression",
        version=python_call.version or 1,
        per_value=bool(python_call.per_value),
    )


def functions_of(features: Iterable[FeatureSpec]) -> tuple[RequiredFunction, ...]:
    """The user's functions that the features call, each once. Raises OpError for one that cannot be loaded."""
    found: dict[RequiredFunction, None] = {}
    for call in calls_of(features):
        if find_op(call.op) is not None or (call.op != PYTHON and entry_points().get(call.op) is None):
            continue
        bound = bind(call)
        assert isinstance(bound.parameters, BoundPythonCall)
        required = RequiredFunction(
            op=call.op, function=bound.parameters.function, folder=call.code or "", source=bound.parameters.source
        )
        found[required] = None
    return tuple(found)


def python_schema() -> dict[str, Any]:
    """The JSON Schema of the op python after its name: a function, or a mapping."""
    schema = PythonCall.model_json_schema()
    properties = {
        name: {key: value for key, value in content.items() if key not in ("title", "default")}
        for name, content in schema["properties"].items()
    }
    mapping = {"type": "object", "properties": properties, "required": ["function"], "additionalProperties": False}
    return {"description": "A Python function, with allow_code.", "anyOf": [properties["function"], mapping]}


def code_of(call: OpCall) -> str | None:
    """The function behind a user's op, as `module:function`; None for other ops."""
    if call.op == PYTHON:
        value = call.value
        return str(value.get("function", value.get("", "")))
    return None if find_op(call.op) is not None else entry_points().get(call.op)


def function_codes(feature: FeatureSpec) -> dict[tuple[str, str], FunctionCode]:
    """What decides what the user's functions of a feature compute, by `module:function` and the pipeline's folder, in
    the order of its calls."""
    functions = ((code_of(call), call.code or "") for call in calls_of([feature]))
    return {(name, folder): load_function(name, folder).code for name, folder in functions if name is not None}


def op_label(call: OpCall) -> str:
    """The label of an op in chains: its name, or `python` and the function."""
    return f"{PYTHON} {code_of(call)}".strip() if call.op == PYTHON else call.op


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
