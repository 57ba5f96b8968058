"""Orders of a block's rows that follow the lengths of a list column."""
