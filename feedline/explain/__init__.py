"""Explain a run: a short one, one that is running, or the last one."""
