"""A samples.yaml that is damaged anywhere is read, or refused line by line: no error but SpecError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from test_samples_schema import COMPLETE

from feedline.config.build_spec import load_build_spec
from feedline.errors import SpecError

VALUES = [
    *("", "~", "null", "0", "-1", "1e999", "2**70", "9999999999999999999999", ".nan", "off", "yes", "[]", "{}", "''"),
    *("[[[[]]]]", "{a: {b: {}}}", "&x [*x]", "*y", "!!python/object:os.system", "|", ">-", "\u2028", "\ud7ff", "'${'"),
    *("${HOME}", "30m", "sum(", "not", "a..b", "../../..", "s3://", "\t", "#", "? a", "- a", "<<: {a: 1}"),
]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samples") / "samples.yaml"


def check(file: Path, text: str) -> None:
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        load_build_spec(file)
    except SpecError as error:
        assert all(line.startswith(f"{file}") for line in str(error).splitlines()), error  # noqa: PT017


@examples(150)
@given(
    st.integers(0, len(COMPLETE) - 1),
    st.integers(0, 6),
    st.sampled_from([*"{}[]:,'\"#&*-!|>%@`\n\t $0a\x00\x85\ufeff"]) | st.text(max_size=3),
)
def test_a_mangled_text_is_read_or_refused_line_by_line(file: Path, position: int, removed: int, inserted: str) -> None:
    check(file, COMPLETE[:position] + inserted + COMPLETE[position + removed :])


TOKENS = [token for token in COMPLETE.replace("{", " { ").replace("}", " } ").replace(",", " , ").split(" ") if token]


@st.composite
def texts(draw: Any) -> str:
    """The text with some values in place of others, some lines twice, left out or in another order."""
    lines = COMPLETE.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("value", "twice", "without", "order", "word"))):
            case "value":
                key = lines[index].partition(":")[0]
                lines[index] = f"{key}: {draw(st.sampled_from(VALUES))}"
            case "twice":
                lines.insert(draw(st.integers(0, len(lines))), lines[index])
            case "without" if len(lines) > 1:
                del lines[index]
            case "order":
                lines = draw(st.permutations(lines))
            case "word":
                word = draw(st.sampled_from(TOKENS))
                lines[index] = lines[index].replace(word, draw(st.sampled_from(VALUES)), 1)
    return "\n".join(lines)


@examples(150)
@given(texts())
def test_values_of_any_kind_are_read_or_refused(file: Path, text: str) -> None:
    check(file, text)
