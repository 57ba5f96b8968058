"""How an op is declared and a call resolved, and Python functions as ops."""
