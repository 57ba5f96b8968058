"""Measure deduplicated groups on a sample of rows, and propose them."""
