"""Feature specs to one pass over a frame."""
