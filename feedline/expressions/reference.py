"""List the functions and methods of the language, and the hints for names that it lacks.

Pure; the allow-list, assembled from the modules that declare it. Polars' methods that mix rows are refused by name: the
plan of an epoch places every row before any row is read, so a value may depend on its own row only.
"""

from __future__ import annotations

from feedline.expressions.namespaces import METHODS as _NAMESPACE_METHODS
from feedline.expressions.nodes import Fault, Span
from feedline.expressions.scalars import FUNCTIONS as _FUNCTIONS
from feedline.expressions.scalars import METHODS as _SCALAR_METHODS
from feedline.expressions.signatures import Function
from feedline.expressions.types import nearest, quote_name

NAMESPACES = ("dt", "str", "list")

#: Written as functions of their arguments.
FUNCTIONS: dict[str, Function] = {function.name: function for function in (*_FUNCTIONS, *_SCALAR_METHODS)}
#: Written behind a column, with their namespace.
METHODS: dict[str, Function] = {function.name: function for function in (*_SCALAR_METHODS, *_NAMESPACE_METHODS)}
#: Methods that are another spelling of an operator, into which the binder turns them.
OPERATOR_METHODS: dict[str, str] = {
    "is_null": "x is None",
    "is_not_null": "x is not None",
    "is_in": "x in [...]",
    "is_between": "lower <= x <= upper",
}
SIGNATURES: dict[str, str] = {
    "is_null": "x.is_null()",
    "is_not_null": "x.is_not_null()",
    "is_in": "x.is_in([literals])",
    "is_between": "x.is_between(lower_bound, upper_bound)",
}

_ROW_MIXING = frozenset(
    """
    agg_groups all any append approx_n_unique approx_quantile arg_max arg_min arg_sort arg_true arg_unique
    backward_fill bin_quantiles bin_ranks bottom_k bottom_k_by corr count cov cum_count cum_max cum_min cum_prod
    cum_sum cumcount cummax cummin cumprod cumsum cumulative_eval cut diff dot drop_nans drop_nulls entropy
    ewm_mean ewm_mean_by ewm_std ewm_sum ewm_var explode extend_constant ffill bfill filter first flatten
    forward_fill gather gather_every get group_by groupby has_nulls head hist implode index_of int_range
    interpolate interpolate_by is_duplicated is_first_distinct is_last_distinct is_sorted is_unique item
    kurtosis lag last lead len limit max max_by mean median min min_by mode n_unique nan_max nan_min null_count
    nunique over pct_change peak_max peak_min product qcut quantile rank reshape reverse rle rle_id rolling
    rolling_mean rolling_sum row_index row_number sample search_sorted shift shuffle skew slice sort sort_by std
    sum tail top_k top_k_by transform unique unique_counts upper_bound lower_bound value_counts var
    """.split()  # noqa: SIM905  a table of names
)
_INSTEAD = {
    "hash": "Polars' hash changes with its version: use the op `hash_bucket` or `modulo` of a feature",
    "map_elements": "Python functions are not run row by row",
    "map_batches": "Python functions are not run inside an expression",
    "apply": "Python functions are not run row by row",
    "isnull": "write `x is None`",
    "isna": "write `x is None`",
    "notnull": "write `x is not None`",
    "notna": "write `x is not None`",
    "fillna": "write `.fill_null(value)`",
    "astype": 'write `.cast("int64")`',
    "isin": "write `x in [...]`",
    "between": "write `lower <= x <= upper`",
    "alias": "an expression is named by its feature",
    "lit": "write the literal itself",
    "pow": "write `x ** y`",
    "struct.field": 'write `column["field"]`',
    "map.get": 'write `column["key"]`',
    "str.len": "write `.str.len_chars()` or `.str.len_bytes()`",
    "str.lower": "write `.str.to_lowercase()`",
    "str.upper": "write `.str.to_uppercase()`",
    "str.startswith": "write `.str.starts_with(text)`",
    "str.endswith": "write `.str.ends_with(text)`",
    "str.strip": "write `.str.strip_chars()`",
    "len": "write `.list.len()` or `.str.len_chars()`",
    "min": "write `min_horizontal(a, b)` for columns of one row, `.list.min()` for a list",
    "max": "write `max_horizontal(a, b)` for columns of one row, `.list.max()` for a list",
    "sum": "write `sum_horizontal(a, b)` or `a + b` for columns of one row, `.list.sum()` for a list",
    "mean": "write `mean_horizontal(a, b)` for columns of one row, `.list.mean()` for a list",
    "first": "write `.list.first()` for a list",
    "last": "write `.list.last()` for a list",
    "head": "write `.list.head(n)` or `.str.head(n)`",
    "tail": "write `.list.tail(n)` or `.str.tail(n)`",
    "slice": "write `.list.slice(offset, length)` or `.str.slice(offset, length)`",
    "forward_fill": "write `.fill_null(value)`",
    "backward_fill": "write `.fill_null(value)`",
}


def missing_function_fault(name: str, span: Span) -> Fault | None:
    """The fault of a function that the language lacks; None for one that it has."""
    if name in FUNCTIONS or name in OPERATOR_METHODS:
        return None
    return _missing_fault("function", name, [*FUNCTIONS, "col"], span)


def missing_method_fault(name: str, span: Span) -> Fault | None:
    """The fault of a method (`clip`, `dt.hour`) that the language lacks; None for one that it has."""
    if name in METHODS or name in OPERATOR_METHODS:
        return None
    namespace, dot, bare = name.rpartition(".")
    if not dot:
        return _missing_fault("method", name, [method for method in METHODS if "." not in method], span)
    methods = [method for method in METHODS if method.startswith(f"{namespace}.")]
    return _missing_fault("method", f"{namespace}.{bare}", methods, span)


def _missing_fault(what: str, name: str, names: list[str], span: Span) -> Fault:
    instead = _INSTEAD.get(name)
    remedy = f": {instead}" if instead else nearest(name, names)
    if "." not in name:
        if name in _ROW_MIXING or name.startswith(("cum_", "rolling_", "ewm_")):
            reason = (
                f"{quote_name(name)} mixes rows, and transforms are row-preserving: a value may depend on its own row "
                "only"
            )
            return Fault(f"{reason}. {instead[0].upper()}{instead[1:]}" if instead else reason, span)
        owners = [method for method in METHODS if method.endswith(f".{name}")]
        if owners and not instead:
            remedy = f": write `x.{owners[0]}(...)`"
    return Fault(f"the language has no {what} {quote_name(name)}{remedy}", span)
