"""One block: the request, its schema, and the function that computes it. No Dask."""
