"""Ask a person for the label, the time and the session, with the best guess as the answer of an empty line.

Runs in: the process of `feedline init`, on a terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import Console

from feedline.commands.begin.choices.label_choice import guess_label
from feedline.commands.begin.init_plan import Choices
from feedline.commands.begin.plan_pipeline import WORTHWHILE
from feedline.commands.begin.quoting import comment
from feedline.commands.display.consoles import say
from feedline.errors import SpecError
from feedline.profiling.table_facts import TableFacts

with suppress(ImportError):  # a Python without it asks, too
    import readline  # noqa: F401 -- `input` edits its line with it, and ends at Ctrl-C even where `read` is begun again

_SHOWN = 8
NONE = "-"  # the answer for "none"

Read = Callable[[str], str]


def is_interactive() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask_choices(facts: TableFacts, choices: Choices, console: Console, read: Read = input) -> Choices:
    """The choices, those that are open answered by a person. Raises SpecError where the input ends."""
    columns = [column.name for column in facts.columns]
    label, time, session = choices.label, choices.time, choices.session
    if label is None:
        options = [(each.column, each.reason) for each in facts.labels]
        default = guess_label(facts)
        label = _ask("Which column shall the model predict?", options, columns, default, console, read, optional=False)
    if time is None and facts.times:
        options = [(each.column, each.reason) for each in facts.times if each.column != label]
        if options:
            question = f"Which column is the time of a row? Its last rows are held out ({NONE}: none)."
            time = _ask(question, options, columns, options[0][0], console, read)
    if session is None:
        found = [each for each in facts.sessions if each.clustered and each.saved_share >= WORTHWHILE]
        if found:
            question = (
                f"Which column says what belongs to one session, whose repeated values are sent once ({NONE}: none)?"
            )
            options = [(each.column, each.reason) for each in found]
            session = _ask(question, options, columns, options[0][0], console, read)
    return Choices(label=label, time=time, session=session, max_features=choices.max_features)


def _ask(
    question: str,
    options: Sequence[tuple[str, str]],
    columns: Sequence[str],
    default: str | None,
    console: Console,
    read: Read,
    *,
    optional: bool = True,
) -> str:
    """One answer: a number of the list, a column, or nothing for the default; "" for none."""
    say(console, f"\n{question}")
    for index, (name, reason) in enumerate(options[:_SHOWN], 1):
        say(console, f"  {index}. {comment(name)}: {comment(reason)}")
    prompt = "A number or a column" + (f" [{comment(default)}]: " if default is not None else ": ")
    while True:
        try:
            answer = read(prompt).strip()
        except EOFError:
            raise SpecError(
                "the input ended before an answer: got nothing. Answer with --label, --time, --session"
            ) from None
        if not answer and default is not None:
            return default
        if answer == NONE and optional:
            return ""
        if answer in columns:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= min(_SHOWN, len(options)):
            return options[int(answer) - 1][0]
        say(console, f"no column {answer!r}: expected a number of the list, or one of {_some(columns)}")


def _some(columns: Sequence[str]) -> str:
    more = f", and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return ", ".join(map(comment, columns[:_SHOWN])) + more
