"""The functions and methods of the language, with their signatures."""
