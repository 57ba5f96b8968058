"""Passes over a table that make artifacts."""
