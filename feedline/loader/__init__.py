"""The way from encoded rows to the trainer: layout of a slot, ring, dataset and state."""
