"""Tables of HTML, as which notebooks show batches, schemas and plans."""
