"""Compare what trainers received with the plan; see docs/training.md."""
