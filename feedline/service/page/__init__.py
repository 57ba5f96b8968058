"""The live page of Feedline in the server of Dask's dashboard, loaded when a page is opened."""
