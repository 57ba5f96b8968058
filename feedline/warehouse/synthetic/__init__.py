"""The generated table of clicks."""
