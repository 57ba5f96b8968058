"""Write `train.py`: a program that trains on the planned pipeline, with the label and the held-out rows filled in.

Pure but for reading the program's text, which is a file of the package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from feedline.workbench.begin.init_plan import InitPlan
from feedline.workbench.begin.quoting import string_literal

_SOME_ROWS, _MANY_ROWS = 200_000, 2_000_000  # of a table, from which it is learnt more slowly, and with less decay
_PROGRAM = Path(__file__).with_name("train.py.txt")


def train_script(plan: InitPlan) -> str:
    """The text of train.py."""
    label = plan.label
    text = _PROGRAM.read_text(encoding="utf-8")
    for name, value in (
        ("LABEL", _string(label.feature.name)),
        ("TASK", _string(label.task)),
        ("CLASSES", repr(label.classes)),
        ("MEAN, STD", f"{label.mean!r}, {label.std!r}"),
        ("HELD_OUT", _mapping(plan.held_out_keys)),
        *_pace(plan.rows),
    ):
        text = _with_value(text, name, value)
    return text


def _pace(rows: int) -> tuple[tuple[str, str], ...]:
    """How fast to learn, and how long: small tables are learnt by heart, epochs of large ones take long."""
    if rows < _SOME_ROWS:
        return ("RATE, DECAY, DROPOUT", "2e-3, 0.1, 0.2"), ("EPOCHS, PATIENCE", "50, 5")
    if rows < _MANY_ROWS:
        return ("RATE, DECAY, DROPOUT", "2e-3, 0.03, 0.1"), ("EPOCHS, PATIENCE", "50, 3")
    return ("RATE, DECAY, DROPOUT", "1e-3, 0.01, 0.0"), ("EPOCHS, PATIENCE", "10, 1")


def _mapping(keys: Mapping[str, object]) -> str:
    pairs = ((key, _string(value) if isinstance(value, str) else repr(value)) for key, value in keys.items())
    return "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"


def _string(text: str) -> str:
    """A literal in double quotes, unless the string contains some."""
    return repr(text) if '"' in text else string_literal(text)


def _with_value(text: str, name: str, value: str) -> str:
    """The text with the value of a constant, whose line may end in a comment."""
    found = re.search(rf"^{name} = (?P<value>.*?)(?=  # |$)", text, re.MULTILINE)
    assert found is not None, name
    return text[: found.start("value")] + value + text[found.end("value") :]
