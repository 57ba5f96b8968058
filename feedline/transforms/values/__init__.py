"""What flows between ops: kinds, flat arrays, ragged lists, lookup counts."""
