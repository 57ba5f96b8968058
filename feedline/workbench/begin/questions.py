"""Ask a person for the label, the time and the session, with the best guess as the answer of an empty line.

Runs in: the process of `feedline init`, on a terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from rich.console import Console

from feedline.commands.consoles import say
from feedline.errors import SpecError
from feedline.workbench.begin.figures import number
from feedline.workbench.begin.init_plan import Choices
from feedline.workbench.begin.label_choice import MOST_CLASSES, guess_label
from feedline.workbench.begin.plan_pipeline import WORTHWHILE
from feedline.workbench.begin.quoting import comment
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts

with suppress(ImportError):  # a Python without it asks, too
    import readline  # noqa: F401 -- `input` edits its line with it, and ends at Ctrl-C even where `read` is begun again

_SHOWN = 8
_NAME_WIDTH = 40  # of names in the list of columns, which are aligned up to it
NONE, LIST = "-", "?"  # the answers for "none", and for the list of columns

Read = Callable[[str], str]


def is_interactive() -> bool:
    """Whether there is a person to ask."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask_choices(facts: TableFacts, choices: Choices, console: Console, read: Read = input) -> Choices:
    """The choices, those that are open answered by a person. Raises SpecError where the input ends."""
    columns = {column.name: _kind(column) for column in facts.columns}
    label, time, session = choices.label, choices.time, choices.session
    if label is None:
        options = [(each.column, each.reason) for each in facts.labels]
        options += [(each.name, _kind(each)) for each in facts.columns if _may_be_classes(each)]
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
    columns: Mapping[str, str],
    default: str | None,
    console: Console,
    read: Read,
    *,
    optional: bool = True,
) -> str:
    """One answer: a number of the list, a column, or nothing for the default; "" for none. columns: with their kinds,
    which `?` lists."""
    say(console, f"\n{question}")
    for index, (name, reason) in enumerate(options[:_SHOWN], 1):
        say(console, f"  {index}. {comment(name)}: {comment(reason)}")
    if not options:
        _list_columns(columns, console)
    prompt = f"A number or a column, {LIST} for all columns" + (f" [{comment(default)}]: " if default else ": ")
    while True:
        try:
            answer = read(prompt).strip()
        except EOFError:
            raise SpecError(
                "the input ended before an answer: got nothing. Answer with --label, --time, --session"
            ) from None
        if not answer and default is not None:
            return default
        if answer in columns:
            return answer
        if answer == NONE and optional:
            return ""
        if answer == LIST:
            _list_columns(columns, console)
            continue
        if answer.isdecimal() and 1 <= int(answer) <= min(_SHOWN, len(options)):
            return options[int(answer) - 1][0]
        say(console, f"no column {answer!r}: expected a number of the list, or one of {_some(columns)}")


def _some(columns: Collection[str]) -> str:
    more = f", and {len(columns) - _SHOWN} more ({LIST} lists them)" if len(columns) > _SHOWN else ""
    return ", ".join(map(comment, islice(columns, _SHOWN))) + more


def _list_columns(columns: Mapping[str, str], console: Console) -> None:
    """Print all columns with their kinds."""
    width = max((len(comment(name)) for name in columns), default=0)
    for name, kind in columns.items():
        say(console, f"  {comment(name):<{min(width, _NAME_WIDTH)}}  {kind}")


def _kind(column: ColumnProfile) -> str:
    """A column's type, and how many values it has."""
    if column.vocabulary is None or column.role == "list":
        return column.type
    about = "" if column.vocabulary.table == column.vocabulary.sample else "about "
    return f"{column.type}, {about}{number(column.vocabulary.table)} values"


def _may_be_classes(column: ColumnProfile) -> bool:
    """Whether strings are classes that a model may tell apart."""
    values = column.vocabulary
    is_text = column.role == "string" and not column.partition and column.string_bytes is not None
    return is_text and column.reason is None and values is not None and 2 <= values.table <= MOST_CLASSES
