"""Tables in a pipe are not cut to the width of a terminal that is not there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = (
    "from rich.table import Table\n"
    "from feedline.commands.consoles import console_on\n"
    "table = Table()\n"
    "table.add_column('name', no_wrap=True)\n"
    "table.add_row('x' * 150)\n"
    "console_on(stderr={}).print(table)\n"
)


@pytest.mark.parametrize("stderr", [False, True])
def test_a_piped_table_is_whole(stderr: bool):
    environment = {**os.environ, "COLUMNS": "60"}  # of a terminal that the caller has
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(stderr)], env=environment, capture_output=True, text=True, check=True
    )
    assert "x" * 150 in (done.stderr if stderr else done.stdout)
