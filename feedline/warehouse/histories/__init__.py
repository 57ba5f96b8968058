"""Find the events of a key in a table of histories."""
