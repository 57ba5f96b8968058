"""`feedline generate`: example tables of any size, reproducible from a seed."""
