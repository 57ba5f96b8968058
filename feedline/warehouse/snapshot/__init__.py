"""The frozen table, and how it is taken."""
