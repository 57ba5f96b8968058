"""Write a pipeline.yaml and a train.py for a table, for `feedline init`.

Runs in: the process of the command. It reads the table's footers and a sample of its rows; the decisions are pure
(`plan_pipeline`). Nothing is written before everything is decided and tried. Ctrl-C leaves nothing behind.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from feedline.commands.consoles import console_on, say
from feedline.commands.exit_status import exit_on_signals
from feedline.commands.progress_line import ProgressLine
from feedline.commands.schema import SCHEMA_FILE, write_json_schema
from feedline.errors import SpecError, TableError
from feedline.pipeline import Pipeline
from feedline.resources.scratch import scratch_folder
from feedline.warehouse.storage.locations import redact
from feedline.workbench.begin.init_plan import Choices, InitPlan
from feedline.workbench.begin.label_choice import MOST_CLASSES, guess_label, require_label
from feedline.workbench.begin.pipeline_text import decisions_of, pipeline_text
from feedline.workbench.begin.plan_pipeline import WORTHWHILE, guess_choices
from feedline.workbench.begin.quoting import comment, number, string_literal
from feedline.workbench.begin.trial import TrialFolder, try_plan
from feedline.workbench.profile.profile_table import table_facts_of
from feedline.workbench.profile.table_facts import ColumnProfile, TableFacts
from feedline.workbench.profile.table_sample import ProfileOptions, TableSample, sample_table, unlike_files

# --------------------------------------------------------------------------------------------------------------------
# Ask a person for the label, the time and the session, with the best guess as the answer of an empty line.

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
    terminal = _Terminal({column.name: _kind(column) for column in facts.columns}, console, read)
    label, time, session = choices.label, choices.time, choices.session
    if label is None:
        options = [(each.column, each.reason) for each in facts.labels]
        options += [(each.name, _kind(each)) for each in facts.columns if _may_be_classes(each)]
        default = guess_label(facts)
        label = terminal.ask("Which column shall the model predict?", options, default=default, optional=False)
    if time is None and facts.times:
        options = [(each.column, each.reason) for each in facts.times if each.column != label]
        if options:
            question = f"Which column is the time of a row? Its last rows are held out ({NONE}: none)."
            time = terminal.ask(question, options, default=options[0][0])
    if session is None:
        worthwhile = [each for each in facts.sessions if each.clustered and each.saved_share >= WORTHWHILE]
        options = [(each.column, each.reason) for each in worthwhile]
        if options:
            question = "Which column says what belongs to one session, whose repeated values are sent once"
            session = terminal.ask(f"{question} ({NONE}: none)?", options, default=options[0][0])
    return replace(choices, label=label, time=time, session=session)


class _Terminal:
    """Asks for columns. columns: with their kinds, which `?` lists."""

    def __init__(self, columns: Mapping[str, str], console: Console, read: Read) -> None:
        self._columns, self._console, self._read = columns, console, read

    def ask(
        self, question: str, options: Sequence[tuple[str, str]], *, default: str | None, optional: bool = True
    ) -> str:
        """One answer: a number of the list, a column, or nothing for the default; "" for none."""
        say(self._console, f"\n{question}")
        for index, (name, reason) in enumerate(options[:_SHOWN], 1):
            say(self._console, f"  {index}. {comment(name)}: {comment(reason)}")
        if not options:
            self._list()
        prompt = f"A number or a column, {LIST} for all columns" + (f" [{comment(default)}]: " if default else ": ")
        while True:
            try:
                answer = self._read(prompt).strip()
            except EOFError:
                raise SpecError(
                    "the input ended before an answer: got nothing. Answer with --label, --time, --session"
                ) from None
            if not answer and default is not None:
                return default
            if answer in self._columns:
                return answer
            if answer == NONE and optional:
                return ""
            if answer == LIST:
                self._list()
                continue
            if answer.isdecimal() and 1 <= int(answer) <= min(_SHOWN, len(options)):
                return options[int(answer) - 1][0]
            names = ", ".join(map(comment, islice(self._columns, _SHOWN)))
            left = len(self._columns) - _SHOWN
            more = f", and {left} more ({LIST} lists them)" if left > 0 else ""
            say(self._console, f"no column {answer!r}: expected a number of the list, or one of {names}{more}")

    def _list(self) -> None:
        width = min(max((len(comment(name)) for name in self._columns), default=0), _NAME_WIDTH)
        for name, kind in self._columns.items():
            say(self._console, f"  {comment(name):<{width}}  {kind}")


def _kind(column: ColumnProfile) -> str:
    if column.vocabulary is None or column.role == "list":
        return column.type
    about = "" if column.vocabulary.table == column.vocabulary.sample else "about "
    return f"{column.type}, {about}{number(column.vocabulary.table)} values"


def _may_be_classes(column: ColumnProfile) -> bool:
    values = column.vocabulary
    is_text = column.role == "string" and not column.partition and column.string_bytes is not None
    return is_text and column.reason is None and values is not None and 2 <= values.table <= MOST_CLASSES


# --------------------------------------------------------------------------------------------------------------------
# Write `train.py`: a program that trains on the planned pipeline, with the label and the held-out rows filled in.
# Pure but for reading the program's text, which is a file of the package.

_SOME_ROWS, _MANY_ROWS = 200_000, 2_000_000  # of a table, from which it is learnt more slowly, and with less decay
_PROGRAM = Path(__file__).with_name("train.py.txt")


def train_script(plan: InitPlan) -> str:
    """The text of train.py."""
    label = plan.label
    text = _PROGRAM.read_text(encoding="utf-8")
    held_out = ", ".join(f'"{key}": {_literal(value)}' for key, value in plan.held_out_keys.items())
    for name, value in (
        ("LABEL", _literal(label.feature.name)),
        ("TASK", _literal(label.task)),
        ("CLASSES", repr(label.classes)),
        ("MEAN, STD", f"{label.mean!r}, {label.std!r}"),
        ("HELD_OUT", f"{{{held_out}}}"),
        *_pace(plan.rows),
    ):
        # the value of a constant, whose line may end in a comment
        constant = re.compile(rf"^{name} = (.*?)(?=  # |$)", re.MULTILINE)
        assert constant.search(text) is not None, name
        text = constant.sub(lambda _, line=f"{name} = {value}": line, text, count=1)  # type: ignore[misc]
    return text


def _pace(rows: int) -> tuple[tuple[str, str], ...]:
    """How fast to learn, and how long: small tables are learnt by heart, epochs of large ones take long."""
    if rows < _SOME_ROWS:
        return ("RATE, DECAY, DROPOUT", "2e-3, 0.1, 0.2"), ("EPOCHS, PATIENCE", "50, 5")
    if rows < _MANY_ROWS:
        return ("RATE, DECAY, DROPOUT", "2e-3, 0.03, 0.1"), ("EPOCHS, PATIENCE", "50, 3")
    return ("RATE, DECAY, DROPOUT", "1e-3, 0.01, 0.0"), ("EPOCHS, PATIENCE", "10, 1")


def _literal(value: object) -> str:
    """A literal; of a string in double quotes, unless it contains some."""
    return string_literal(value) if isinstance(value, str) and '"' not in value else repr(value)


# --------------------------------------------------------------------------------------------------------------------

PIPELINE_FILE, SCRIPT_FILE = "pipeline.yaml", "train.py"


def init(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Parquet: a folder, file or glob; a Delta or Iceberg table.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to.")] = Path(),
    label: Annotated[str | None, typer.Option(help="Column to predict (default: guessed, or asked).")] = None,
    time: Annotated[
        str | None, typer.Option(help='Column that is the time of a row: its last rows are held out; "" for none.')
    ] = None,
    session: Annotated[
        str | None, typer.Option(help='Column whose equal values are a session, for deduplication; "" for none.')
    ] = None,
    max_features: Annotated[int, typer.Option(min=1, help="Most features.")] = 500,
    table_format: Annotated[str, typer.Option("--format", help="auto, hive, manifest, delta or iceberg.")] = "auto",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take the guesses.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Print pipeline.yaml, and write nothing.")] = False,
    schema: Annotated[
        bool, typer.Option("--schema", help=f"Also write {SCHEMA_FILE}, by which editors check pipeline.yaml.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Fit and train as well, and compare with a logistic regression.")
    ] = False,
) -> None:
    """Look at a table, and write a commented pipeline.yaml and a train.py that runs.

    It guesses the label, the time and what becomes of each column, says why, and asks only on a terminal.
    """
    if not stdout and not force:
        _refuse_existing(output)
    if check:
        _require_packages()
    console = console_on(stderr=stdout)
    choices = Choices(label=label, time=time, session=session, max_features=max_features)
    with exit_on_signals(lambda: say(Console(stderr=True), "\nstopped: nothing was written")):
        facts, choices, sample = _look(
            table, table_format, choices, ask=not yes and not stdout and is_interactive(), console=console
        )
        with scratch_folder() as scratch:
            folder = TrialFolder(folder=str(output.absolute()), work_dir=str(scratch))
            plan = try_plan(sample, facts, choices, table=_named_from(table, output), folder=folder)
        if stdout:
            print(pipeline_text(plan), end="")
            return
        files = {PIPELINE_FILE: pipeline_text(plan, schema=schema), SCRIPT_FILE: train_script(plan)}
        _write(output, files, schema=schema)
    _print_summary(plan, output, [*files, *([SCHEMA_FILE] if schema else [])], console)
    if check:
        from feedline.workbench.begin.baseline import train_and_compare  # noqa: PLC0415 -- packages that few have

        say(console, f"\npython {output / SCRIPT_FILE}:")
        figure = train_and_compare(output, PIPELINE_FILE, SCRIPT_FILE)
        kind = "linear" if plan.label.task == "regression" else "logistic"
        say(console, f"a {kind} regression on the same rows and features:\n{figure}")


def _look(
    table: str, table_format: str, choices: Choices, *, ask: bool, console: Console
) -> tuple[TableFacts, Choices, TableSample]:
    """The facts of the table beside its label, the choices, and the sample that both are of."""
    options = ProfileOptions(
        label=choices.label,
        time=choices.time or None,
        session=choices.session or None,
        values=True,
        format=table_format,
    )
    with ProgressLine():
        sample = sample_table(table, options)
        _require_one_table(sample, redact(table))
        facts = table_facts_of(sample, options)
    facts = replace(facts, uri=redact(table))
    chosen = guess_choices(facts, ask_choices(facts, choices, console) if ask and facts.rows else choices)
    require_label(facts, chosen.label)
    if chosen.label == facts.label and (chosen.time or facts.time) == facts.time:
        return facts, chosen, sample
    options = replace(options, label=chosen.label, time=chosen.time or None, session=chosen.session or None)
    with ProgressLine():  # the columns were compared with another label, or none
        facts = table_facts_of(sample, options)
    return replace(facts, uri=redact(table)), chosen, sample


def _require_one_table(sample: TableSample, table: str) -> None:
    """Raise TableError for files that no pipeline reads as one table, or that nobody means to."""
    if sample.contradiction is not None:
        raise sample.contradiction
    if (unlike := unlike_files(sample.snapshot)) is not None:
        raise TableError(
            f"{table} seems to hold several tables: got {unlike}, expected files that share most of their columns. "
            "Name the files of one table, by a path or a glob, or give each table a folder of its own; if these are "
            "one table, write its pipeline.yaml yourself"
        )


def _require_packages() -> None:
    packages = {"sklearn": "scikit-learn", "torch": "torch"}
    missing = [name for module, name in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise SpecError(
            f"--check needs packages that are not installed: got no {' and no '.join(missing)}. "
            f"Run `pip install {' '.join(missing)}`, or leave --check out"
        )


def _named_from(table: str, folder: Path) -> str:
    """The table as the pipeline.yaml in a folder names it: a relative path stays relative."""
    if "://" in table or Path(table).is_absolute():
        return table
    return os.path.relpath(Path(table).absolute(), folder.absolute())


def _refuse_existing(folder: Path) -> None:
    there = [name for name in (PIPELINE_FILE, SCRIPT_FILE) if (folder / name).exists()]
    if there:
        raise SpecError(
            f"{' and '.join(there)} exist in {folder}: got files that somebody may have edited, expected none. "
            "Add --force to replace them, or name another folder with -o"
        )


def _write(folder: Path, files: Mapping[str, str], *, schema: bool) -> None:
    """Write the files, each whole or not at all. schema: that for editors, too."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if schema:
            write_json_schema(folder / SCHEMA_FILE, Pipeline.json_schema())
        for name, text in files.items():
            unfinished = folder / f".{name}.unfinished"
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(folder / name)
    except OSError as error:
        raise SpecError(f"{folder} cannot be written to: {error.strerror}. Name another folder with -o") from error


def _print_summary(plan: InitPlan, folder: Path, written: Sequence[str], console: Console) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in decisions_of(plan):
        table.add_row(name, comment(text).replace("[", r"\["))
    console.print(table, highlight=False)
    place = folder / PIPELINE_FILE
    say(console, f"\nwritten: {', '.join(str(folder / each) for each in written)}. Next:")
    name = shlex.quote(str(place))
    steps = (
        (f"feedline fit {name}", "learn vocabularies and means, in one pass"),
        (f"feedline run {name} --sink null", "see how fast it feeds"),
        (f"python {shlex.quote(str(folder / SCRIPT_FILE))}", "train, and evaluate"),
    )
    width = max(len(words) for words, _ in steps)
    for words, what in steps:
        say(console, f"  {words:<{width}}  # {what}")
