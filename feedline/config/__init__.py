"""Read pipeline.yaml into checked values with source positions: sections, features, overrides, JSON Schema."""

from feedline.config.pipeline_spec import PipelineSpec, load_spec, parse_spec

__all__ = ["PipelineSpec", "load_spec", "parse_spec"]
