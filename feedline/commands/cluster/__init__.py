"""The commands of a cluster that many jobs share."""
