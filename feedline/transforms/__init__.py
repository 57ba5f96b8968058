"""From columns to features: the ops, and the pass that applies them to a frame."""
