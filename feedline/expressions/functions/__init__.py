"""Functions and methods of the expression language, with their signatures."""
