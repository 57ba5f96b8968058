"""Compare two pipelines, for `feedline diff`: rows, what is read, features, fingerprints, cost."""
