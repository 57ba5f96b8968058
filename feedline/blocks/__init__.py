"""One block: the request, its schema, and the function that computes it. Nothing here knows Dask."""
