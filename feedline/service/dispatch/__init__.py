"""Blocks computed ahead of the trainer on a Dask cluster, whatever happens to its workers."""
