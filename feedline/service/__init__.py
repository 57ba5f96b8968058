"""The feeder and its Dask cluster: what turns the plan's blocks into slots of the ring."""
