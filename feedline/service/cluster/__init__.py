"""The Dask cluster of a pipeline, and the connection to it."""
