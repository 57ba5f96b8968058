"""The back end of threads in the feeder: plain ones first, then those of a Dask cluster in this process."""
