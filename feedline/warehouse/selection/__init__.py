"""How many rows of each row group stay, and who decided."""
