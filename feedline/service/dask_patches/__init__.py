"""Dask's settings, and changes to internals of the versions of distributed that `versions` names."""
