"""The warehouse: Hive-partitioned Parquet tables, the rows selected from them, and how these are read.

`table` is the entry point; `snapshot` freezes a table and cuts it into splits, `selection` counts the rows that a
filter keeps, `reading` turns a split into frames.
"""
