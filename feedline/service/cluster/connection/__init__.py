"""A feeder's connection to a Dask scheduler: opened, checked, watched, and used for reports."""
