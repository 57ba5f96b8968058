"""Frames to arrays to the bytes of a slot."""
