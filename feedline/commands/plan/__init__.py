"""`feedline plan` and its views."""
