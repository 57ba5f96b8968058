"""`--metrics` and `--metrics-dir` of a scheduler and a worker."""

from __future__ import annotations

import pytest

from feedline.commands.cluster.metrics_options import metrics_options
from feedline.config.monitoring_section import MetricsSpec
from feedline.errors import SpecError


def test_an_address_a_folder_or_both():
    assert metrics_options(None, None) is None
    assert metrics_options("0.0.0.0:9400", None) == MetricsSpec(listen="0.0.0.0:9400")
    assert metrics_options("/a/b", None) == metrics_options(None, "/a/b") == MetricsSpec(dir="/a/b")
    assert metrics_options("0.0.0.0:0", "/a") == MetricsSpec(listen="0.0.0.0:0", dir="/a")


def test_others_are_refused():
    with pytest.raises(SpecError, match="--metrics and --metrics-dir name two folders: got '/a' and '/b'"):
        metrics_options("/a", "/b")
    with pytest.raises(SpecError, match="--metrics must be HOST:PORT with a port up to 65535: got 'a:70000'"):
        metrics_options("a:70000", None)
    with pytest.raises(SpecError, match="must be the path of a local or mounted folder: got 's3://b'"):
        metrics_options("s3://b", None)
