"""What flows between ops (kinds, flat arrays, ragged lists, lookup counts), and functions of arrays without any op."""
