"""The order of a block's rows: permuted, in whole runs, or by the lengths of a list column."""
