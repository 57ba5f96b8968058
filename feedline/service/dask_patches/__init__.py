"""What is changed of Dask: its settings, and internals of the versions that are supported."""
