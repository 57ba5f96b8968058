"""Turn the strings of `where` and `expr` into typed Polars expressions, predicates, and the column parts they read."""

from feedline.expressions.bind import BoundExpression, Expression, bind_expression, bind_where, parse

__all__ = ["BoundExpression", "Expression", "bind_expression", "bind_where", "parse"]
