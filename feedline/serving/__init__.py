"""Rows to arrays outside a run, and golden vectors."""
