"""Commands that show a table, or write it anew."""
