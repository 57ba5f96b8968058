"""The column groups of a training job: which of a pipeline's features each of its processes reads.

Runs in: the trainer, the feeder, the CLI. Pure. A column group has no key in pipeline.yaml: processes that read groups
of one file are one job, of one plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from feedline.config.features import GROUPS
from feedline.config.pipeline_spec import PipelineSpec
from feedline.config.yaml_document import describe_value, unknown_message
from feedline.errors import SpecError

_SHOWN_NAMES, _SHOWN_CHARACTERS, _DIGITS = 2, 40, 8


def choose_features(spec: PipelineSpec, names: Sequence[str]) -> tuple[str, ...]:
    """The features of a column group, in the file's order.

    names: of features, or of the tensors that pipeline.yaml groups them by, such as "dense", which stand for all of
    their features; where a feature has such a name, the feature is meant. Raises SpecError for an unknown name, and
    for no name.
    """
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        got = next((name for name in names if not isinstance(name, str)), names) if names else names
        raise SpecError(
            f'features must be a list of names: got {describe_value(got)}, expected for example ["dense", "label"]'
        )
    features = {feature.name: feature.group for feature in spec.features}
    groups = [group for group in GROUPS if group in features.values()]
    if not names:
        shown = ", ".join(map(repr, groups))
        raise SpecError(f"features must not be empty: got no name, expected features or {shown}. Or leave it out")
    for name in names:
        if name not in features and name not in groups:
            raise spec.error(
                ("features",), unknown_message("feature or group", name, dict.fromkeys([*features, *groups]))
            )
    chosen = {name for name in names if name in features}
    whole = set(names).difference(chosen)
    return tuple(name for name, group in features.items() if name in chosen or group in whole)


def column_group_name(features: Sequence[str]) -> str:
    """The name of a column group: its first features, and a digest of all; "" for all features of a pipeline."""
    if not features:
        return ""
    shown = ", ".join(features[:_SHOWN_NAMES])
    cut = len(features) > _SHOWN_NAMES or len(shown) > _SHOWN_CHARACTERS
    digest = hashlib.sha256(json.dumps(list(features)).encode()).hexdigest()[:_DIGITS]
    return f"{shown[:_SHOWN_CHARACTERS]}{' …' if cut else ''} ({digest})"
