"""Processes that compute blocks for feeders elsewhere: how they start, and how they leave without losing work."""
