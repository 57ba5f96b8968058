"""pipeline.yaml to checked values that know their positions: sections, features, overrides, JSON Schema."""

from feedline.spec.pipeline_spec import PipelineSpec, load_spec, parse_spec

__all__ = ["PipelineSpec", "load_spec", "parse_spec"]
