"""The commands that look after a cache's folder."""
