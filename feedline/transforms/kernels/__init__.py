"""Functions of numpy arrays to numpy arrays, without any op or feature."""
