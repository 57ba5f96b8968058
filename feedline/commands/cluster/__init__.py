"""The commands of a cluster that several jobs share: its processes, its jobs, its certificates."""
