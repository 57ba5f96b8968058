"""Plans that follow the lengths of a list column: the column, and schedules of buckets."""
