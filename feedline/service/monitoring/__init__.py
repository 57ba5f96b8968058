"""How processes are watched from outside: metrics that Prometheus scrapes, and spans of blocks."""
