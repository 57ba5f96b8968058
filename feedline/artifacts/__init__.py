"""What ops know besides parameters: what was fitted, and files outside the table."""
