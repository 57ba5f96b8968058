"""One module per command, with its tables."""
