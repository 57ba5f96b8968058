"""Delete rows of a table: only the row groups that hold them are written anew."""
