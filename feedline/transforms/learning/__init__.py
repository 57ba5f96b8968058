"""Mergeable statistics, and what becomes of them."""
