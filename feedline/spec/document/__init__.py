"""The text of a pipeline.yaml as values with positions, before its keys are checked."""
