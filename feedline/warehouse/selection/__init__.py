"""How many rows of each row group are read, and what decided it."""
