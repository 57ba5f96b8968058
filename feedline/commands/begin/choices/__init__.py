"""What becomes of a column, of the label, and which rows are held out: decisions of `feedline init`."""
