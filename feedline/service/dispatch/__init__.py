"""Blocks computed ahead of the trainer on a Dask cluster, through failures of its workers."""
