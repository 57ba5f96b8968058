"""Artifacts of ops: fitted statistics, and external tables and arrays."""
