"""Encode rows outside a run, and check installations against golden vectors."""
