"""Which rows of a rewritten table were delivered."""
