"""`feedline init`: from the facts of a table to a pipeline.yaml with its reasons, and a program that trains."""
