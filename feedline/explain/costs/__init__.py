"""What columns, ops and features cost, and what other data would: measured on sampled blocks."""
