"""Every function of the language gives what its line in the reference says, in edge cases, too.

The functions are tested in `test_scalars` and `test_namespaces`; here, the catalogue as a whole.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import polars as pl
import pytest
from typed_columns import assert_evaluates, assert_refused

from feedline.errors import ExpressionError
from feedline.expressions import namespaces, parse, scalars
from feedline.expressions.reference import FUNCTIONS, METHODS, OPERATOR_METHODS, SIGNATURES

REFERENCE = Path(__file__).parents[2] / "docs" / "expressions.md"

EXPECTED: dict[str, tuple[pl.DataType, list[object]]] = {
    "i.is_null()": (pl.Boolean(), [False, False, True]),
    "i.is_not_null()": (pl.Boolean(), [True, True, False]),
    "i.is_in([5, 7.5])": (pl.Boolean(), [False, True, None]),
    "i.is_between(-128, 4)": (pl.Boolean(), [True, False, None]),
}


@pytest.mark.parametrize("text", EXPECTED)
def test_methods_of_operators(text: str):
    assert_evaluates(text, *EXPECTED[text])


def test_every_method_of_an_operator_has_an_expected_value():
    written = " ".join(EXPECTED)
    assert not [name for name in OPERATOR_METHODS if not re.search(rf"\b{name}\(", written)]


def test_the_catalogue_is_of_scalars_and_namespaces():
    assert list(FUNCTIONS) == [function.name for function in (*scalars.FUNCTIONS, *scalars.METHODS)]
    assert list(METHODS) == [method.name for method in (*scalars.METHODS, *namespaces.METHODS)]


def test_the_reference_lists_exactly_the_catalogue():
    reference = REFERENCE.read_text(encoding="utf-8")
    declared = {f"| `{f.usage()}` | {f.summary} |" for f in {**FUNCTIONS, **METHODS}.values()}
    declared |= {f"| `{SIGNATURES[name]}` | the same as `{OPERATOR_METHODS[name]}` |" for name in OPERATOR_METHODS}
    listed = set(re.findall(r"^\| `[^`]*\)` \| .* \|$", reference[reference.index("## Functions") :], re.MULTILINE))
    assert listed == declared


WRONG = {
    "i.is_in(5)": "expected `x.is_in([literals])`, which is `x in [...]`",
    "i.is_between(1)": "expected `x.is_between(lower_bound, upper_bound)`",
}


@pytest.mark.parametrize("text", WRONG)
def test_wrong_arguments_of_operators_are_refused(text: str):
    assert_refused(text, WRONG[text])


MIXING = """
all any append approx_n_unique arg_max arg_min arg_sort backward_fill bottom_k count cum_count cum_max cum_min
cum_prod cum_sum cumulative_eval diff drop_nans drop_nulls ewm_mean explode extend_constant filter first forward_fill
gather get head implode interpolate is_duplicated is_first_distinct is_unique item last len limit max mean median min
mode n_unique null_count over pct_change peak_max product quantile rank reshape reverse rle rolling_mean rolling_sum
sample shift shuffle skew slice sort sort_by std sum tail top_k unique value_counts var
""".split()  # noqa: SIM905  a table of names


def test_methods_that_mix_rows_are_refused_by_name():
    assert not [name for name in MIXING if not hasattr(pl.Expr, name)]
    for name, text in itertools.product(MIXING, ["g.{}()", "{}(g)"]):
        with pytest.raises(ExpressionError, match=f"`{name}` mixes rows, and transforms are row-preserving"):
            parse(text.format(name))


def test_methods_of_polars_that_the_language_lacks_are_refused():
    for namespace in ("", "dt", "str", "list"):
        holder = getattr(pl.col("x"), namespace) if namespace else pl.col("x")
        prefix = f"{namespace}." if namespace else ""
        for name in dir(holder):
            known = f"{prefix}{name}" in METHODS or name in OPERATOR_METHODS
            if not name.startswith("_") and not known:
                with pytest.raises(ExpressionError):
                    parse(f"x.{prefix}{name}()")
