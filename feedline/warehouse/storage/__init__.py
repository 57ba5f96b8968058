"""Bytes at a path or URI: locations, ranges, retries, faults, content-addressed files."""
