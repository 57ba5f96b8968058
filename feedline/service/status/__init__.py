"""The status of a feeder: what its trainers, its cluster and its decisions are, gathered and published."""
