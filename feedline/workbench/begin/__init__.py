"""`feedline init`: a first pipeline.yaml and a train.py for a table."""
