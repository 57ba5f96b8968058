"""Add columns to a table, and drop them, without rewriting it."""
