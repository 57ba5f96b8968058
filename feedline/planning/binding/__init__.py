"""Bind the parts of a pipeline.yaml to the columns of a table; errors name file, line and path."""
