"""The feeder and its Dask cluster, which turn a plan's blocks into slots of the ring."""
