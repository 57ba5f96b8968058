"""Rows of a fragment as frames: columns, filter, sample, positions."""
