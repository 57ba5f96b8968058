"""`feedline profile`: what a table holds, and the drift between two tables or days."""
