"""Text of `where` and `expr` to a typed Polars expression, a predicate, and the column parts that it reads."""

from feedline.expressions.bind import BoundExpression, Expression, bind, bind_where, parse

__all__ = ["BoundExpression", "Expression", "bind", "bind_where", "parse"]
