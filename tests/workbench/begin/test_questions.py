"""Questions at a terminal: guesses by Enter, numbers, names, none, and mistakes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from profiles import binary, column, session_of, table, time_of
from rich.console import Console

from feedline.errors import SpecError
from feedline.workbench.begin.init import ask_choices
from feedline.workbench.begin.init_plan import Choices
from feedline.workbench.profile.table_facts import DistinctCount, TableFacts

FACTS = table(
    binary(),
    column("t", "time", "date32[day]"),
    column("u", "time", "date32[day]"),
    column("s"),
    times=(time_of("t", None, None), time_of("u", None, None)),
    sessions=(session_of("s"),),
)


def asked(*answers: str, choices: Choices | None = None, facts: TableFacts = FACTS) -> tuple[Choices, str]:
    lines: Iterator[str] = iter(answers)
    console = Console(file=io.StringIO(), width=200)

    def read(prompt: str) -> str:
        console.print(prompt, markup=False)
        return next(lines)

    found = ask_choices(facts, choices or Choices(), console, read)
    assert next(lines, None) is None
    return found, console.file.getvalue()  # type: ignore[attr-defined]


def test_an_empty_line_takes_the_guess():
    found, shown = asked("", "", "")
    assert found == Choices(label="clicked", time="t", session="s")
    assert "1. clicked: named clicked; 0 and 1" in shown
    assert "[clicked]" in shown


def test_numbers_names_and_none():
    assert asked("1", "2", "-")[0] == Choices(label="clicked", time="u", session="")
    assert asked("s", "u", "s")[0] == Choices(label="s", time="u", session="s")


def test_a_mistake_is_asked_again():
    found, shown = asked("clickd", "9", "-", "clicked", "", "")
    assert found.label == "clicked"
    assert shown.count("expected a number of the list, or one of clicked, t, u, s") == 3


def test_a_question_mark_lists_all_columns_and_strings_of_a_few_classes_are_offered():
    species = column("species", "string", "string", vocabulary=DistinctCount(sample=3, table=3, error=0.0, once=0.0))
    species = replace(species, string_bytes=(6.0, 10))
    facts = table(column("a"), species, *(column(f"c{index}") for index in range(20)))
    found, shown = asked("?", "1", facts=facts)
    assert found.label == "species"
    assert "1. species: string, 3 values" in shown
    assert "? for all columns" in shown
    listed = shown.split("\n")
    assert sum(line.startswith("  c") for line in listed) == 20
    assert any(line.startswith("  species  string, 3 values") for line in listed)


def test_what_was_answered_before_is_not_asked():
    assert asked(choices=Choices(label="s", time="", session="", max_features=3))[0] == Choices(
        label="s", time="", session="", max_features=3
    )


def test_without_a_guess_an_answer_is_needed():
    found, shown = asked("", "a", facts=table(column("a"), column("b")))
    assert found.label == "a"
    assert "no column ''" in shown


def test_the_end_of_the_input_is_an_error():
    def read(_: str) -> str:
        raise EOFError

    with pytest.raises(SpecError, match="the input ended before an answer"):
        ask_choices(FACTS, Choices(), Console(file=io.StringIO()), read)
