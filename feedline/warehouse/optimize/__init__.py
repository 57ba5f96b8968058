"""Rewriting a table so that it is cheap to read, and the usage record that guides it."""
