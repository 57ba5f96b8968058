"""The cluster that computes a feeder's blocks: threads of the feeder, processes on this machine, or a Dask cluster."""
