"""Mergeable statistics, and the artifacts made of them."""
