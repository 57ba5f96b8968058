"""Facts of a table that a person or `feedline init` decides from: its layout, its columns, what may be a label."""
