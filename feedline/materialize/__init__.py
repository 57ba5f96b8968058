"""The finished features of a plan as files: zarr arrays or Parquet."""
