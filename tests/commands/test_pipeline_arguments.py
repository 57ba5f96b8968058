"""Commands on a pipeline share their arguments, so that they are described and completed alike."""

from __future__ import annotations

import inspect

import pytest

from feedline import cli
from feedline.commands import check, fit, materialize, pipeline_arguments, transform

SHARED = {
    "pipeline": pipeline_arguments.PipelinePath,
    "overrides": pipeline_arguments.Overrides,
    "as_json": pipeline_arguments.AsJson,
}
COMMANDS = [
    cli.run,
    cli.plan,
    cli.head,
    check.check,
    fit.fit,
    materialize.materialize,
    transform.transform,
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_commands_share_their_arguments(command):
    found = inspect.signature(command, eval_str=True).parameters
    assert "pipeline" in found
    for name in SHARED.keys() & found.keys():
        assert found[name].annotation == SHARED[name], name
