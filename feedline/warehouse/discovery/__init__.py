"""Which files make a table: Hive folders, manifests, Delta, Iceberg."""
