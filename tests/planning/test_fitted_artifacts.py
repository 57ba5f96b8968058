"""The folder and the key of a pipeline's artifact set."""

from __future__ import annotations

import pytest
from minimal_pipeline import completed

from feedline.config import PipelineSpec, parse_spec
from feedline.planning.table_features import artifact_set_key, artifact_set_ref, artifacts_dir


def spec_of(text: str = "") -> PipelineSpec:
    return parse_spec(completed(text), base_dir="/base")


def test_artifacts_lie_in_the_work_dir_unless_a_folder_is_named():
    assert artifacts_dir(spec_of()) == "/base/work/artifacts"
    assert artifacts_dir(spec_of("artifacts: fits\n")) == "/base/fits"


@pytest.mark.parametrize(
    "other",
    [
        "name: other\n",
        "source: {table: elsewhere}\n",
        "source: {table: data, sample: {fraction: 0.5}}\n",
        'fit: {where: "price > 0"}\n',
        "artifacts: {from: other}\n",
    ],
)
def test_what_decides_a_fit_is_in_its_key(other: str):
    assert artifact_set_key(spec_of()) == artifact_set_key(spec_of("batch: {size: 16}\n"))
    assert artifact_set_key(spec_of()) != artifact_set_key(spec_of(other))


def test_rows_that_are_served_were_seen_by_no_fit():
    assert artifact_set_ref(spec_of()).out_of_fold
    assert not artifact_set_ref(spec_of(), served=True).out_of_fold
