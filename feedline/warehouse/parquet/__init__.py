"""One Parquet file: footer, bounds, bloom filters, schemas, opening, writing, encodings."""
