"""The warehouse: what a Hive-partitioned Parquet table holds, which of its rows are wanted, and how they are read.

`table` is the front door; `snapshot` freezes a table, `selection` counts what a filter keeps, `splits` cuts it up,
`reading` turns a split into frames.
"""
